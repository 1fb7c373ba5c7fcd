// A file system in memory that records what was written and synced, so that a test can look at the
// disk as a crash at any moment would have left it. Thread-safety: thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "kv/disk/disk_files.h"

namespace spindle::test {

class MemoryFiles final : public kv::disk::DiskFiles {
 public:
  // One call that changed something. Files are known by a number that survives renames.
  struct Event {
    enum class Kind : uint8_t { kCreate, kWrite, kSync, kRename, kUnlink, kSyncDirectory };
    Kind kind;
    uint32_t file = 0;
    uint64_t offset = 0;
    std::string path{};  // of the directory for kSyncDirectory
    std::string to{};
    std::vector<uint8_t> bytes{};
  };

  // How the bytes that were not synced come out of a crash.
  enum class Unsynced : uint8_t {
    kLost,       // none of them
    kKept,       // all of them
    kReordered,  // every write whole or not at all, by chance
    kTorn,       // every 512-byte sector of them by chance
  };

  explicit MemoryFiles(uint64_t capacity_bytes = uint64_t{1} << 40) : capacity_(capacity_bytes) {}

  absl::StatusOr<std::unique_ptr<kv::disk::DiskFile>> Open(const std::string& path,
                                                           kv::disk::OpenMode mode,
                                                           bool direct) override;
  absl::StatusOr<std::vector<kv::disk::DirectoryEntry>> List(const std::string& directory) override;
  absl::Status MakeDirectory(const std::string& directory) override;
  absl::Status SyncDirectory(const std::string& directory) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Unlink(const std::string& path) override;
  absl::StatusOr<kv::disk::FreeSpaceInfo> FreeSpace(const std::string& directory) override;
  absl::StatusOr<std::unique_ptr<kv::disk::DiskLock>> Lock(const std::string& path) override;
  std::array<uint8_t, 16> UniqueId() override;

  // Recording from now on; the state now is durable.
  void StartRecording();

  [[nodiscard]] size_t num_events() const;

  // The disk after a crash behind the first `num_events` recorded events. `random` decides what is
  // kept of unsynced bytes and names.
  [[nodiscard]] std::unique_ptr<MemoryFiles> CrashAt(size_t num_events,
                                                     Unsynced unsynced,
                                                     std::mt19937_64& random) const;

  // Bytes of a file, to look at or to damage. REQUIRES: the file exists.
  std::vector<uint8_t>& Bytes(const std::string& path);

  [[nodiscard]] std::vector<std::string> Paths() const;

  // Writes beyond this many bytes of all files fail.
  void SetCapacity(uint64_t bytes);

 private:
  friend class MemoryFile;

  struct Node {
    uint32_t number;
    std::vector<uint8_t> bytes;
  };

  using NodePtr = std::shared_ptr<Node>;  // shared by names and open files, as in a real one
  using Names = std::map<std::string, NodePtr>;

  absl::StatusOr<size_t> Write(Node& node, uint64_t offset, std::span<const iovec> parts);
  absl::StatusOr<size_t> Read(const Node& node,
                              uint64_t offset,
                              std::span<const iovec> parts) const;
  void Record(Event event) SPINDLE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Names names_ SPINDLE_GUARDED_BY(mutex_);
  std::set<std::string> directories_ SPINDLE_GUARDED_BY(mutex_);
  std::set<std::string> locked_ SPINDLE_GUARDED_BY(mutex_);
  uint64_t capacity_ SPINDLE_GUARDED_BY(mutex_);
  uint64_t used_ SPINDLE_GUARDED_BY(mutex_) = 0;
  uint32_t next_node_ SPINDLE_GUARDED_BY(mutex_) = 0;
  uint8_t next_id_ SPINDLE_GUARDED_BY(mutex_) = 0;
  bool recording_ SPINDLE_GUARDED_BY(mutex_) = false;
  Names start_ SPINDLE_GUARDED_BY(mutex_);  // copies of what was there at StartRecording
  std::vector<Event> events_ SPINDLE_GUARDED_BY(mutex_);
};

}  // namespace spindle::test
