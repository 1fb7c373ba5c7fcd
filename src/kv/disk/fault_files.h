// A file layer that misbehaves on purpose, from a seed: for tests, and for servers whose operator
// wants to see what a bad disk does. Every fault is counted. Thread-safety: thread-safe; the order
// of calls decides which of them are hit. Borrows the layer below.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "kv/disk/disk_files.h"

namespace spindle::kv::disk {

// Chance of each fault per call, in [0, 1]. Only segment files are hit where `segments_only`.
struct FaultRates {
  double read_error = 0;   // EIO
  double write_error = 0;  // EIO; a part may have been written
  double short_read = 0;
  double short_write = 0;
  double no_space = 0;  // ENOSPC on a write
  double flip = 0;      // one bit of what was read, or of what is written
  double sync_error = 0;
  double unlink_error = 0;
  bool segments_only = true;
};

struct FaultCounts {
  uint64_t read_errors = 0;
  uint64_t write_errors = 0;
  uint64_t short_reads = 0;
  uint64_t short_writes = 0;
  uint64_t no_space = 0;
  uint64_t read_flips = 0;
  uint64_t write_flips = 0;
  uint64_t sync_errors = 0;
  uint64_t unlink_errors = 0;

  [[nodiscard]] uint64_t total() const {
    return read_errors + write_errors + short_reads + short_writes + no_space + read_flips +
           write_flips + sync_errors + unlink_errors;
  }
};

class FaultFiles final : public DiskFiles {
 public:
  FaultFiles(DiskFiles& below, uint64_t seed) : below_(below), random_(seed) {}

  void SetRates(const FaultRates& rates) SPINDLE_EXCLUDES(mutex_);
  [[nodiscard]] FaultCounts counts() const SPINDLE_EXCLUDES(mutex_);

  absl::StatusOr<std::unique_ptr<DiskFile>> Open(const std::string& path,
                                                 OpenMode mode,
                                                 bool direct) override;

  absl::StatusOr<std::vector<DirectoryEntry>> List(const std::string& directory) override {
    return below_.List(directory);
  }

  absl::Status MakeDirectory(const std::string& directory) override {
    return below_.MakeDirectory(directory);
  }

  absl::Status SyncDirectory(const std::string& directory) override {
    return below_.SyncDirectory(directory);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    return below_.Rename(from, to);
  }

  absl::Status Unlink(const std::string& path) override;

  absl::StatusOr<FreeSpaceInfo> FreeSpace(const std::string& directory) override {
    return below_.FreeSpace(directory);
  }

  absl::StatusOr<std::unique_ptr<DiskLock>> Lock(const std::string& path) override {
    return below_.Lock(path);
  }

  std::array<uint8_t, 16> UniqueId() override { return below_.UniqueId(); }

 private:
  friend class FaultFile;

  // What happens to one call on `path`.
  enum class Fault : uint8_t { kNone, kError, kShort, kNoSpace, kFlip };

  struct Decision {
    Fault fault = Fault::kNone;
    uint64_t random = 0;  // where a flip or cut goes
  };

  // A transfer of a single unit of 4 KiB is never short.
  Decision DecideRead(const std::string& path, uint64_t bytes) SPINDLE_EXCLUDES(mutex_);
  Decision DecideWrite(const std::string& path, uint64_t bytes) SPINDLE_EXCLUDES(mutex_);
  bool DecideSync(const std::string& path) SPINDLE_EXCLUDES(mutex_);
  [[nodiscard]] bool Exempt(const std::string& path) const SPINDLE_REQUIRES(mutex_);
  uint64_t Next() SPINDLE_REQUIRES(mutex_);
  bool Chance(double probability) SPINDLE_REQUIRES(mutex_);

  DiskFiles& below_;
  mutable Mutex mutex_;
  uint64_t random_ SPINDLE_GUARDED_BY(mutex_);
  FaultRates rates_ SPINDLE_GUARDED_BY(mutex_);
  FaultCounts counts_ SPINDLE_GUARDED_BY(mutex_);
};

}  // namespace spindle::kv::disk
