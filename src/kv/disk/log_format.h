// Journal and checkpoint files: a header page, then frames of index changes. A frame starts on a
// 4 KiB border and is written once, so that a torn write can damage only what was not yet synced
// (docs/formats.md). Thread-safety: pure functions and value types.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kv/disk/disk_files.h"
#include "kv/disk/disk_format.h"

namespace spindle::kv::disk {

// One change of the index.
struct LogEntry {
  enum class Op : uint8_t {
    kPut = 1,          // `id` is at this place
    kErase = 2,        // `id` is gone; other fields 0
    kDropSegment = 3,  // everything that is still in `segment` is gone; other fields 0
  };

  Op op = Op::kPut;
  RecordId id{};
  uint64_t seq = 0;
  uint32_t segment = 0;
  uint32_t offset_pages = 0;  // of the record in its segment, in units of 4 KiB
  uint32_t length_pages = 0;  // header and padded payload
  uint32_t header_crc = 0;
  uint32_t last_use = 0;  // DiskIndex recency
};

inline constexpr size_t kLogEntryBytes = 72;
// Bounds the memory of a reader and of a commit.
inline constexpr uint32_t kMaxFrameEntries = 32768;

enum class LogType : uint8_t { kJournal, kCheckpoint };

// The header page. A journal continues `previous`: its frames count only if the first
// `previous_frames` frames of that one could be read. A checkpoint of number N stands for
// everything before journal N.
struct LogHeader {
  LogType type = LogType::kJournal;
  StoreUuid uuid{};
  uint64_t number = 0;
  uint64_t previous = 0;  // journals only; 0 = starts from a checkpoint or from nothing
  uint64_t previous_frames = 0;
};

// The last frame of a checkpoint has no entries and this flag; without it the file is not whole.
struct FrameHeader {
  uint64_t index = 0;  // 0, 1, 2 … in its file
  uint32_t num_entries = 0;
  bool last = false;
};

void EncodeLogHeader(const LogHeader& header, std::span<uint8_t, kAlignment> out);

// ERRORS: kInvalidArgument (no such file), kUnimplemented (other version), kDataLoss (damaged).
[[nodiscard]] absl::StatusOr<LogHeader> DecodeLogHeader(std::span<const uint8_t> bytes);

// Bytes of a frame with its padding.
[[nodiscard]] uint64_t FrameBytes(uint32_t num_entries);

// Appends a frame to `out`. REQUIRES: at most kMaxFrameEntries entries.
void EncodeFrame(const LogHeader& log,
                 const FrameHeader& frame,
                 std::span<const LogEntry> entries,
                 std::vector<uint8_t>* out);

// Reads the first page of a frame. ERRORS: kDataLoss (not a frame of this log).
[[nodiscard]] absl::StatusOr<FrameHeader> DecodeFrameHeader(const LogHeader& log,
                                                            std::span<const uint8_t> page);

// Appends the entries of a whole frame to `out`. ERRORS: kDataLoss; `out` is then unchanged.
[[nodiscard]] absl::Status DecodeFrame(const LogHeader& log,
                                       std::span<const uint8_t> bytes,
                                       std::vector<LogEntry>* out);

}  // namespace spindle::kv::disk
