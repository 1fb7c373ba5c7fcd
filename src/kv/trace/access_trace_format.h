// Byte layout of page-access traces (docs/formats.md): header, blocks, records. Internal to the
// writer and the reader of access_trace.h. Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kv/disk/byte_codec.h"
#include "kv/trace/access_trace.h"

namespace spindle::kv {

inline constexpr disk::Magic kAccessTraceMagic = disk::MakeMagic("SPKVPGTR");
inline constexpr uint32_t kAccessTraceVersion = 1;
inline constexpr size_t kAccessHeaderBytes = 128;

// A part of the file with a checksum of its own: 16 bytes of header, records, CRC.
inline constexpr uint32_t kAccessBlockMagic = 0x4B424750;  // "PGBK"
inline constexpr size_t kAccessBlockHeaderBytes = 16;
inline constexpr size_t kAccessBlockMinBytes = kAccessBlockHeaderBytes + sizeof(uint32_t);
inline constexpr uint32_t kMaxBlockPayloadBytes = 1U << 20;

enum AccessBlockFlags : uint32_t {
  kLastBlock = 1,   // nothing follows
  kCutByLimit = 2,  // records were dropped behind it; with kLastBlock
  kKnownBlockFlags = 3,
};

inline constexpr size_t kAccessRecordBytes = 12;  // without ids and hits
inline constexpr uint32_t kMaxRequestNumber = 65535;

void EncodeAccessHeader(const AccessTraceHeader& header,
                        std::span<uint8_t, kAccessHeaderBytes> out);

// ERRORS: those of AccessTraceReader::Open.
[[nodiscard]] absl::StatusOr<AccessTraceHeader> DecodeAccessHeader(std::span<const uint8_t> bytes);

// ERRORS: kInvalidArgument naming the field and its range.
[[nodiscard]] absl::Status ValidateAccessHeader(const AccessTraceHeader& header);

// Appends the record to `out`. REQUIRES: as AccessTraceWriter::Append.
void EncodeAccessRecord(const AccessRecord& record, std::vector<uint8_t>* out);

// Takes a record from the front of `bytes`; `record->ids` lie in `ids`, hit bits in the bytes.
// False (nothing defined) when the bytes are no record of this geometry.
[[nodiscard]] bool DecodeAccessRecord(const KvGeometry& geometry,
                                      std::span<const uint8_t>* bytes,
                                      std::vector<uint32_t>* ids,
                                      AccessRecord* record);

}  // namespace spindle::kv
