// Any bytes as every header of the disk tier: refused, or accepted with fields inside their ranges.
// The first byte picks the decoder, so that a corpus file belongs to one of them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status_macros.h"
#include "kv/disk/byte_codec.h"
#include "kv/disk/crc32c.h"
#include "kv/disk/disk_format.h"
#include "kv/disk/log_format.h"
#include "kv/disk/session_record.h"

namespace {

namespace disk = spindle::kv::disk;

// A checksum that fits, so that the fuzzer gets behind it.
void Seal(std::span<uint8_t> bytes, size_t crc_at, size_t from) {
  if (bytes.size() >= crc_at + sizeof(uint32_t) && from <= crc_at) {
    disk::PutAt(bytes, crc_at, disk::Crc32c(bytes.subspan(from, crc_at - from)));
  }
}

void DecodeRecord(std::span<uint8_t> bytes) {
  const uint64_t header_bytes = disk::PeekHeaderBytes(bytes);
  if (header_bytes == 0 || bytes.size() < header_bytes) {
    return;
  }
  Seal(bytes.first(header_bytes), header_bytes - sizeof(uint32_t), 0);
  const auto fields = disk::DecodeRecordHeader(bytes);
  if (fields.ok()) {
    SPINDLE_CHECK(disk::CheckRecordFields(*fields).ok());
    SPINDLE_CHECK(disk::HeaderBytes(fields->num_extents) == header_bytes);
    SPINDLE_CHECK(fields->extent_bytes() * fields->num_extents == fields->payload_bytes);
    const std::vector<uint8_t> payload(std::min<uint64_t>(fields->payload_bytes, 1 << 20));
    if (payload.size() == fields->payload_bytes) {
      disk::VerifyPayload(bytes, *fields, payload).IgnoreError();  // only that it stays inside
    }
  }
}

void DecodeLog(std::span<uint8_t> bytes) {
  disk::LogHeader log;
  if (const auto header = disk::DecodeLogHeader(bytes); header.ok()) {
    log = *header;
  }
  const auto frame = disk::DecodeFrameHeader(log, bytes);
  if (!frame.ok()) {
    return;
  }
  const uint64_t used = 48 + disk::kLogEntryBytes * uint64_t{frame->num_entries};
  if (bytes.size() >= used) {
    disk::PutAt(bytes, 4, disk::Crc32c(bytes.subspan(8, used - 8)));
  }
  std::vector<disk::LogEntry> entries;
  if (disk::DecodeFrame(log, bytes, &entries).ok()) {
    SPINDLE_CHECK(entries.size() == frame->num_entries);
  } else {
    SPINDLE_CHECK(entries.empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  // Exactly sized, so that the sanitizer sees a read one byte beyond the end.
  const auto copy = std::make_unique<uint8_t[]>(size - 1);
  std::copy(data + 1, data + size, copy.get());
  const std::span<uint8_t> bytes(copy.get(), size - 1);
  constexpr size_t kPageCrcAt = disk::kAlignment - sizeof(uint32_t);
  switch (data[0] % 5) {
    case 0:
      DecodeRecord(bytes);
      break;
    case 1:
      DecodeLog(bytes);
      break;
    case 2:
      Seal(bytes, kPageCrcAt, 0);
      disk::DecodeSuperblock(bytes).IgnoreError();  // only that it stays inside
      break;
    case 3:
      Seal(bytes, kPageCrcAt, 0);
      disk::DecodeLogHeader(bytes).IgnoreError();
      disk::CheckSegmentHeader(bytes, {}, 0).IgnoreError();
      break;
    default:
      if (const auto session = disk::DecodeSession(bytes); session.ok()) {
        SPINDLE_CHECK(disk::EncodeSession(*session).size() == bytes.size());
      }
  }
  return 0;
}
