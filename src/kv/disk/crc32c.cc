#include "kv/disk/crc32c.h"

#include <array>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace spindle::kv::disk {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected
constexpr size_t kSlices = 8;

using Tables = std::array<std::array<uint32_t, 256>, kSlices>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    }
    tables[0][byte] = crc;
  }
  for (size_t slice = 1; slice < kSlices; ++slice) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t previous = tables[slice - 1][byte];
      tables[slice][byte] = (previous >> 8) ^ tables[0][previous & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

#if defined(__x86_64__)

// Bytes of one of the three streams below. The instruction has a latency of three cycles and starts
// one per cycle, so three independent streams keep it busy.
constexpr size_t kStreamBytes = 4096;

// What appending kStreamBytes zero bytes does to a CRC register, as four tables by byte of the
// register.
using ShiftTables = std::array<std::array<uint32_t, 256>, 4>;

ShiftTables MakeShiftTables() {
  // Column i: the register that bit i becomes. The map is linear over GF(2).
  std::array<uint32_t, 32> columns{};
  for (size_t bit = 0; bit < 32; ++bit) {
    uint32_t crc = uint32_t{1} << bit;
    for (size_t byte = 0; byte < kStreamBytes; ++byte) {
      crc = (crc >> 8) ^ kTables[0][crc & 0xff];
    }
    columns[bit] = crc;
  }
  ShiftTables tables{};
  for (size_t part = 0; part < 4; ++part) {
    for (size_t value = 0; value < 256; ++value) {
      for (size_t bit = 0; bit < 8; ++bit) {
        if ((value >> bit & 1) != 0) {
          tables[part][value] ^= columns[8 * part + bit];
        }
      }
    }
  }
  return tables;
}

uint32_t Shift(const ShiftTables& tables, uint32_t crc) {
  return tables[0][crc & 0xff] ^ tables[1][crc >> 8 & 0xff] ^ tables[2][crc >> 16 & 0xff] ^
         tables[3][crc >> 24];
}

uint64_t Load(const uint8_t* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

__attribute__((target("sse4.2"))) uint32_t Crc32cInstruction(std::span<const uint8_t> bytes,
                                                             uint32_t crc) {
  static const ShiftTables shift = MakeShiftTables();
  const uint8_t* data = bytes.data();
  size_t left = bytes.size();
  uint64_t first = ~crc;
  while (left >= 3 * kStreamBytes) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kStreamBytes; i += 8) {
      first = _mm_crc32_u64(first, Load(data + i));
      second = _mm_crc32_u64(second, Load(data + kStreamBytes + i));
      third = _mm_crc32_u64(third, Load(data + 2 * kStreamBytes + i));
    }
    first = Shift(shift, static_cast<uint32_t>(first)) ^ second;
    first = Shift(shift, static_cast<uint32_t>(first)) ^ third;
    data += 3 * kStreamBytes;
    left -= 3 * kStreamBytes;
  }
  for (; left >= 8; data += 8, left -= 8) {
    first = _mm_crc32_u64(first, Load(data));
  }
  auto tail = static_cast<uint32_t>(first);
  for (; left > 0; ++data, --left) {
    tail = _mm_crc32_u8(tail, *data);
  }
  return ~tail;
}

#endif

}  // namespace

uint32_t Crc32cPortable(std::span<const uint8_t> bytes, uint32_t crc) {
  crc = ~crc;
  const uint8_t* data = bytes.data();
  size_t left = bytes.size();
  for (; left >= kSlices; data += kSlices, left -= kSlices) {
    uint32_t mixed = 0;
    for (size_t i = 0; i < 4; ++i) {
      mixed ^= kTables[7 - i][data[i] ^ (crc >> (8 * i) & 0xff)];
      mixed ^= kTables[3 - i][data[4 + i]];
    }
    crc = mixed;
  }
  for (; left > 0; ++data, --left) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ *data) & 0xff];
  }
  return ~crc;
}

uint32_t Crc32c(std::span<const uint8_t> bytes, uint32_t crc) {
#if defined(__x86_64__)
  static const bool supported = __builtin_cpu_supports("sse4.2") != 0;
  if (supported) {
    return Crc32cInstruction(bytes, crc);
  }
#endif
  return Crc32cPortable(bytes, crc);
}

}  // namespace spindle::kv::disk
