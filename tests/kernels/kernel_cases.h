// Inputs and helpers shared by the kernel tests: every table of this CPU, random weights in file
// formats, and packed matrices that own their memory. Thread-safety: none needed; single-threaded
// tests.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/dtype.h"
#include "kernels/registry.h"

namespace spindle::kernels {

inline constexpr std::array kAllIsas = {
    Isa::kReference, Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};
inline constexpr std::array kAllTypes = {DType::kF32,
                                         DType::kF16,
                                         DType::kBF16,
                                         DType::kQ8_0,
                                         DType::kQ4_0,
                                         DType::kQ4_1,
                                         DType::kQ5_0,
                                         DType::kQ5_1,
                                         DType::kQ4_K,
                                         DType::kQ5_K,
                                         DType::kQ6_K};

inline std::string IsaName(Isa isa) {
  constexpr std::array kNames = {"Reference", "Baseline", "Avx2", "Avx512", "Amx"};
  return kNames.at(static_cast<size_t>(isa));
}

inline std::string IsaParamName(const testing::TestParamInfo<Isa>& info) {
  return IsaName(info.param);
}

// The table under test, or a skipped test that says which one is missing.
#define SPINDLE_TABLE_OR_SKIP(table, isa)                             \
  const KernelTable* const table = FindKernels(isa);                  \
  if ((table) == nullptr) {                                           \
    GTEST_SKIP() << "this CPU cannot run the table " << IsaName(isa); \
  }

// Zeroed memory aligned as kernels ask for.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t bytes)
      : bytes_((bytes + 63) / 64 * 64), data_(std::aligned_alloc(64, bytes_ + 64), &std::free) {
    std::memset(data_.get(), 0, bytes_ + 64);
  }

  [[nodiscard]] uint8_t* data() const { return static_cast<uint8_t*>(data_.get()); }

  [[nodiscard]] size_t size() const { return bytes_; }

 private:
  size_t bytes_;
  std::unique_ptr<void, decltype(&std::free)> data_;
};

// An Exec with its scratch, filled with NaN patterns so that unwritten scratch shows.
class TestExec {
 public:
  TestExec() : scratch_(kScratchBytes) {
    std::memset(scratch_.data(), 0xFF, kScratchBytes);
    exec_ = {
        .scratch = scratch_.data(), .scratch_bytes = kScratchBytes, .worker = 0, .stream = nullptr};
  }

  [[nodiscard]] Exec* get() { return &exec_; }

 private:
  AlignedBytes scratch_;
  Exec exec_{};
};

// fp16 bits of a value of magnitude 2^-7 … 2^-3.
inline uint16_t RandomHalf(std::mt19937& rng, bool negative_allowed) {
  const uint32_t sign = negative_allowed && (rng() & 1U) != 0 ? 0x8000U : 0U;
  return static_cast<uint16_t>(sign | ((8 + rng() % 4) << 10) | (rng() & 0x3FFU));
}

// Where the fp16 fields of a block lie, -1 = none.
struct HalfFields {
  int first;
  int second;
};

inline HalfFields HalfFieldsOf(DType type) {
  switch (type) {
    case DType::kQ6_K:
      return {208, -1};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    default:
      return {0, -1};
  }
}

// Rows in file layout: every code and sub-scale takes any value, fp16 fields stay moderate.
inline std::vector<uint8_t> RandomRows(DType type,
                                       uint32_t num_rows,
                                       uint32_t k,
                                       std::mt19937& rng) {
  const DTypeInfo info = Describe(type);
  std::vector<uint8_t> bytes(RowBytes(type, k) * num_rows);
  std::normal_distribution<float> normal;
  if (info.block_elements == 1) {
    for (size_t i = 0; i < bytes.size(); i += info.block_bytes) {
      const auto bits = std::bit_cast<uint32_t>(normal(rng));
      const uint16_t half =
          type == DType::kF16 ? RandomHalf(rng, true) : static_cast<uint16_t>(bits >> 16);
      std::memcpy(&bytes[i],
                  type == DType::kF32 ? static_cast<const void*>(&bits) : &half,
                  info.block_bytes);
    }
    return bytes;
  }
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(rng());
  }
  const HalfFields fields = HalfFieldsOf(type);
  for (size_t i = 0; i < bytes.size(); i += info.block_bytes) {
    for (const int field : {fields.first, fields.second}) {
      if (field >= 0) {
        const uint16_t half = RandomHalf(rng, true);
        std::memcpy(&bytes[i + static_cast<size_t>(field)], &half, sizeof(half));
      }
    }
  }
  return bytes;
}

inline std::vector<float> RandomFloats(size_t count, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(rng);
  }
  return values;
}

// A matrix packed by a table, with its source rows.
struct TestMatrix {
  TestMatrix(const KernelTable& table,
             DType type,
             ComputeMode mode,
             uint32_t num_outputs,
             uint32_t k,
             std::mt19937& rng)
      : source(RandomRows(type, num_outputs, k, rng)),
        packed(table.packed_bytes(type, num_outputs, k, mode)) {
    EXPECT_GT(table.packed_bytes(type, num_outputs, k, mode), 0U);
    const WorkRange all{0, NumPanels(num_outputs)};
    EXPECT_EQ(table.pack(type, source.data(), mode, num_outputs, k, packed.data(), all), kOk);
    matrix = {.data = packed.data(),
              .bytes = packed.size(),
              .num_outputs = num_outputs,
              .num_inputs = k,
              .source = type,
              .mode = mode,
              .row_format = table.row_format(type, mode)};
  }

  std::vector<uint8_t> source;
  AlignedBytes packed;
  PackedMatrix matrix{};
};

// Code of element i of a kInt8 row.
inline int32_t Int8Code(const uint8_t* row, uint32_t k, uint32_t i) {
  return kInt8HighUnit * static_cast<int8_t>(row[i]) + static_cast<int8_t>(row[k + i]);
}

// Rows prepared by a table.
struct TestRows {
  TestRows(const KernelTable& prepared_by,
           RowFormat row_format,
           uint32_t row_elements,
           uint32_t count,
           std::vector<float> row_values)
      : table(prepared_by),
        format(row_format),
        k(row_elements),
        values(std::move(row_values)),
        stride_bytes(PreparedRowBytes(format, k)),
        bytes(stride_bytes * count) {
    std::memset(bytes.data(), 0xFF, bytes.size());
    TestExec exec;
    const PrepareRowsArgs args{.x = values.data(),
                               .x_stride = k,
                               .k = k,
                               .num_rows = count,
                               .format = format,
                               .out = bytes.data(),
                               .out_stride_bytes = stride_bytes};
    EXPECT_EQ(table.prepare_rows(args, {0, count}, exec.get()), kOk);
  }

  // Rows [first, first + count) prepared by themselves.
  [[nodiscard]] TestRows Slice(uint32_t first, uint32_t count) const {
    const auto begin = values.begin() + std::ptrdiff_t{k} * first;
    return {table, format, k, count, std::vector<float>(begin, begin + std::ptrdiff_t{k} * count)};
  }

  // The same rows one after the other.
  [[nodiscard]] TestRows AsLines() const {
    const auto lines = format == RowFormat::kBf16Columns ? RowFormat::kBf16 : format;
    return {table, lines, k, static_cast<uint32_t>(values.size() / k), values};
  }

  const KernelTable& table;
  RowFormat format;
  uint32_t k;
  std::vector<float> values;
  size_t stride_bytes;
  AlignedBytes bytes;
};

}  // namespace spindle::kernels
