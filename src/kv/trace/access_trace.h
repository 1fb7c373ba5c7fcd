// Page-access traces: which pages the groups of a server's requests selected, step after step, in a
// compact file (layout in docs/formats.md). They hold page numbers and no token, and may be cut at
// any byte: what is whole in front of the cut is read. Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kv/fast/bucketed_lru.h"
#include "kv/fast/group_plan.h"
#include "kv/kv_geometry.h"
#include "kv/trace/trace_file.h"

namespace spindle::kv {

// What was recorded.
struct AccessTraceHeader {
  KvGeometry geometry;
  LruOptions lru;         // of the fast tier
  std::string algorithm;  // up to 32 printable ASCII characters, for example "quest"
  uint64_t seed = 0;      // of synthetic selections; else 0
};

enum class AccessKind : uint8_t {
  kSelect = 1,   // ids: the pages of a step, or of one of several choices in it
  kAppend = 2,   // ids: pages that got tokens of a decode step
  kPrefill = 3,  // ids: the first page written by a prefill chunk, and the page behind the last
  kResize = 4,   // ids: frames that the group has from now on, a multiple of 8 up to 65,528
  kPause = 5,    // the request gave back all frames and pages
  kEnd = 6,      // the request is over; its number may be used again
  kFork = 7,     // ids: the request, no fork itself, whose pages this one begins with, as far as
                 // the frames reach that it has by now
};

// For records of a whole request: all kinds but kSelect, always for kPause, kEnd and kFork.
inline constexpr uint16_t kAllLayers = 0xFFFF;
inline constexpr uint8_t kAllHeads = 0xFF;

inline constexpr uint32_t kMaxRecordIds = 65535;

struct AccessRecord {
  uint32_t step = 0;     // never descending in a trace
  uint16_t request = 0;  // numbers in use at the same time are distinct
  uint16_t layer = 0;
  uint8_t head = 0;
  AccessKind kind = AccessKind::kSelect;
  Caching caching = Caching::kLru;  // kSelect: what was kept of the pages that were not resident
  // [at most kMaxRecordIds] ascending, distinct, below 4,194,304.
  std::span<const uint32_t> ids;
  // kSelect: empty, or [⌈ids.size() / 8⌉] bit i % 8 of byte i / 8: page i was resident.
  std::span<const uint8_t> hit_bits;
};

inline constexpr uint64_t kMinAccessTraceBytes = uint64_t{1} << 16;
inline constexpr uint64_t kMaxAccessTraceBytes = uint64_t{1} << 30;

// A trace has no gaps: what follows the first record that could not be kept is dropped as well.
class AccessTraceWriter {
 public:
  // A new file of at most max_bytes (64 KiB … 1 GiB). ERRORS: kInvalidArgument naming the field and
  // its range; kAlreadyExists; kUnavailable (the file system failed).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<AccessTraceWriter>> Create(
      const std::string& path, const AccessTraceHeader& header, uint64_t max_bytes);

  // The same to whatever takes the bytes. ERRORS: kInvalidArgument; those of TraceSink::Write.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<AccessTraceWriter>> Create(
      std::unique_ptr<TraceSink> sink, const AccessTraceHeader& header, uint64_t max_bytes);

  // Passes bytes on when 64 KiB have gathered. Records are dropped beyond max_bytes, and when the
  // sink has no room.
  //   REQUIRES: a record as described above; steps do not descend.
  //   ERRORS:   kUnavailable; the trace ends there, and later calls do nothing
  [[nodiscard]] absl::Status Append(const AccessRecord& record);

  // The same for records that EncodeAccessRecord has made, at most kMaxEncodedBytes together: all
  // are kept or none.
  static constexpr size_t kMaxEncodedBytes = size_t{1} << 19;
  [[nodiscard]] absl::Status AppendEncoded(std::span<const uint8_t> bytes, uint32_t num_records);

  // So many records were lost on the way here: 0 changes nothing, else the trace ends.
  void Drop(uint64_t num_records) { num_dropped_records_ += num_records; }

  // Writes what is left and marks the trace as whole, or as cut. Call once.
  [[nodiscard]] absl::Status Finish();

  // False once a record was dropped, after an error, and after Finish.
  [[nodiscard]] bool is_recording() const { return is_open_ && num_dropped_records_ == 0; }

  // That the sink has taken.
  [[nodiscard]] uint64_t num_kept_records() const { return num_kept_records_; }

  [[nodiscard]] uint64_t num_dropped_records() const { return num_dropped_records_; }

 private:
  AccessTraceWriter(std::unique_ptr<TraceSink> sink, uint64_t max_bytes);

  [[nodiscard]] absl::Status WriteBlock(uint32_t flags);

  std::unique_ptr<TraceSink> sink_;
  uint64_t max_bytes_;
  uint64_t written_bytes_ = 0;
  uint64_t num_kept_records_ = 0;
  uint64_t num_dropped_records_ = 0;
  uint32_t num_records_ = 0;  // in block_
  bool is_open_ = true;
  std::vector<uint8_t> block_;  // header and records of the part that gathers
  std::vector<uint8_t> record_;
};

class AccessTraceReader {
 public:
  enum class Ending : uint8_t {
    kNotReached,
    kWhole,
    kLimit,  // cut: the writer's limit was reached, or its sink had no room
    kTorn,   // the writer stopped before it was done
  };

  // A trace in memory, arbitrary bytes. Borrows them. ERRORS: kInvalidArgument (no such trace, or
  // a field out of range), kUnimplemented (another version), kDataLoss (checksum).
  [[nodiscard]] static absl::StatusOr<AccessTraceReader> Open(std::span<const uint8_t> bytes);

  [[nodiscard]] const AccessTraceHeader& header() const { return header_; }

  // The next record; its spans are valid until the next call. False at the end.
  // ERRORS: kDataLoss with the offset of the damaged part.
  [[nodiscard]] absl::StatusOr<bool> Next(AccessRecord* record);

  [[nodiscard]] Ending ending() const { return ending_; }

 private:
  AccessTraceReader(std::span<const uint8_t> rest, AccessTraceHeader header)
      : rest_(rest), total_bytes_(rest.size()), header_(std::move(header)) {}

  // Makes `block_` the next part that has records. False at the end.
  [[nodiscard]] absl::StatusOr<bool> NextBlock();
  [[nodiscard]] absl::Status Damaged(const char* what) const;

  std::span<const uint8_t> rest_;   // behind the present block
  std::span<const uint8_t> block_;  // records not read yet
  uint64_t total_bytes_;
  uint32_t records_left_ = 0;
  uint32_t last_step_ = 0;
  Ending ending_ = Ending::kNotReached;
  AccessTraceHeader header_;
  std::vector<uint32_t> ids_;
};

// The file begins as a page-access trace does.
[[nodiscard]] bool LooksLikeAccessTrace(std::span<const uint8_t> bytes);

}  // namespace spindle::kv
