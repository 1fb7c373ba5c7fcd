// CRC-32C (Castagnoli), the checksum of all parts of the disk format. Uses the processor's
// instruction where there is one. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>

namespace spindle::kv::disk {

// CRC of `bytes`; `crc` continues an earlier one (Crc32c(b, Crc32c(a)) is the CRC of a followed by
// b).
[[nodiscard]] uint32_t Crc32c(std::span<const uint8_t> bytes, uint32_t crc = 0);

// The same by tables, on any processor.
[[nodiscard]] uint32_t Crc32cPortable(std::span<const uint8_t> bytes, uint32_t crc = 0);

}  // namespace spindle::kv::disk
