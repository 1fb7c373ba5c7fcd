// Products of every table × type × mode against fp64 sums, and the bit-equality laws of
// kernels/api/gemm.h.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/codes.h"
#include "kernels/kernel_cases.h"
#include "support/random_seed.h"

namespace spindle::kernels {
namespace {

constexpr float kUntouched = -12345.0F;

struct Case {
  Isa isa;
  DType type;
  ComputeMode mode;
};

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  return IsaName(info.param.isa) + std::string(Describe(info.param.type).name) +
         (info.param.mode == ComputeMode::kExact ? "Exact" : "Default");
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const Isa isa : kAllIsas) {
    for (const DType type : kAllTypes) {
      for (const ComputeMode mode : {ComputeMode::kDefault, ComputeMode::kExact}) {
        cases.push_back({isa, type, mode});
      }
    }
  }
  return cases;
}

std::vector<uint32_t> InputSizes(DType type) {
  switch (Describe(type).block_elements) {
    case 1:
      return {1, 7, 31, 64, 100, 576};
    case 32:
      return {32, 96, 576, 1536};
    default:
      return {256, 768, 1536};
  }
}

// Which rows of a product to compute, and how to cut its panels.
struct RowSlice {
  uint32_t first_row;
  uint32_t num_rows;
  std::vector<uint32_t> cuts;  // inner borders of the panel ranges, ascending
};

// Rows [first_row, first_row + num_rows) in a buffer of y_stride = n + 3 columns.
std::vector<float> Multiply(const KernelTable& table,
                            const TestMatrix& weights,
                            const TestRows& rows,
                            const RowSlice& run) {
  const TestRows x = rows.Slice(run.first_row, run.num_rows);
  const size_t stride = weights.matrix.num_outputs + 3;
  std::vector<float> y(stride * run.num_rows, kUntouched);
  const GemmArgs args{.weights = &weights.matrix,
                      .x = x.bytes.data(),
                      .x_stride_bytes = x.stride_bytes,
                      .y = y.data(),
                      .y_stride = stride,
                      .bias = nullptr,
                      .num_rows = run.num_rows,
                      .accumulate = false};
  const GemmGroup group{&args, 1};
  TestExec exec;
  uint32_t begin = 0;
  for (const uint32_t cut : run.cuts) {
    EXPECT_EQ(table.gemm(group, {begin, cut}, exec.get()), kOk);
    begin = cut;
  }
  EXPECT_EQ(table.gemm(group, {begin, GemmUnits(group)}, exec.get()), kOk);
  return y;
}

// An exact result and a bound on the rounding of one fp32 sum in ascending order.
struct Expected {
  double value;
  double bound;
};

constexpr double kHalfUlp = 0x1p-24;

Expected ExpectedInt8(const TestMatrix& weights, const uint8_t* x, uint32_t output) {
  const PackedMatrix& matrix = weights.matrix;
  const uint32_t k = matrix.num_inputs;
  const uint8_t* row = weights.source.data() + RowBytes(matrix.source, k) * output;
  std::vector<uint8_t> codes(k);
  DecodeCodes(matrix.source, row, k, codes.data());
  const auto* scales = reinterpret_cast<const float*>(x + size_t{2} * k);
  const uint32_t group_elements = GroupElements(matrix.source);
  double sum = 0;
  double magnitude = 0;
  for (uint32_t group = 0; group < k / group_elements; ++group) {
    float scale;
    float minimum;
    DecodeScale(matrix.source, row, group, &scale, &minimum);
    double part = 0;
    double minimum_part = 0;
    for (uint32_t i = group * group_elements; i < (group + 1) * group_elements; ++i) {
      const double value = static_cast<double>(Int8Code(x, k, i)) * scales[i / 32];
      part += value * scale * (codes[i] - ZeroCode(matrix.source));
      minimum_part += value * minimum;
    }
    sum += part + minimum_part;
    magnitude += std::fabs(part) + std::fabs(minimum_part);
  }
  // Per group: two additions, and three products that are rounded themselves.
  return {sum, (2.0 * k / group_elements + 4) * kHalfUlp * magnitude};
}

Expected ExpectedFloat(const TestMatrix& weights, const uint8_t* x, uint32_t output) {
  const PackedMatrix& matrix = weights.matrix;
  const uint32_t k = matrix.num_inputs;
  const uint8_t* row = weights.source.data() + RowBytes(matrix.source, k) * output;
  std::vector<float> values(k);
  EXPECT_EQ(kOk,
            FindKernels(Isa::kReference)->dequantize_row(matrix.source, row, k, values.data()));
  const bool bf16 = matrix.row_format != RowFormat::kF32;
  double sum = 0;
  double magnitude = 0;
  double doubt = 0;
  for (uint32_t i = 0; i < k; ++i) {
    const float weight = bf16 ? Bf16ToFloat(FloatToBf16(values[i])) : values[i];
    const double x_value = LoadFloat(bf16 ? DType::kBF16 : DType::kF32, x, i);
    const double product = weight * x_value;
    sum += product;
    magnitude += std::fabs(product);
    // A dequantised value may be an ulp of fp32 off, which matters where it lies half-way between
    // two bf16.
    if (bf16 && IsQuantised(matrix.source)) {
      const float below = Bf16ToFloat(FloatToBf16(values[i] * (1 - 0x1p-22F)));
      const float above = Bf16ToFloat(FloatToBf16(values[i] * (1 + 0x1p-22F)));
      doubt += std::fabs((above - below) * x_value);
    }
  }
  return {sum, (k + 1.0) * kHalfUlp * magnitude + doubt};
}

class GemmTest : public testing::TestWithParam<Case> {
 protected:
  std::mt19937 rng_{test::RandomSeed(1)};
};

TEST_P(GemmTest, AgreesWithExactSumsWithinTheRoundingOfOneAccumulator) {
  const Case& param = GetParam();
  SPINDLE_TABLE_OR_SKIP(table, param.isa);
  for (const uint32_t k : InputSizes(param.type)) {
    for (const uint32_t num_rows : {1U, 7U, 33U}) {
      const uint32_t num_outputs = 37;
      const TestMatrix weights(*table, param.type, param.mode, num_outputs, k, rng_);
      const RowFormat format = weights.matrix.row_format;
      const TestRows x(*table, format, k, num_rows, RandomFloats(size_t{k} * num_rows, rng_));
      const std::vector<float> y = Multiply(*table, weights, x, {0, num_rows, {}});
      const TestRows lines = x.AsLines();
      for (uint32_t row = 0; row < num_rows; ++row) {
        const uint8_t* prepared = lines.bytes.data() + lines.stride_bytes * row;
        for (uint32_t output = 0; output < num_outputs; ++output) {
          const Expected expected = format == RowFormat::kInt8
                                        ? ExpectedInt8(weights, prepared, output)
                                        : ExpectedFloat(weights, prepared, output);
          ASSERT_NEAR(y[(num_outputs + 3) * row + output], expected.value, expected.bound)
              << "k " << k << " row " << row << " of " << num_rows << " output " << output;
        }
        for (uint32_t column = num_outputs; column < num_outputs + 3; ++column) {
          ASSERT_EQ(y[(num_outputs + 3) * row + column], kUntouched);
        }
      }
    }
  }
}

TEST_P(GemmTest, ARowHasTheSameBitsInAnyCompanyAndForAnySplit) {
  const Case& param = GetParam();
  SPINDLE_TABLE_OR_SKIP(table, param.isa);
  constexpr uint32_t kRows = 49;
  const uint32_t num_outputs = 83;  // six panels, the last one 3 wide
  const uint32_t k = InputSizes(param.type)[2];
  const TestMatrix weights(*table, param.type, param.mode, num_outputs, k, rng_);
  const TestRows x(
      *table, weights.matrix.row_format, k, kRows, RandomFloats(size_t{k} * kRows, rng_));
  const std::vector<float> all = Multiply(*table, weights, x, {0, kRows, {}});
  const size_t stride = num_outputs + 3;
  const std::vector<RowSlice> runs = {{0, kRows, {1, 2, 3, 4, 5}},
                                      {0, kRows, {3}},
                                      {5, 2, {}},
                                      {4, 3, {1, 4}},
                                      {9, 4, {}},
                                      {3, 5, {1}},
                                      {40, 6, {5}},
                                      {11, 7, {}},
                                      {16, 8, {2}},
                                      {1, 9, {}},
                                      {30, 15, {}},
                                      {33, 16, {}},
                                      {20, 17, {1, 2}},
                                      {8, 31, {}},
                                      {17, 32, {}}};
  for (const RowSlice& run : runs) {
    const std::vector<float> part = Multiply(*table, weights, x, run);
    ASSERT_EQ(0,
              std::memcmp(part.data(), &all[stride * run.first_row], part.size() * sizeof(float)))
        << run.num_rows << " rows from " << run.first_row;
  }
  for (uint32_t row = 0; row < kRows; ++row) {
    const std::vector<float> alone = Multiply(*table, weights, x, {row, 1, {1, 4}});
    ASSERT_EQ(0, std::memcmp(alone.data(), &all[stride * row], stride * sizeof(float))) << row;
  }
}

TEST_P(GemmTest, BiasAndAccumulationAreAddedToTheFinishedSum) {
  const Case& param = GetParam();
  SPINDLE_TABLE_OR_SKIP(table, param.isa);
  const uint32_t num_outputs = 21;
  const uint32_t k = InputSizes(param.type)[1];
  const TestMatrix weights(*table, param.type, param.mode, num_outputs, k, rng_);
  for (const uint32_t num_rows : {1U, 13U}) {
    const TestRows x(
        *table, weights.matrix.row_format, k, num_rows, RandomFloats(size_t{k} * num_rows, rng_));
    const std::vector<float> plain = Multiply(*table, weights, x, {0, num_rows, {}});
    const std::vector<float> bias = RandomFloats(num_outputs, rng_);
    const std::vector<float> before = RandomFloats(size_t{num_outputs} * num_rows, rng_);
    std::vector<float> y = before;
    const GemmArgs args{.weights = &weights.matrix,
                        .x = x.bytes.data(),
                        .x_stride_bytes = x.stride_bytes,
                        .y = y.data(),
                        .y_stride = num_outputs,
                        .bias = bias.data(),
                        .num_rows = num_rows,
                        .accumulate = true};
    TestExec exec;
    ASSERT_EQ(table->gemm({&args, 1}, {0, 2}, exec.get()), kOk);
    for (uint32_t i = 0; i < num_rows * num_outputs; ++i) {
      const uint32_t output = i % num_outputs;
      const float sum = plain[(num_outputs + 3) * (i / num_outputs) + output] + bias[output];
      ASSERT_EQ(y[i], before[i] + sum) << "element " << i;
    }
  }
}

TEST_P(GemmTest, PartsOfAGroupShareOneRangeOfUnits) {
  const Case& param = GetParam();
  SPINDLE_TABLE_OR_SKIP(table, param.isa);
  const uint32_t k = InputSizes(param.type)[1];
  constexpr uint32_t kRows = 6;
  std::vector<std::unique_ptr<TestMatrix>> matrices;
  for (const uint32_t num_outputs : {33U, 16U, 5U}) {
    matrices.push_back(
        std::make_unique<TestMatrix>(*table, param.type, param.mode, num_outputs, k, rng_));
  }
  const TestRows x(
      *table, matrices[0]->matrix.row_format, k, kRows, RandomFloats(size_t{k} * kRows, rng_));
  std::vector<std::vector<float>> outputs(3);
  std::vector<GemmArgs> parts;
  for (size_t i = 0; i < 3; ++i) {
    const PackedMatrix& matrix = matrices[i]->matrix;
    outputs[i].assign(size_t{matrix.num_outputs + 3} * kRows, kUntouched);
    parts.push_back({.weights = &matrix,
                     .x = x.bytes.data(),
                     .x_stride_bytes = x.stride_bytes,
                     .y = outputs[i].data(),
                     .y_stride = matrix.num_outputs + 3,
                     .bias = nullptr,
                     .num_rows = kRows,
                     .accumulate = false});
  }
  const GemmGroup group{parts.data(), 3};
  ASSERT_EQ(GemmUnits(group), 5U);
  TestExec exec;
  ASSERT_EQ(table->gemm(group, {0, 2}, exec.get()), kOk);
  ASSERT_EQ(table->gemm(group, {2, 5}, exec.get()), kOk);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(outputs[i], Multiply(*table, *matrices[i], x, {0, kRows, {}})) << "part " << i;
  }
}

TEST_P(GemmTest, RowsThatAreNotFiniteSpoilOnlyThemselves) {
  const Case& param = GetParam();
  SPINDLE_TABLE_OR_SKIP(table, param.isa);
  const uint32_t num_outputs = 19;
  const uint32_t k = InputSizes(param.type)[2];
  const TestMatrix weights(*table, param.type, param.mode, num_outputs, k, rng_);
  for (const uint32_t num_rows : {3U, 21U}) {
    std::vector<float> values = RandomFloats(size_t{k} * num_rows, rng_);
    const TestRows clean_rows(*table, weights.matrix.row_format, k, num_rows, values);
    const std::vector<float> clean = Multiply(*table, weights, clean_rows, {0, num_rows, {}});
    values[k + k / 2] = std::numeric_limits<float>::quiet_NaN();
    const TestRows rows(*table, weights.matrix.row_format, k, num_rows, values);
    const std::vector<float> y = Multiply(*table, weights, rows, {0, num_rows, {}});
    for (uint32_t row = 0; row < num_rows; ++row) {
      for (uint32_t output = 0; output < num_outputs; ++output) {
        const size_t i = size_t{num_outputs + 3} * row + output;
        if (row == 1) {
          ASSERT_TRUE(std::isnan(y[i])) << "output " << output;
        } else {
          ASSERT_EQ(y[i], clean[i]) << "row " << row << " output " << output;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GemmTest, testing::ValuesIn(AllCases()), CaseName);

TEST(GemmArgumentsTest, RowLengthsThatAreNoWholeBlocksAreRefused) {
  for (const Isa isa : kAllIsas) {
    const KernelTable* table = FindKernels(isa);
    if (table == nullptr) {
      continue;
    }
    std::vector<uint8_t> bytes(4096);
    EXPECT_EQ(table->packed_bytes(DType::kQ4_1, 16, 48, ComputeMode::kDefault), 0U);
    EXPECT_EQ(table->packed_bytes(DType::kQ4_K, 16, 288, ComputeMode::kDefault), 0U);
    EXPECT_EQ(table->pack(
                  DType::kQ4_1, bytes.data(), ComputeMode::kDefault, 16, 48, bytes.data(), {0, 1}),
              kUnsupported);
    std::vector<float> row(48);
    EXPECT_EQ(table->dequantize_row(DType::kQ8_0, bytes.data(), 48, row.data()), kUnsupported);
  }
}

}  // namespace
}  // namespace spindle::kernels
