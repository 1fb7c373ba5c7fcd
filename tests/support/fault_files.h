// A file layer that misbehaves on purpose, from a seed. Every fault is counted, and so is every
// read that brought a wrong bit, so that a test can ask whether all of them were noticed.
// Thread-safety: thread-safe; the order of calls decides which of them are hit. Borrows the layer
// below.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kv/disk/disk_files.h"

namespace spindle::test {

// Chance of each fault per call, in [0, 1].
struct FaultRates {
  double read_error = 0;   // EIO
  double write_error = 0;  // EIO; a part may have been written
  double short_read = 0;
  double short_write = 0;
  double no_space = 0;  // ENOSPC on a write; a part may have been written
  double flip = 0;      // one bit of what was read, or of what is written
  double read_stall = 0;
  double write_stall = 0;
  double sync_error = 0;
  double unlink_error = 0;
  Duration stall = std::chrono::milliseconds(500);
  bool spare_logs = true;  // superblock, journals and checkpoints
};

// What a file is for, by its name.
enum class FileClass : uint8_t { kSegment, kProbe, kLog };

inline constexpr size_t kNumFileClasses = 3;

struct FaultCounts {
  uint64_t read_errors = 0;
  uint64_t write_errors = 0;
  uint64_t short_reads = 0;
  uint64_t short_writes = 0;
  uint64_t no_space = 0;
  uint64_t read_flips = 0;
  uint64_t write_flips = 0;
  uint64_t read_stalls = 0;
  uint64_t write_stalls = 0;
  uint64_t sync_errors = 0;
  uint64_t unlink_errors = 0;
  // No fault of its own: reads that brought a bit flipped now, or when it was written.
  uint64_t damaged_reads = 0;
};

struct FaultField {
  const char* name;
  uint64_t FaultCounts::*count;
};

// The faults, without `damaged_reads`.
inline constexpr std::array<FaultField, 11> kFaultFields = {{
    {"read_errors", &FaultCounts::read_errors},
    {"write_errors", &FaultCounts::write_errors},
    {"short_reads", &FaultCounts::short_reads},
    {"short_writes", &FaultCounts::short_writes},
    {"no_space", &FaultCounts::no_space},
    {"read_flips", &FaultCounts::read_flips},
    {"write_flips", &FaultCounts::write_flips},
    {"read_stalls", &FaultCounts::read_stalls},
    {"write_stalls", &FaultCounts::write_stalls},
    {"sync_errors", &FaultCounts::sync_errors},
    {"unlink_errors", &FaultCounts::unlink_errors},
}};

[[nodiscard]] uint64_t TotalFaults(const FaultCounts& counts);

class FaultFiles final : public kv::disk::DiskFiles {
 public:
  // `wait` is a stall: what a call waits by. Without it the calling thread really waits.
  FaultFiles(kv::disk::DiskFiles& below,
             uint64_t seed,
             std::function<void(Duration)> wait = nullptr);

  void SetRates(const FaultRates& rates) SPINDLE_EXCLUDES(mutex_);
  // Of all files, or of one class.
  [[nodiscard]] FaultCounts counts() const SPINDLE_EXCLUDES(mutex_);
  [[nodiscard]] FaultCounts counts(FileClass file_class) const SPINDLE_EXCLUDES(mutex_);

  absl::StatusOr<std::unique_ptr<kv::disk::DiskFile>> Open(const std::string& path,
                                                           kv::disk::OpenMode mode,
                                                           bool direct) override;

  absl::StatusOr<std::vector<kv::disk::DirectoryEntry>> List(
      const std::string& directory) override {
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

  absl::StatusOr<kv::disk::FreeSpaceInfo> FreeSpace(const std::string& directory) override {
    return free_space_.has_value() ? *free_space_ : below_.FreeSpace(directory);
  }

  // What is measured from now on, as if the measurement had happened earlier. Not while one runs.
  void SetFreeSpace(const kv::disk::FreeSpaceInfo& info) { free_space_ = info; }

  absl::StatusOr<std::unique_ptr<kv::disk::DiskLock>> Lock(const std::string& path) override {
    return below_.Lock(path);
  }

  std::array<uint8_t, 16> UniqueId() override { return below_.UniqueId(); }

 private:
  friend class FaultFile;

  // What happens to one call on a file.
  enum class Fault : uint8_t { kNone, kError, kShort, kNoSpace, kFlip };

  struct Decision {
    Fault fault = Fault::kNone;
    uint64_t random = 0;  // where a flip or cut goes
    Duration stall{};
  };

  // A transfer of a single unit of 4 KiB is never short.
  Decision DecideRead(FileClass file_class, uint64_t bytes) SPINDLE_EXCLUDES(mutex_);
  Decision DecideWrite(FileClass file_class, uint64_t bytes) SPINDLE_EXCLUDES(mutex_);
  bool DecideSync(FileClass file_class) SPINDLE_EXCLUDES(mutex_);
  void Stall(Duration duration) SPINDLE_EXCLUDES(mutex_);

  // A bit of the byte at `offset` of a file is wrong on the device.
  void NoteFlip(const std::string& path, uint64_t offset) SPINDLE_EXCLUDES(mutex_);
  // The bytes were read; `flipped`: and a bit of them flipped on the way.
  void NoteRead(const std::string& path, uint64_t offset, uint64_t bytes, bool flipped)
      SPINDLE_EXCLUDES(mutex_);

  [[nodiscard]] bool Exempt(FileClass file_class) const SPINDLE_REQUIRES(mutex_);
  FaultCounts& CountsOf(FileClass file_class) SPINDLE_REQUIRES(mutex_);
  uint64_t Next() SPINDLE_REQUIRES(mutex_);
  bool Chance(double probability) SPINDLE_REQUIRES(mutex_);

  kv::disk::DiskFiles& below_;
  std::optional<kv::disk::FreeSpaceInfo> free_space_;
  const std::function<void(Duration)> wait_;
  mutable Mutex mutex_;
  uint64_t random_ SPINDLE_GUARDED_BY(mutex_);
  FaultRates rates_ SPINDLE_GUARDED_BY(mutex_);
  std::array<FaultCounts, kNumFileClasses> counts_ SPINDLE_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<uint64_t>> flipped_ SPINDLE_GUARDED_BY(mutex_);
};

}  // namespace spindle::test
