// Byte layouts of the disk tier (docs/formats.md): superblock, segment header, records. The journal
// and the checkpoints are in log_format.h. All numbers are little-endian; every decoder accepts
// arbitrary bytes. Thread-safety: pure functions and value types.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/prefix_key.h"
#include "kv/disk/disk_files.h"
#include "kv/kv_geometry.h"
#include "kv/stripe_record.h"

namespace spindle::kv::disk {

// Readers refuse other versions and leave such files untouched.
inline constexpr uint32_t kFormatVersion = 1;

using StoreUuid = std::array<uint8_t, 16>;

// Whose KV a store holds. Two different identities never share a store.
struct StoreIdentity {
  Digest fingerprint{};  // model, adapter, tokenizer, KV type
  KvGeometry geometry;
  uint64_t numerics_class = 0;  // kernel family; changes when results may change
};

// ---- Superblock: the file STORE, 4 KiB.

struct Superblock {
  StoreIdentity identity;
  uint64_t segment_bytes = 0;
  StoreUuid uuid{};
};

void EncodeSuperblock(const Superblock& superblock, std::span<uint8_t, kAlignment> out);

// ERRORS: kInvalidArgument (not a superblock), kUnimplemented (another version), kDataLoss
// (checksum, or fields that contradict each other).
[[nodiscard]] absl::StatusOr<Superblock> DecodeSuperblock(std::span<const uint8_t> bytes);

[[nodiscard]] bool SameIdentity(const StoreIdentity& a, const StoreIdentity& b);

// ---- Segment header: the first 4 KiB of seg-XXXXXXXX.kv.

void EncodeSegmentHeader(const StoreUuid& uuid,
                         uint32_t number,
                         std::span<uint8_t, kAlignment> out);

// ERRORS: as for the superblock; kDataLoss also when it is another store's or another segment's.
[[nodiscard]] absl::Status CheckSegmentHeader(std::span<const uint8_t> bytes,
                                              const StoreUuid& uuid,
                                              uint32_t number);

// ---- Records.

enum class RecordKind : uint16_t {
  kStripe = 1,    // a sealed stripe, one extent per layer
  kOpenTail = 2,  // the last stripe of a sequence with fewer than 64 tokens, one extent per layer
  kSession = 3,   // a manifest (session_record.h), one extent
  kBlob = 4,      // opaque bytes, for example an index of a sparse algorithm; one extent
};

inline constexpr std::array<RecordKind, 4> kAllKinds = {
    RecordKind::kStripe, RecordKind::kOpenTail, RecordKind::kSession, RecordKind::kBlob};

[[nodiscard]] std::string_view KindName(RecordKind kind);

// The payload is a stripe as in memory, one extent per layer.
[[nodiscard]] inline bool HoldsStripe(RecordKind kind) {
  return kind == RecordKind::kStripe || kind == RecordKind::kOpenTail;
}

// What a record is found by. `sub_id` tells records with one key apart: 0 for stripes; the
// sequence's or session's number for tails; a hash of fingerprint and layer for blobs.
struct RecordId {
  Digest key{};
  RecordKind kind = RecordKind::kStripe;
  uint64_t sub_id = 0;

  bool operator==(const RecordId&) const = default;
};

enum RecordFlags : uint32_t {
  kLossyFlag = 1,  // the payload is not what was computed, bit for bit
};

// The header of a record but for its extent table, decoded.
struct RecordFields {
  RecordId id{};
  uint32_t flags = 0;
  uint32_t ordinal = 0;     // of the stripe in its sequence
  uint32_t num_tokens = 0;  // 64 for a stripe, 1 … 63 for a tail, else 0
  Digest parent{};          // key of the stripe before; of the root for the first
  MethodDigest method{};
  ContentChecksum checksum{};  // XXH3-128 of the payload
  uint64_t numerics_class = 0;
  uint64_t seq = 0;  // order of records over the life of the store
  uint64_t payload_bytes = 0;
  uint32_t num_extents = 1;
  std::array<TokenId, kStripeTokens> tokens{};  // zero behind num_tokens

  // The extents have equal lengths.
  [[nodiscard]] uint64_t extent_bytes() const { return payload_bytes / num_extents; }
};

// Most extents (layers) and bytes of a record.
inline constexpr uint32_t kMaxExtents = 4096;
inline constexpr uint64_t kMaxPayloadBytes = uint64_t{1} << 30;

// Bytes of the header of a record with this many extents: 4 KiB up to 223 extents.
[[nodiscard]] uint64_t HeaderBytes(uint32_t num_extents);

// Bytes of header and padded payload.
[[nodiscard]] uint64_t RecordBytes(const RecordFields& fields);

// Writes HeaderBytes(fields.num_extents) bytes with `extent_crcs` (CRC-32C per extent); returns the
// header's own CRC. REQUIRES: fields that CheckRecordFields accepts; one CRC per extent.
uint32_t EncodeRecordHeader(const RecordFields& fields,
                            std::span<const uint32_t> extent_crcs,
                            std::span<uint8_t> out);

// kInvalidArgument naming the first field out of range.
[[nodiscard]] absl::Status CheckRecordFields(const RecordFields& fields);

// The size of the header whose first 4 KiB are given, without further checks; 0 if it is none.
[[nodiscard]] uint64_t PeekHeaderBytes(std::span<const uint8_t> bytes);

// `bytes` is at least the whole header. ERRORS: kInvalidArgument (no record here), kUnimplemented
// (another version), kDataLoss (checksum, or fields that contradict each other).
[[nodiscard]] absl::StatusOr<RecordFields> DecodeRecordHeader(std::span<const uint8_t> bytes);

// The header's own checksum. REQUIRES: DecodeRecordHeader accepted the bytes.
[[nodiscard]] uint32_t HeaderCrc(std::span<const uint8_t> header);

// The expected CRC-32C of an extent. REQUIRES: DecodeRecordHeader accepted the bytes.
[[nodiscard]] uint32_t ExtentCrc(std::span<const uint8_t> header, uint32_t extent);

// kDataLoss naming the first extent whose checksum is wrong. REQUIRES: DecodeRecordHeader accepted
// `header`; payload.size() is its payload_bytes.
[[nodiscard]] absl::Status VerifyPayload(std::span<const uint8_t> header,
                                         const RecordFields& fields,
                                         std::span<const uint8_t> payload);

// XXH3-128, as in kv/kv_store.h.
[[nodiscard]] ContentChecksum ChecksumOf(std::span<const uint8_t> payload);

}  // namespace spindle::kv::disk
