// Options and statistics of the disk tier. Thread-safety: value types.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "kv/disk/disk_format.h"

namespace spindle::kv::disk {

enum class IoMode : uint8_t {
  kAuto,     // io_uring where the system allows it, else threads
  kThreads,  // blocking calls on a few threads
  kInline,   // inside Poll and Tick, on the caller's thread: deterministic
};

struct DiskOptions {
  // Root folder, shared by the stores of several models.
  std::string path;
  // Cap over all stores below the root, logical and physical. At least two segments.
  uint64_t capacity_bytes = 0;
  // A file that records are appended to; 64 KiB … 1 GiB, a multiple of 4 KiB. An existing store
  // keeps its own.
  uint64_t segment_bytes = uint64_t{256} << 20;
  // Space of the file system that stays free: the larger of the two.
  uint64_t min_free_bytes = uint64_t{2} << 30;
  double min_free_fraction = 0.05;
  // Collection starts above `high_watermark` of the capacity and ends at `low_watermark`.
  double high_watermark = 0.90;
  double low_watermark = 0.80;
  // Bounds of what is submitted and not yet completed; a request beyond is refused.
  uint64_t max_store_bytes = uint64_t{256} << 20;
  uint32_t max_stores = 1024;
  uint32_t max_loads = 1024;
  uint32_t read_depth = 32;
  uint32_t write_depth = 16;
  IoMode io_mode = IoMode::kAuto;
  bool direct = true;  // ask for O_DIRECT
  // A group commit starts when the oldest change is this old, or this many bytes were written.
  Duration commit_interval = std::chrono::milliseconds(100);
  uint64_t commit_bytes = uint64_t{64} << 20;
  // A checkpoint starts when the journal has this many bytes.
  uint64_t checkpoint_journal_bytes = uint64_t{16} << 20;
  // Stores rest this long after the device or the quota was full; then the next one tries again.
  Duration full_pause = std::chrono::seconds(60);
  // The tier switches itself off after this many errors within `error_window`.
  uint32_t max_errors = 8;
  Duration error_window = std::chrono::seconds(60);
  // First wait before a tier that is off probes the device; it doubles with every failed probe, and
  // with every outage that follows a recovery within `max_probe_wait`.
  Duration probe_wait = std::chrono::seconds(10);
  Duration max_probe_wait = std::chrono::minutes(10);
  // Allocated and free bytes are measured this often while stores happen.
  Duration space_interval = std::chrono::seconds(5);
};

// kInvalidArgument naming the option and its range.
[[nodiscard]] absl::Status ValidateOptions(const DiskOptions& options);

enum class TierState : uint8_t {
  kOk,
  kReadOnly,  // the device or the quota was full: no stores for a while
  kDegraded,  // too many errors: neither loads nor stores until a probe of the device succeeds
  kOff,       // closed
};

[[nodiscard]] std::string_view StateName(TierState state);

enum class LoadFailure : uint8_t {
  kNotFound,   // no such record
  kIo,         // the device answered with an error
  kShort,      // the file ends too early, or stayed short
  kHeader,     // the record's header is damaged
  kMismatch,   // a whole record, but of another key, parent, tokens, numerics class
  kPayload,    // a checksum of the payload is wrong
  kMissing,    // the segment's file cannot be opened
  kDeadline,   // late
  kCancelled,  // by the caller
  kBusy,       // too many loads
  kOff,        // degraded or closed
};

inline constexpr size_t kNumLoadFailures = 11;
[[nodiscard]] std::string_view LoadFailureName(LoadFailure cause);

enum class StoreSkip : uint8_t {
  kPresent,       // stored already, or being stored
  kBackpressure,  // too many bytes wait
  kNoSpace,       // quota, free-space floor, or a full device
  kIo,            // the device answered with an error
  kOff,           // degraded or closed
};

inline constexpr size_t kNumStoreSkips = 5;
[[nodiscard]] std::string_view StoreSkipName(StoreSkip cause);

// What went wrong between the store and its device. Each is counted once per call or transfer,
// whoever waited for it: also where the request behind it was cancelled or late.
enum class DeviceError : uint8_t {
  kRead,        // a read ended with an error, or stayed short
  kReadDamage,  // a read brought other bytes than were written
  kWrite,       // a write did
  kWriteFull,   // a write, or a new segment, found the device or the quota full
  kOpen,        // a segment could not be opened or made
  kSync,        // a segment could not be synced
  kLog,         // journal or checkpoint could not be written
  kLogFull,     // … because the device or the quota was full
  kUnlink,      // a segment could not be removed
  kProbe,       // a probe failed
  kSpace,       // space could not be measured, for example because the folder is gone
};

inline constexpr size_t kNumDeviceErrors = 11;
// For labels: the operation, and why it failed.
[[nodiscard]] std::string_view DeviceErrorOp(DeviceError error);
[[nodiscard]] std::string_view DeviceErrorCause(DeviceError error);

// Index of a kind in the arrays below.
[[nodiscard]] inline constexpr size_t KindIdx(RecordKind kind) {
  return static_cast<size_t>(kind) - 1;
}

// A snapshot; counters since Open.
struct DiskStats {
  TierState state = TierState::kOff;
  bool direct_active = false;  // past the page cache
  bool ring_active = false;    // io_uring
  uint32_t io_depth = 0;       // transfers running
  uint64_t entries = 0;
  uint64_t index_bytes = 0;  // memory
  uint64_t segments = 0;
  uint64_t quarantined_segments = 0;

  uint64_t capacity_bytes = 0;   // of this store: the cap less what other stores hold
  uint64_t other_bytes = 0;      // other stores below the root
  uint64_t live_bytes = 0;       // records that can be found
  uint64_t used_bytes = 0;       // lengths of the segment files
  uint64_t allocated_bytes = 0;  // on the device, all files of the store, as last measured
  uint64_t free_bytes = 0;       // of the file system, as last measured

  std::array<uint64_t, 4> loads{};  // completed well, by KindIdx
  std::array<uint64_t, 4> stores{};
  std::array<uint64_t, 4> loaded_bytes{};  // payload
  std::array<uint64_t, 4> stored_bytes{};
  std::array<uint64_t, kNumLoadFailures> load_failures{};
  std::array<uint64_t, kNumStoreSkips> stores_skipped{};
  std::array<uint64_t, kNumDeviceErrors> device_errors{};
  uint64_t short_reads = 0;  // transfers of records that brought a part, and were continued
  uint64_t short_writes = 0;
  uint64_t outages = 0;            // times that errors switched the tier off
  uint64_t recoveries = 0;         // times that a probe switched it on again
  uint64_t device_read_bytes = 0;  // with headers, padding and copies of the collector
  uint64_t device_written_bytes = 0;
  uint64_t reads = 0;  // transfers
  uint64_t writes = 0;

  uint64_t loads_pending = 0;
  uint64_t stores_pending = 0;
  uint64_t store_bytes_pending = 0;
  uint64_t commits = 0;
  uint64_t commit_failures = 0;
  uint64_t checkpoints = 0;
  uint64_t journal_bytes = 0;
  uint64_t undurable_entries = 0;  // changes that no commit covers yet
  uint64_t collected_segments = 0;
  uint64_t collected_records = 0;  // dropped by the collector
  uint64_t copied_records = 0;     // kept by it
  uint64_t tombstones = 0;         // records dropped after a failed load
  uint64_t space_failures = 0;     // measurements of space that failed
  uint64_t recovered_entries = 0;  // by Open
  uint64_t recovery_dropped = 0;   // entries that the files could not hold
};

}  // namespace spindle::kv::disk
