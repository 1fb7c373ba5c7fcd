#include "kv/disk/log_format.h"

#include <algorithm>
#include <string>

#include "base/status_macros.h"
#include "kv/disk/byte_codec.h"
#include "kv/disk/crc32c.h"

namespace spindle::kv::disk {
namespace {

constexpr Magic kJournalMagic = MakeMagic("SPKVJRNL");
constexpr Magic kCheckpointMagic = MakeMagic("SPKVCKPT");
constexpr uint32_t kFrameMagic = 0x4d524653;  // "SFRM"
constexpr uint32_t kLastFlag = 1;

namespace header {
constexpr size_t kMagic = 0;
constexpr size_t kVersion = 8;
constexpr size_t kBytes = 12;
constexpr size_t kUuid = 16;
constexpr size_t kNumber = 32;
constexpr size_t kPrevious = 40;
constexpr size_t kPreviousFrames = 48;
constexpr size_t kCrc = kAlignment - 4;
}  // namespace header

// Frame: magic, CRC of all that follows up to the padding, then these.
namespace frame {
constexpr size_t kMagic = 0;
constexpr size_t kCrc = 4;
constexpr size_t kNumEntries = 8;
constexpr size_t kFlags = 12;
constexpr size_t kLogNumber = 16;
constexpr size_t kIndex = 24;
constexpr size_t kUuid = 32;
constexpr size_t kEntries = 48;
}  // namespace frame

namespace entry {
constexpr size_t kOp = 0;
constexpr size_t kReserved = 1;
constexpr size_t kKind = 2;
constexpr size_t kSegment = 4;
constexpr size_t kKey = 8;
constexpr size_t kSubId = 40;
constexpr size_t kSeq = 48;
constexpr size_t kOffset = 56;
constexpr size_t kLength = 60;
constexpr size_t kHeaderCrc = 64;
constexpr size_t kLastUse = 68;
}  // namespace entry

void EncodeEntry(const LogEntry& change, std::span<uint8_t> out) {
  PutAt(out, entry::kOp, static_cast<uint8_t>(change.op));
  PutAt(out, entry::kKind, static_cast<uint16_t>(change.id.kind));
  PutAt(out, entry::kSegment, change.segment);
  PutAt(out, entry::kKey, change.id.key);
  PutAt(out, entry::kSubId, change.id.sub_id);
  PutAt(out, entry::kSeq, change.seq);
  PutAt(out, entry::kOffset, change.offset_pages);
  PutAt(out, entry::kLength, change.length_pages);
  PutAt(out, entry::kHeaderCrc, change.header_crc);
  PutAt(out, entry::kLastUse, change.last_use);
}

// False when the fields contradict each other.
bool DecodeEntry(std::span<const uint8_t> bytes, LogEntry* out) {
  out->op = static_cast<LogEntry::Op>(GetAt<uint8_t>(bytes, entry::kOp));
  out->id.kind = static_cast<RecordKind>(GetAt<uint16_t>(bytes, entry::kKind));
  out->id.key = GetAt<Digest>(bytes, entry::kKey);
  out->id.sub_id = GetAt<uint64_t>(bytes, entry::kSubId);
  out->seq = GetAt<uint64_t>(bytes, entry::kSeq);
  out->segment = GetAt<uint32_t>(bytes, entry::kSegment);
  out->offset_pages = GetAt<uint32_t>(bytes, entry::kOffset);
  out->length_pages = GetAt<uint32_t>(bytes, entry::kLength);
  out->header_crc = GetAt<uint32_t>(bytes, entry::kHeaderCrc);
  out->last_use = GetAt<uint32_t>(bytes, entry::kLastUse);
  if (GetAt<uint8_t>(bytes, entry::kReserved) != 0) {
    return false;
  }
  const bool known_kind =
      std::find(kAllKinds.begin(), kAllKinds.end(), out->id.kind) != kAllKinds.end();
  switch (out->op) {
    case LogEntry::Op::kPut:
      // A record has a header and at least one page of payload, behind the segment's header.
      return known_kind && out->offset_pages > 0 && out->length_pages >= 2 &&
             out->length_pages <= (kMaxPayloadBytes + HeaderBytes(kMaxExtents)) / kAlignment;
    case LogEntry::Op::kErase:
      return known_kind;
    case LogEntry::Op::kDropSegment:
      return true;
  }
  return false;
}

size_t UsedBytes(uint32_t num_entries) {
  return frame::kEntries + kLogEntryBytes * num_entries;
}

absl::Status BadFrame() {
  return absl::DataLossError("not a whole frame of this log");
}

}  // namespace

void EncodeLogHeader(const LogHeader& log, std::span<uint8_t, kAlignment> out) {
  std::fill(out.begin(), out.end(), uint8_t{0});
  PutAt(out, header::kMagic, log.type == LogType::kJournal ? kJournalMagic : kCheckpointMagic);
  PutAt(out, header::kVersion, kFormatVersion);
  PutAt(out, header::kBytes, static_cast<uint32_t>(kAlignment));
  PutAt(out, header::kUuid, log.uuid);
  PutAt(out, header::kNumber, log.number);
  PutAt(out, header::kPrevious, log.previous);
  PutAt(out, header::kPreviousFrames, log.previous_frames);
  PutAt(out, header::kCrc, Crc32c(out.first(header::kCrc)));
}

absl::StatusOr<LogHeader> DecodeLogHeader(std::span<const uint8_t> bytes) {
  if (bytes.size() < kAlignment) {
    return absl::InvalidArgumentError("not a journal or checkpoint");
  }
  const auto magic = GetAt<Magic>(bytes, header::kMagic);
  if (magic != kJournalMagic && magic != kCheckpointMagic) {
    return absl::InvalidArgumentError("not a journal or checkpoint");
  }
  if (const auto version = GetAt<uint32_t>(bytes, header::kVersion); version != kFormatVersion) {
    return absl::UnimplementedError("log of format version " + std::to_string(version));
  }
  if (GetAt<uint32_t>(bytes, header::kBytes) != kAlignment ||
      GetAt<uint32_t>(bytes, header::kCrc) != Crc32c(bytes.first(header::kCrc))) {
    return absl::DataLossError("damaged log header");
  }
  return LogHeader{.type = magic == kJournalMagic ? LogType::kJournal : LogType::kCheckpoint,
                   .uuid = GetAt<StoreUuid>(bytes, header::kUuid),
                   .number = GetAt<uint64_t>(bytes, header::kNumber),
                   .previous = GetAt<uint64_t>(bytes, header::kPrevious),
                   .previous_frames = GetAt<uint64_t>(bytes, header::kPreviousFrames)};
}

uint64_t FrameBytes(uint32_t num_entries) {
  return RoundUp(UsedBytes(num_entries));
}

void EncodeFrame(const LogHeader& log,
                 const FrameHeader& frame_header,
                 std::span<const LogEntry> entries,
                 std::vector<uint8_t>* out) {
  SPINDLE_CHECK(entries.size() <= kMaxFrameEntries && entries.size() == frame_header.num_entries);
  const size_t start = out->size();
  out->resize(start + FrameBytes(frame_header.num_entries));
  const std::span<uint8_t> bytes = std::span(*out).subspan(start);
  PutAt(bytes, frame::kMagic, kFrameMagic);
  PutAt(bytes, frame::kNumEntries, frame_header.num_entries);
  PutAt(bytes, frame::kFlags, frame_header.last ? kLastFlag : 0);
  PutAt(bytes, frame::kLogNumber, log.number);
  PutAt(bytes, frame::kIndex, frame_header.index);
  PutAt(bytes, frame::kUuid, log.uuid);
  size_t at = frame::kEntries;
  for (const LogEntry& change : entries) {
    EncodeEntry(change, bytes.subspan(at, kLogEntryBytes));
    at += kLogEntryBytes;
  }
  PutAt(bytes, frame::kCrc, Crc32c(bytes.subspan(frame::kNumEntries, at - frame::kNumEntries)));
}

absl::StatusOr<FrameHeader> DecodeFrameHeader(const LogHeader& log, std::span<const uint8_t> page) {
  if (page.size() < kAlignment || GetAt<uint32_t>(page, frame::kMagic) != kFrameMagic ||
      GetAt<uint64_t>(page, frame::kLogNumber) != log.number ||
      GetAt<StoreUuid>(page, frame::kUuid) != log.uuid) {
    return BadFrame();
  }
  const FrameHeader result{
      .index = GetAt<uint64_t>(page, frame::kIndex),
      .num_entries = GetAt<uint32_t>(page, frame::kNumEntries),
      .last = GetAt<uint32_t>(page, frame::kFlags) == kLastFlag,
  };
  if (result.num_entries > kMaxFrameEntries ||
      (GetAt<uint32_t>(page, frame::kFlags) & ~kLastFlag) != 0) {
    return BadFrame();
  }
  return result;
}

absl::Status DecodeFrame(const LogHeader& log,
                         std::span<const uint8_t> bytes,
                         std::vector<LogEntry>* out) {
  SPINDLE_ASSIGN_OR_RETURN(const FrameHeader frame_header, DecodeFrameHeader(log, bytes));
  const size_t used = UsedBytes(frame_header.num_entries);
  if (bytes.size() < used ||
      GetAt<uint32_t>(bytes, frame::kCrc) !=
          Crc32c(bytes.subspan(frame::kNumEntries, used - frame::kNumEntries))) {
    return BadFrame();
  }
  const size_t before = out->size();
  for (size_t at = frame::kEntries; at < used; at += kLogEntryBytes) {
    out->emplace_back();
    if (!DecodeEntry(bytes.subspan(at, kLogEntryBytes), &out->back())) {
      out->resize(before);
      return BadFrame();
    }
  }
  return absl::OkStatus();
}

}  // namespace spindle::kv::disk
