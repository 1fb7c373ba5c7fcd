#include "kv/trace/access_trace_format.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "kv/disk/crc32c.h"
#include "kv/fast/fast_tier.h"

namespace spindle::kv {
namespace {

using disk::GetAt;
using disk::PutAt;

// Offsets in the header.
constexpr size_t kVersionAt = 8;
constexpr size_t kHeaderBytesAt = 12;
constexpr size_t kLayersAt = 16;
constexpr size_t kHeadsAt = 20;
constexpr size_t kHeadDimAt = 24;
constexpr size_t kElementAt = 28;
constexpr size_t kPageTokensAt = 32;
constexpr size_t kLruRangeAt = 36;
constexpr size_t kLruQuantumAt = 40;
constexpr size_t kSeedAt = 48;
constexpr size_t kAlgorithmAt = 64;
constexpr size_t kAlgorithmBytes = 32;
constexpr size_t kCrcAt = kAccessHeaderBytes - sizeof(uint32_t);

// As in the disk tier.
constexpr uint32_t kElementF32 = 1;
constexpr uint32_t kElementBf16 = 2;

// Offsets in a record.
constexpr size_t kRequestAt = 4;
constexpr size_t kLayerAt = 6;
constexpr size_t kHeadAt = 8;
constexpr size_t kKindAt = 9;
constexpr size_t kCountAt = 10;

// The byte of the kind: 4 bits of kind, 2 of caching (kSelect only), and whether hits follow.
constexpr uint8_t kKindMask = 0x0F;
constexpr uint8_t kCachingShift = 4;
constexpr uint8_t kCachingMask = 0x30;
constexpr uint8_t kHasHits = 0x80;

bool IsPrintable(char c) {
  return c >= ' ' && c <= '~';
}

void PutVarint(uint32_t value, std::vector<uint8_t>* out) {
  for (; value >= 0x80; value >>= 7) {
    out->push_back(static_cast<uint8_t>(value | 0x80));
  }
  out->push_back(static_cast<uint8_t>(value));
}

// At most 4 bytes: ids have 22 bits. False when there is no number.
bool TakeVarint(std::span<const uint8_t>* bytes, uint32_t* value) {
  *value = 0;
  for (uint32_t i = 0; i < 4 && i < bytes->size(); ++i) {
    const uint8_t byte = (*bytes)[i];
    *value |= uint32_t{byte & 0x7FU} << (7 * i);
    if (byte < 0x80) {
      *bytes = bytes->subspan(i + 1);
      return i == 0 || byte != 0;  // one encoding per number
    }
  }
  return false;
}

bool HasNumIds(AccessKind kind, size_t count) {
  switch (kind) {
    case AccessKind::kSelect:
    case AccessKind::kAppend:
      return true;
    case AccessKind::kPrefill:
      return count == 2;
    case AccessKind::kResize:
    case AccessKind::kFork:
      return count == 1;
    case AccessKind::kPause:
    case AccessKind::kEnd:
      return count == 0;
  }
  return false;
}

bool IsPlace(const KvGeometry& geometry, const AccessRecord& record) {
  const bool is_group = record.layer < geometry.num_layers && record.head < geometry.num_kv_heads;
  const bool is_request = record.layer == kAllLayers && record.head == kAllHeads;
  switch (record.kind) {
    case AccessKind::kAppend:
    case AccessKind::kPrefill:
    case AccessKind::kResize:
      return is_group || is_request;
    case AccessKind::kPause:
    case AccessKind::kEnd:
    case AccessKind::kFork:
      return is_request;
    case AccessKind::kSelect:
      return is_group;
  }
  return false;
}

// Without the bit of the hits.
uint8_t KindByte(const AccessRecord& record) {
  const auto kind = static_cast<uint8_t>(record.kind);
  const auto caching = static_cast<uint8_t>(record.caching);
  return static_cast<uint8_t>(kind |
                              (record.kind == AccessKind::kSelect ? caching << kCachingShift : 0));
}

}  // namespace

absl::Status ValidateAccessHeader(const AccessTraceHeader& header) {
  SPINDLE_RETURN_IF_ERROR(ValidateGeometry(header.geometry));
  SPINDLE_RETURN_IF_ERROR(ValidateLruOptions(header.lru));
  if (header.geometry.num_kv_heads >= kAllHeads) {
    return absl::InvalidArgumentError("KV heads of a page-access trace must be in 1..254, got " +
                                      std::to_string(header.geometry.num_kv_heads));
  }
  if (header.algorithm.empty() || header.algorithm.size() > kAlgorithmBytes ||
      !std::all_of(header.algorithm.begin(), header.algorithm.end(), IsPrintable)) {
    return absl::InvalidArgumentError(
        "algorithm of a page-access trace must be 1..32 printable characters");
  }
  return absl::OkStatus();
}

void EncodeAccessHeader(const AccessTraceHeader& header,
                        std::span<uint8_t, kAccessHeaderBytes> out) {
  std::fill(out.begin(), out.end(), uint8_t{0});
  PutAt(out, 0, kAccessTraceMagic);
  PutAt(out, kVersionAt, kAccessTraceVersion);
  PutAt(out, kHeaderBytesAt, static_cast<uint32_t>(kAccessHeaderBytes));
  PutAt(out, kLayersAt, header.geometry.num_layers);
  PutAt(out, kHeadsAt, header.geometry.num_kv_heads);
  PutAt(out, kHeadDimAt, header.geometry.head_dim);
  PutAt(out, kElementAt, header.geometry.type == DType::kBF16 ? kElementBf16 : kElementF32);
  PutAt(out, kPageTokensAt, header.geometry.page_tokens());
  PutAt(out, kLruRangeAt, header.lru.range);
  PutAt(out, kLruQuantumAt, header.lru.quantum_steps);
  PutAt(out, kSeedAt, header.seed);
  std::copy(header.algorithm.begin(), header.algorithm.end(), out.begin() + kAlgorithmAt);
  PutAt(out, kCrcAt, disk::Crc32c(out.first(kCrcAt)));
}

absl::StatusOr<AccessTraceHeader> DecodeAccessHeader(std::span<const uint8_t> bytes) {
  if (!LooksLikeAccessTrace(bytes) || bytes.size() < kAccessHeaderBytes) {
    return absl::InvalidArgumentError("not a page-access trace");
  }
  if (const auto version = GetAt<uint32_t>(bytes, kVersionAt); version != kAccessTraceVersion) {
    return absl::UnimplementedError("page-access trace of version " + std::to_string(version) +
                                    ", this build reads " + std::to_string(kAccessTraceVersion));
  }
  if (GetAt<uint32_t>(bytes, kCrcAt) != disk::Crc32c(bytes.first(kCrcAt))) {
    return absl::DataLossError("header of the page-access trace is damaged");
  }
  AccessTraceHeader header;
  header.geometry.num_layers = GetAt<uint32_t>(bytes, kLayersAt);
  header.geometry.num_kv_heads = GetAt<uint32_t>(bytes, kHeadsAt);
  header.geometry.head_dim = GetAt<uint32_t>(bytes, kHeadDimAt);
  const auto element = GetAt<uint32_t>(bytes, kElementAt);
  header.geometry.type = element == kElementBf16 ? DType::kBF16 : DType::kF32;
  header.lru.range = GetAt<uint32_t>(bytes, kLruRangeAt);
  header.lru.quantum_steps = GetAt<uint32_t>(bytes, kLruQuantumAt);
  header.seed = GetAt<uint64_t>(bytes, kSeedAt);
  const auto name = bytes.subspan(kAlgorithmAt, kAlgorithmBytes);
  header.algorithm.assign(name.begin(), std::find(name.begin(), name.end(), uint8_t{0}));
  SPINDLE_RETURN_IF_ERROR(ValidateAccessHeader(header));
  if (GetAt<uint32_t>(bytes, kHeaderBytesAt) != kAccessHeaderBytes ||
      (element != kElementF32 && element != kElementBf16) ||
      GetAt<uint32_t>(bytes, kPageTokensAt) != header.geometry.page_tokens()) {
    return absl::InvalidArgumentError("fields of the page-access trace contradict each other");
  }
  return header;
}

void EncodeAccessRecord(const AccessRecord& record, std::vector<uint8_t>* out) {
  const size_t hit_bytes = record.hit_bits.size();
  SPINDLE_CHECK(record.ids.size() <= kMaxRecordIds && HasNumIds(record.kind, record.ids.size()));
  SPINDLE_CHECK(hit_bytes == 0 ||
                (record.kind == AccessKind::kSelect && hit_bytes == (record.ids.size() + 7) / 8));
  const size_t begin = out->size();
  out->resize(begin + kAccessRecordBytes);
  const std::span<uint8_t> fixed = std::span(*out).subspan(begin);
  PutAt(fixed, 0, record.step);
  PutAt(fixed, kRequestAt, record.request);
  PutAt(fixed, kLayerAt, record.layer);
  PutAt(fixed, kHeadAt, record.head);
  PutAt(fixed, kKindAt, static_cast<uint8_t>(KindByte(record) | (hit_bytes > 0 ? kHasHits : 0)));
  PutAt(fixed, kCountAt, static_cast<uint16_t>(record.ids.size()));
  uint32_t next = 0;  // smallest id that may follow
  for (const uint32_t id : record.ids) {
    SPINDLE_CHECK(id >= next && id < FrameWord::kMaxPages);
    PutVarint(id - next, out);
    next = id + 1;
  }
  out->insert(out->end(), record.hit_bits.begin(), record.hit_bits.end());
}

bool DecodeAccessRecord(const KvGeometry& geometry,
                        std::span<const uint8_t>* bytes,
                        std::vector<uint32_t>* ids,
                        AccessRecord* record) {
  if (bytes->size() < kAccessRecordBytes) {
    return false;
  }
  const auto kind = GetAt<uint8_t>(*bytes, kKindAt);
  const auto count = GetAt<uint16_t>(*bytes, kCountAt);
  record->step = GetAt<uint32_t>(*bytes, 0);
  record->request = GetAt<uint16_t>(*bytes, kRequestAt);
  record->layer = GetAt<uint16_t>(*bytes, kLayerAt);
  record->head = GetAt<uint8_t>(*bytes, kHeadAt);
  record->kind = static_cast<AccessKind>(kind & kKindMask);
  record->caching = static_cast<Caching>((kind & kCachingMask) >> kCachingShift);
  if (record->caching > Caching::kStream || kind != (KindByte(*record) | (kind & kHasHits)) ||
      !HasNumIds(record->kind, count) || !IsPlace(geometry, *record)) {
    return false;
  }
  *bytes = bytes->subspan(kAccessRecordBytes);
  ids->clear();
  uint32_t next = 0;
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t delta = 0;
    if (!TakeVarint(bytes, &delta) || delta >= FrameWord::kMaxPages - next) {
      return false;
    }
    ids->push_back(next + delta);
    next += delta + 1;
  }
  record->ids = *ids;
  record->hit_bits = {};
  if ((kind & kHasHits) != 0) {
    const size_t hit_bytes = (size_t{count} + 7) / 8;
    if (record->kind != AccessKind::kSelect || bytes->size() < hit_bytes || hit_bytes == 0 ||
        (count % 8 != 0 && (*bytes)[hit_bytes - 1] >> (count % 8) != 0)) {
      return false;
    }
    record->hit_bits = bytes->first(hit_bytes);
    *bytes = bytes->subspan(hit_bytes);
  }
  switch (record->kind) {
    case AccessKind::kResize:
      return ids->front() % kRunFrames == 0 && ids->front() <= BucketedLru::kMaxSlots;
    case AccessKind::kFork:
      return ids->front() <= kMaxRequestNumber && ids->front() != record->request;
    default:
      return true;
  }
}

}  // namespace spindle::kv
