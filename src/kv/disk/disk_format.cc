#include "kv/disk/disk_format.h"

#include <algorithm>

#include <xxhash.h>

#include "base/status_macros.h"
#include "kv/disk/byte_codec.h"
#include "kv/disk/crc32c.h"

namespace spindle::kv::disk {
namespace {

constexpr Magic kStoreMagic = MakeMagic("SPNDLKV1");
constexpr Magic kSegmentMagic = MakeMagic("SPKVSEGM");
constexpr Magic kRecordMagic = MakeMagic("SPKVRECD");

// Common to all headers.
constexpr size_t kMagicAt = 0;
constexpr size_t kVersionAt = 8;
constexpr size_t kHeaderBytesAt = 12;

// Superblock and segment header end with their CRC.
constexpr size_t kPageCrcAt = kAlignment - sizeof(uint32_t);

namespace superblock {
constexpr size_t kFingerprint = 16;
constexpr size_t kStripeTokensAt = 48;
constexpr size_t kPageTokens = 52;
constexpr size_t kLayers = 56;
constexpr size_t kKvHeads = 60;
constexpr size_t kKeyDim = 64;
constexpr size_t kValueDim = 68;
constexpr size_t kElementFormat = 72;
constexpr size_t kLayoutId = 76;
constexpr size_t kHashId = 80;
constexpr size_t kAlignmentAt = 84;
constexpr size_t kSegmentBytes = 88;
constexpr size_t kNumericsClass = 96;
constexpr size_t kUuid = 104;
constexpr size_t kEnd = 120;
}  // namespace superblock

// Element formats on disk; the numbers of DType are no file format.
constexpr uint32_t kElementF32 = 1;
constexpr uint32_t kElementBf16 = 2;
// Layout 1: canonical stripes. Hash 1: SHA-256 chain with method.
constexpr uint32_t kLayoutId = 1;
constexpr uint32_t kHashId = 1;
constexpr uint64_t kMaxSegmentBytes = uint64_t{1} << 40;

namespace segment {
constexpr size_t kNumber = 16;
constexpr size_t kUuid = 24;
constexpr size_t kEnd = 40;
}  // namespace segment

namespace record {
constexpr size_t kKind = 16;
constexpr size_t kReserved = 18;
constexpr size_t kFlags = 20;
constexpr size_t kNumTokens = 24;
constexpr size_t kOrdinal = 28;
constexpr size_t kKey = 32;
constexpr size_t kParent = 64;
constexpr size_t kMethod = 96;
constexpr size_t kChecksum = 128;
constexpr size_t kSubId = 144;
constexpr size_t kSeq = 152;
constexpr size_t kPayloadBytes = 160;
constexpr size_t kNumericsClass = 168;
constexpr size_t kNumExtents = 176;
constexpr size_t kEnd = 180;
constexpr size_t kTokens = 256;
constexpr size_t kExtents = 512;
constexpr size_t kExtentEntryBytes = 16;
}  // namespace record

absl::Status CheckStart(std::span<const uint8_t> bytes, const Magic& magic, const char* what) {
  if (bytes.size() < kAlignment || GetAt<Magic>(bytes, kMagicAt) != magic) {
    return absl::InvalidArgumentError(std::string("not a ") + what);
  }
  if (const auto version = GetAt<uint32_t>(bytes, kVersionAt); version != kFormatVersion) {
    return absl::UnimplementedError(std::string(what) + " has format version " +
                                    std::to_string(version) + ", this build reads " +
                                    std::to_string(kFormatVersion));
  }
  return absl::OkStatus();
}

// Reserved bytes are zero, so that later versions can give them a meaning.
bool AllZero(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

absl::Status CheckPage(std::span<const uint8_t> bytes,
                       const Magic& magic,
                       size_t used_bytes,
                       const char* what) {
  SPINDLE_RETURN_IF_ERROR(CheckStart(bytes, magic, what));
  if (GetAt<uint32_t>(bytes, kHeaderBytesAt) != kAlignment ||
      GetAt<uint32_t>(bytes, kPageCrcAt) != Crc32c(bytes.first(kPageCrcAt)) ||
      !AllZero(bytes.subspan(used_bytes, kPageCrcAt - used_bytes))) {
    return absl::DataLossError(std::string("damaged ") + what);
  }
  return absl::OkStatus();
}

void StartPage(const Magic& magic, std::span<uint8_t> out) {
  std::fill(out.begin(), out.end(), uint8_t{0});
  PutAt(out, kMagicAt, magic);
  PutAt(out, kVersionAt, kFormatVersion);
  PutAt(out, kHeaderBytesAt, static_cast<uint32_t>(out.size()));
}

}  // namespace

bool SameIdentity(const StoreIdentity& a, const StoreIdentity& b) {
  return a.fingerprint == b.fingerprint && a.numerics_class == b.numerics_class &&
         a.geometry.num_layers == b.geometry.num_layers &&
         a.geometry.num_kv_heads == b.geometry.num_kv_heads &&
         a.geometry.head_dim == b.geometry.head_dim && a.geometry.type == b.geometry.type;
}

void EncodeSuperblock(const Superblock& block, std::span<uint8_t, kAlignment> out) {
  const KvGeometry& geometry = block.identity.geometry;
  StartPage(kStoreMagic, out);
  PutAt(out, superblock::kFingerprint, block.identity.fingerprint);
  PutAt(out, superblock::kStripeTokensAt, static_cast<uint32_t>(kStripeTokens));
  PutAt(out, superblock::kPageTokens, geometry.page_tokens());
  PutAt(out, superblock::kLayers, geometry.num_layers);
  PutAt(out, superblock::kKvHeads, geometry.num_kv_heads);
  PutAt(out, superblock::kKeyDim, geometry.head_dim);
  PutAt(out, superblock::kValueDim, geometry.head_dim);
  PutAt(
      out, superblock::kElementFormat, geometry.type == DType::kBF16 ? kElementBf16 : kElementF32);
  PutAt(out, superblock::kLayoutId, kLayoutId);
  PutAt(out, superblock::kHashId, kHashId);
  PutAt(out, superblock::kAlignmentAt, static_cast<uint32_t>(kAlignment));
  PutAt(out, superblock::kSegmentBytes, block.segment_bytes);
  PutAt(out, superblock::kNumericsClass, block.identity.numerics_class);
  PutAt(out, superblock::kUuid, block.uuid);
  PutAt(out, kPageCrcAt, Crc32c(out.first(kPageCrcAt)));
}

absl::StatusOr<Superblock> DecodeSuperblock(std::span<const uint8_t> bytes) {
  SPINDLE_RETURN_IF_ERROR(CheckPage(bytes, kStoreMagic, superblock::kEnd, "superblock"));
  Superblock block;
  KvGeometry& geometry = block.identity.geometry;
  block.identity.fingerprint = GetAt<Digest>(bytes, superblock::kFingerprint);
  block.identity.numerics_class = GetAt<uint64_t>(bytes, superblock::kNumericsClass);
  geometry.num_layers = GetAt<uint32_t>(bytes, superblock::kLayers);
  geometry.num_kv_heads = GetAt<uint32_t>(bytes, superblock::kKvHeads);
  geometry.head_dim = GetAt<uint32_t>(bytes, superblock::kKeyDim);
  const auto element = GetAt<uint32_t>(bytes, superblock::kElementFormat);
  geometry.type = element == kElementBf16 ? DType::kBF16 : DType::kF32;
  block.segment_bytes = GetAt<uint64_t>(bytes, superblock::kSegmentBytes);
  block.uuid = GetAt<StoreUuid>(bytes, superblock::kUuid);
  if ((element != kElementBf16 && element != kElementF32) || !ValidateGeometry(geometry).ok() ||
      GetAt<uint32_t>(bytes, superblock::kStripeTokensAt) != kStripeTokens ||
      GetAt<uint32_t>(bytes, superblock::kPageTokens) != geometry.page_tokens() ||
      GetAt<uint32_t>(bytes, superblock::kValueDim) != geometry.head_dim ||
      GetAt<uint32_t>(bytes, superblock::kLayoutId) != kLayoutId ||
      GetAt<uint32_t>(bytes, superblock::kHashId) != kHashId ||
      GetAt<uint32_t>(bytes, superblock::kAlignmentAt) != kAlignment ||
      block.segment_bytes % kAlignment != 0 || block.segment_bytes == 0 ||
      block.segment_bytes > kMaxSegmentBytes) {
    return absl::DataLossError("superblock with fields that this build cannot use");
  }
  return block;
}

void EncodeSegmentHeader(const StoreUuid& uuid,
                         uint32_t number,
                         std::span<uint8_t, kAlignment> out) {
  StartPage(kSegmentMagic, out);
  PutAt(out, segment::kNumber, number);
  PutAt(out, segment::kUuid, uuid);
  PutAt(out, kPageCrcAt, Crc32c(out.first(kPageCrcAt)));
}

absl::Status CheckSegmentHeader(std::span<const uint8_t> bytes,
                                const StoreUuid& uuid,
                                uint32_t number) {
  SPINDLE_RETURN_IF_ERROR(CheckPage(bytes, kSegmentMagic, segment::kEnd, "segment header"));
  if (GetAt<uint32_t>(bytes, segment::kNumber) != number ||
      GetAt<StoreUuid>(bytes, segment::kUuid) != uuid) {
    return absl::DataLossError("segment of another store or number");
  }
  return absl::OkStatus();
}

std::string_view KindName(RecordKind kind) {
  switch (kind) {
    case RecordKind::kStripe:
      return "stripe";
    case RecordKind::kOpenTail:
      return "tail";
    case RecordKind::kSession:
      return "session";
    case RecordKind::kBlob:
      return "blob";
  }
  return "?";
}

uint64_t HeaderBytes(uint32_t num_extents) {
  return RoundUp(record::kExtents + record::kExtentEntryBytes * num_extents + sizeof(uint32_t));
}

uint64_t RecordBytes(const RecordFields& fields) {
  return HeaderBytes(fields.num_extents) + RoundUp(fields.payload_bytes);
}

absl::Status CheckRecordFields(const RecordFields& fields) {
  const auto bad = [](const char* what) {
    return absl::InvalidArgumentError(std::string("record: ") + what);
  };
  const RecordKind kind = fields.id.kind;
  if (std::find(kAllKinds.begin(), kAllKinds.end(), kind) == kAllKinds.end()) {
    return bad("kind must be 1..4");
  }
  if ((fields.flags & ~uint32_t{kLossyFlag}) != 0) {
    return bad("unknown flags");
  }
  const uint32_t num_tokens = fields.num_tokens;
  const bool tokens_fit = kind == RecordKind::kStripe     ? num_tokens == kStripeTokens
                          : kind == RecordKind::kOpenTail ? num_tokens - 1 < kStripeTokens - 1
                                                          : num_tokens == 0;
  if (!tokens_fit) {
    return bad("number of tokens does not fit the kind");
  }
  if (std::any_of(fields.tokens.begin() + num_tokens, fields.tokens.end(), [](TokenId token) {
        return token != 0;
      })) {
    return bad("tokens beyond their number");
  }
  if (fields.payload_bytes == 0 || fields.payload_bytes > kMaxPayloadBytes) {
    return bad("payload must have 1..2^30 bytes");
  }
  if (fields.num_extents == 0 || fields.num_extents > kMaxExtents) {
    return bad("extents must be 1..4096");
  }
  if (HoldsStripe(kind) ? fields.payload_bytes % (fields.num_extents * kAlignment) != 0
                        : fields.num_extents != 1) {
    return bad("extents do not tile the payload");
  }
  return absl::OkStatus();
}

uint32_t EncodeRecordHeader(const RecordFields& fields,
                            std::span<const uint32_t> extent_crcs,
                            std::span<uint8_t> out) {
  const uint64_t header_bytes = HeaderBytes(fields.num_extents);
  SPINDLE_CHECK(out.size() >= header_bytes && extent_crcs.size() == fields.num_extents);
  out = out.first(header_bytes);
  StartPage(kRecordMagic, out);
  PutAt(out, record::kKind, static_cast<uint16_t>(fields.id.kind));
  PutAt(out, record::kFlags, fields.flags);
  PutAt(out, record::kNumTokens, fields.num_tokens);
  PutAt(out, record::kOrdinal, fields.ordinal);
  PutAt(out, record::kKey, fields.id.key);
  PutAt(out, record::kParent, fields.parent);
  PutAt(out, record::kMethod, fields.method);
  PutAt(out, record::kChecksum, fields.checksum.low);
  PutAt(out, record::kChecksum + 8, fields.checksum.high);
  PutAt(out, record::kSubId, fields.id.sub_id);
  PutAt(out, record::kSeq, fields.seq);
  PutAt(out, record::kPayloadBytes, fields.payload_bytes);
  PutAt(out, record::kNumericsClass, fields.numerics_class);
  PutAt(out, record::kNumExtents, fields.num_extents);
  PutAt(out, record::kTokens, fields.tokens);
  uint64_t offset = header_bytes;
  for (uint32_t extent = 0; extent < fields.num_extents; ++extent) {
    const size_t at = record::kExtents + record::kExtentEntryBytes * extent;
    PutAt(out, at, static_cast<uint32_t>(offset / kAlignment));
    PutAt(out, at + 4, static_cast<uint32_t>(fields.extent_bytes()));
    PutAt(out, at + 8, extent_crcs[extent]);
    offset += fields.extent_bytes();
  }
  const uint32_t crc = Crc32c(out.first(header_bytes - sizeof(uint32_t)));
  PutAt(out, header_bytes - sizeof(uint32_t), crc);
  return crc;
}

uint64_t PeekHeaderBytes(std::span<const uint8_t> bytes) {
  if (!CheckStart(bytes, kRecordMagic, "record").ok()) {
    return 0;
  }
  const uint64_t header_bytes = GetAt<uint32_t>(bytes, kHeaderBytesAt);
  const uint64_t num_extents = GetAt<uint32_t>(bytes, record::kNumExtents);
  return num_extents > 0 && num_extents <= kMaxExtents &&
                 header_bytes == HeaderBytes(static_cast<uint32_t>(num_extents))
             ? header_bytes
             : 0;
}

absl::StatusOr<RecordFields> DecodeRecordHeader(std::span<const uint8_t> bytes) {
  SPINDLE_RETURN_IF_ERROR(CheckStart(bytes, kRecordMagic, "record"));
  const uint64_t header_bytes = PeekHeaderBytes(bytes);
  if (header_bytes == 0 || bytes.size() < header_bytes) {
    return absl::DataLossError("record header with a wrong size");
  }
  bytes = bytes.first(header_bytes);
  if (HeaderCrc(bytes) != Crc32c(bytes.first(header_bytes - sizeof(uint32_t)))) {
    return absl::DataLossError("record header with a wrong checksum");
  }
  RecordFields fields;
  fields.id.kind = static_cast<RecordKind>(GetAt<uint16_t>(bytes, record::kKind));
  fields.id.key = GetAt<Digest>(bytes, record::kKey);
  fields.id.sub_id = GetAt<uint64_t>(bytes, record::kSubId);
  fields.flags = GetAt<uint32_t>(bytes, record::kFlags);
  fields.num_tokens = GetAt<uint32_t>(bytes, record::kNumTokens);
  fields.ordinal = GetAt<uint32_t>(bytes, record::kOrdinal);
  fields.parent = GetAt<Digest>(bytes, record::kParent);
  fields.method = GetAt<MethodDigest>(bytes, record::kMethod);
  fields.checksum.low = GetAt<uint64_t>(bytes, record::kChecksum);
  fields.checksum.high = GetAt<uint64_t>(bytes, record::kChecksum + 8);
  fields.seq = GetAt<uint64_t>(bytes, record::kSeq);
  fields.payload_bytes = GetAt<uint64_t>(bytes, record::kPayloadBytes);
  fields.numerics_class = GetAt<uint64_t>(bytes, record::kNumericsClass);
  fields.num_extents = GetAt<uint32_t>(bytes, record::kNumExtents);
  fields.tokens = GetAt<std::array<TokenId, kStripeTokens>>(bytes, record::kTokens);
  if (absl::Status status = CheckRecordFields(fields); !status.ok()) {
    return absl::DataLossError(status.message());
  }
  uint64_t offset = header_bytes;
  for (uint32_t extent = 0; extent < fields.num_extents; ++extent) {
    const size_t at = record::kExtents + record::kExtentEntryBytes * extent;
    if (GetAt<uint32_t>(bytes, at) != offset / kAlignment ||
        GetAt<uint32_t>(bytes, at + 4) != fields.extent_bytes() ||
        GetAt<uint32_t>(bytes, at + 12) != 0) {
      return absl::DataLossError("record header with a wrong extent table");
    }
    offset += fields.extent_bytes();
  }
  const size_t table_end = record::kExtents + record::kExtentEntryBytes * fields.num_extents;
  if (GetAt<uint16_t>(bytes, record::kReserved) != 0 ||
      !AllZero(bytes.subspan(record::kEnd, record::kTokens - record::kEnd)) ||
      !AllZero(bytes.subspan(table_end, header_bytes - sizeof(uint32_t) - table_end))) {
    return absl::DataLossError("record header with reserved bytes in use");
  }
  return fields;
}

uint32_t HeaderCrc(std::span<const uint8_t> header) {
  return GetAt<uint32_t>(header, PeekHeaderBytes(header) - sizeof(uint32_t));
}

uint32_t ExtentCrc(std::span<const uint8_t> header, uint32_t extent) {
  return GetAt<uint32_t>(header, record::kExtents + record::kExtentEntryBytes * extent + 8);
}

absl::Status VerifyPayload(std::span<const uint8_t> header,
                           const RecordFields& fields,
                           std::span<const uint8_t> payload) {
  const uint64_t extent_bytes = fields.extent_bytes();
  for (uint32_t extent = 0; extent < fields.num_extents; ++extent) {
    if (Crc32c(payload.subspan(extent * extent_bytes, extent_bytes)) != ExtentCrc(header, extent)) {
      return absl::DataLossError("checksum of extent " + std::to_string(extent) + " is wrong");
    }
  }
  return absl::OkStatus();
}

ContentChecksum ChecksumOf(std::span<const uint8_t> payload) {
  const XXH128_hash_t hash = XXH3_128bits(payload.data(), payload.size());
  return {hash.low64, hash.high64};
}

}  // namespace spindle::kv::disk
