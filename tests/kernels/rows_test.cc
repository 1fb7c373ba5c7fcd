// Row kernels of every table against fp64, for each operand format, row length and tail.
#include <cmath>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/codes.h"
#include "kernels/kernel_cases.h"
#include "support/random_seed.h"

namespace spindle::kernels {
namespace {

constexpr double kHalfUlp = 0x1p-24;

struct Case {
  Isa isa;
  RowFormat format;
};

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  constexpr std::array kNames = {"F32", "Bf16", "Int8"};
  return IsaName(info.param.isa) + kNames.at(static_cast<size_t>(info.param.format));
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const Isa isa : kAllIsas) {
    for (const RowFormat format : {RowFormat::kF32, RowFormat::kBf16, RowFormat::kInt8}) {
      cases.push_back({isa, format});
    }
  }
  return cases;
}

std::vector<uint32_t> RowLengths(RowFormat format) {
  if (format == RowFormat::kInt8) {
    return {32, 96, 576, 1536};
  }
  return {1, 15, 33, 64, 100, 576};
}

// Element i of a prepared row as it enters a product.
double Prepared(RowFormat format, const uint8_t* row, uint32_t k, uint32_t i) {
  if (format == RowFormat::kInt8) {
    const auto* scales = reinterpret_cast<const float*>(row + size_t{2} * k);
    return static_cast<double>(Int8Code(row, k, i)) * scales[i / kActivationBlock];
  }
  return LoadFloat(format == RowFormat::kF32 ? DType::kF32 : DType::kBF16, row, i);
}

// How far a prepared element may be from an exact value, given the largest magnitude of its block
// of 32 and a relative error of the value itself.
double Tolerance(RowFormat format, double value, double block_max, double relative) {
  const double own = relative * std::fabs(value);
  switch (format) {
    case RowFormat::kF32:
      return own + 1e-45;
    case RowFormat::kBf16:
      return own + std::fabs(value) * 0x1p-8 + 1e-38;
    case RowFormat::kBf16Columns:  // compared with kBf16 instead
      break;
    case RowFormat::kInt8:  // half a step, and the rounding of step and quotient
      return own + block_max * (1 + relative) * (0.5 / kInt8MaxCode + 4 * kHalfUlp);
  }
  return 0;
}

void ExpectPrepared(RowFormat format,
                    const uint8_t* row,
                    const std::vector<double>& expected,
                    double relative) {
  const auto k = static_cast<uint32_t>(expected.size());
  for (uint32_t i = 0; i < k; ++i) {
    double block_max = 0;
    for (uint32_t j = i / 32 * 32; j < std::min(k, i / 32 * 32 + 32); ++j) {
      block_max = std::max(block_max, std::fabs(expected[j]));
    }
    ASSERT_NEAR(Prepared(format, row, k, i),
                expected[i],
                Tolerance(format, expected[i], block_max, relative))
        << "element " << i << " of " << k;
  }
}

// The sums of an int8 row are scale · Σ codes, and what follows the row up to 64 bytes is zero.
void ExpectRowLayout(RowFormat format, const uint8_t* row, uint32_t k) {
  size_t used = (format == RowFormat::kF32 ? 4 : 2) * size_t{k};
  if (format == RowFormat::kInt8) {
    const auto* scales = reinterpret_cast<const float*>(row + size_t{2} * k);
    const float* sums = scales + k / kActivationBlock;
    for (uint32_t block = 0; block < k / kActivationBlock; ++block) {
      int32_t total = 0;
      for (uint32_t i = 0; i < kActivationBlock; ++i) {
        total += Int8Code(row, k, block * kActivationBlock + i);
      }
      ASSERT_EQ(sums[block], scales[block] * static_cast<float>(total)) << "block " << block;
    }
    used = size_t{2} * k + size_t{8} * (k / kActivationBlock);
  }
  for (size_t i = used; i < PreparedRowBytes(format, k); ++i) {
    ASSERT_EQ(row[i], 0) << "padding byte " << i;
  }
}

class RowsTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr uint32_t kRows = 5;

  // Fills `out_` by running rows [0, 2) and [2, 5) apart.
  void RunInTwoParts(uint32_t k, const std::function<int(uint8_t*, size_t, WorkRange)>& kernel) {
    stride_ = PreparedRowBytes(GetParam().format, k) + 64;
    out_ = std::make_unique<AlignedBytes>(stride_ * kRows);
    std::memset(out_->data(), 0xFF, out_->size());
    ASSERT_EQ(kernel(out_->data(), stride_, {0, 2}), kOk);
    ASSERT_EQ(kernel(out_->data(), stride_, {2, kRows}), kOk);
  }

  [[nodiscard]] const uint8_t* Row(uint32_t row) const { return out_->data() + stride_ * row; }

  std::mt19937 rng_{test::RandomSeed(1)};
  std::unique_ptr<AlignedBytes> out_;
  size_t stride_ = 0;
};

TEST_P(RowsTest, PrepareRoundsToTheNearestOperand) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam().isa);
  for (const uint32_t k : RowLengths(GetParam().format)) {
    const std::vector<float> x = RandomFloats(size_t{k} * kRows, rng_);
    RunInTwoParts(k, [&](uint8_t* out, size_t stride, WorkRange rows) {
      return table->prepare_rows({.x = x.data(),
                                  .x_stride = k,
                                  .k = k,
                                  .num_rows = kRows,
                                  .format = GetParam().format,
                                  .out = out,
                                  .out_stride_bytes = stride},
                                 rows,
                                 nullptr);
    });
    for (uint32_t row = 0; row < kRows; ++row) {
      const auto begin = x.begin() + row * k;
      ExpectPrepared(GetParam().format, Row(row), {begin, begin + k}, 0);
      ExpectRowLayout(GetParam().format, Row(row), k);
    }
  }
}

TEST_P(RowsTest, NormDividesByTheRootMeanSquareAndAppliesTheWeight) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam().isa);
  for (const uint32_t k : RowLengths(GetParam().format)) {
    const std::vector<float> x = RandomFloats(size_t{k} * kRows, rng_);
    const std::vector<float> weight = RandomFloats(k, rng_);
    for (const float* w : {weight.data(), static_cast<const float*>(nullptr)}) {
      RunInTwoParts(k, [&](uint8_t* out, size_t stride, WorkRange rows) {
        return table->norm_rows({.x = x.data(),
                                 .x_stride = k,
                                 .weight = w,
                                 .eps = 1e-5F,
                                 .k = k,
                                 .num_rows = kRows,
                                 .format = GetParam().format,
                                 .out = out,
                                 .out_stride_bytes = stride},
                                rows,
                                nullptr);
      });
      for (uint32_t row = 0; row < kRows; ++row) {
        double squares = 0;
        for (uint32_t i = 0; i < k; ++i) {
          squares += static_cast<double>(x[row * k + i]) * x[row * k + i];
        }
        const double factor = 1 / std::sqrt(squares / k + static_cast<double>(1e-5F));
        std::vector<double> expected(k);
        for (uint32_t i = 0; i < k; ++i) {
          expected[i] = x[row * k + i] * factor * (w == nullptr ? 1.0 : w[i]);
        }
        // k additions in one sum at worst, then mean, root, quotient and two products.
        ExpectPrepared(GetParam().format, Row(row), expected, (k / 2.0 + 8) * kHalfUlp);
      }
    }
  }
}

TEST_P(RowsTest, SwiGluMultipliesUpByTheGateTimesItsSigmoid) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam().isa);
  for (const uint32_t k : RowLengths(GetParam().format)) {
    std::vector<float> gate = RandomFloats(size_t{k} * kRows, rng_);
    const std::vector<float> up = RandomFloats(size_t{k} * kRows, rng_);
    for (size_t i = 0; i < gate.size(); i += 3) {
      gate[i] *= 20.0F;  // up to the range where the sigmoid is 0 or 1 to all bits
    }
    RunInTwoParts(k, [&](uint8_t* out, size_t stride, WorkRange rows) {
      return table->swiglu_rows({.gate = gate.data(),
                                 .up = up.data(),
                                 .stride = k,
                                 .k = k,
                                 .num_rows = kRows,
                                 .format = GetParam().format,
                                 .out = out,
                                 .out_stride_bytes = stride},
                                rows,
                                nullptr);
    });
    for (uint32_t row = 0; row < kRows; ++row) {
      std::vector<double> expected(k);
      for (uint32_t i = 0; i < k; ++i) {
        const double g = gate[row * k + i];
        expected[i] = g / (1 + std::exp(-g)) * up[row * k + i];
      }
      // The exponential is good to 4 ulp (its argument is rounded too: |g| ≤ 80 adds up to 2 per
      // reduction step).
      ExpectPrepared(GetParam().format, Row(row), expected, 16 * kHalfUlp);
    }
  }
}

TEST_P(RowsTest, AValueThatIsNotFiniteSpoilsItsRowOnly) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam().isa);
  const uint32_t k = 96;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> x = RandomFloats(size_t{k} * kRows, rng_);
    x[2 * k + 40] = bad;
    RunInTwoParts(k, [&](uint8_t* out, size_t stride, WorkRange rows) {
      return table->prepare_rows({.x = x.data(),
                                  .x_stride = k,
                                  .k = k,
                                  .num_rows = kRows,
                                  .format = GetParam().format,
                                  .out = out,
                                  .out_stride_bytes = stride},
                                 rows,
                                 nullptr);
    });
    for (uint32_t row = 0; row < kRows; ++row) {
      bool finite = true;
      for (uint32_t i = 0; i < k; ++i) {
        finite = finite && std::isfinite(Prepared(GetParam().format, Row(row), k, i));
      }
      EXPECT_EQ(finite, row != 2) << "row " << row;
    }
  }
}

TEST_P(RowsTest, TinyAndZeroBlocksStayFinite) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam().isa);
  const uint32_t k = 96;
  std::vector<float> x(size_t{k} * kRows, 0.0F);
  x[3] = 1e-40F;     // subnormal alone in its block
  x[40] = 0x1p-99F;  // just above what counts as zero
  x[41] = -0x1p-100F;
  RunInTwoParts(k, [&](uint8_t* out, size_t stride, WorkRange rows) {
    return table->prepare_rows({.x = x.data(),
                                .x_stride = k,
                                .k = k,
                                .num_rows = kRows,
                                .format = GetParam().format,
                                .out = out,
                                .out_stride_bytes = stride},
                               rows,
                               nullptr);
  });
  for (uint32_t i = 0; i < k; ++i) {
    const double value = Prepared(GetParam().format, Row(0), k, i);
    EXPECT_NEAR(value, x[i], 0x1p-99 * 0.5 / kInt8MaxCode + 0x1p-107) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RowsTest, testing::ValuesIn(AllCases()), CaseName);

class ColumnsTest : public testing::TestWithParam<Isa> {};

TEST_P(ColumnsTest, HoldThePairsOfTheRowsInterleavedByGroup) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  if (table->row_format(DType::kBF16, ComputeMode::kDefault) != RowFormat::kBf16Columns) {
    GTEST_SKIP() << "this table takes its rows one after the other";
  }
  std::mt19937 rng(test::RandomSeed(1));
  for (const uint32_t k : {1U, 33U, 100U, 576U}) {
    for (const uint32_t num_rows : {1U, 2U, 15U, 16U, 17U, 37U}) {
      SCOPED_TRACE(num_rows);
      const TestRows columns(
          *table, RowFormat::kBf16Columns, k, num_rows, RandomFloats(size_t{k} * num_rows, rng));
      const TestRows lines = columns.AsLines();
      for (uint32_t row = 0; row < num_rows; ++row) {
        const uint32_t first = row / kColumnGroupRows * kColumnGroupRows;
        const uint32_t n = std::min(num_rows - first, kColumnGroupRows);
        const uint8_t* const group = columns.bytes.data() + columns.stride_bytes * first;
        for (uint32_t pair = 0; pair < lines.stride_bytes / 4; ++pair) {
          ASSERT_EQ(0,
                    std::memcmp(group + size_t{4} * (pair * n + row - first),
                                lines.bytes.data() + lines.stride_bytes * row + size_t{4} * pair,
                                4))
              << "row " << row << " pair " << pair;
        }
      }
    }
  }
}

TEST_P(ColumnsTest, RangesThatCutAGroupAreRefused) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  if (table->row_format(DType::kBF16, ComputeMode::kDefault) != RowFormat::kBf16Columns) {
    GTEST_SKIP() << "this table takes its rows one after the other";
  }
  const std::vector<float> x(size_t{40} * 32);
  AlignedBytes out(size_t{40} * 64);
  TestExec exec;
  const PrepareRowsArgs args{.x = x.data(),
                             .x_stride = 32,
                             .k = 32,
                             .num_rows = 40,
                             .format = RowFormat::kBf16Columns,
                             .out = out.data(),
                             .out_stride_bytes = 64};
  EXPECT_EQ(table->prepare_rows(args, {16, 40}, exec.get()), kOk);
  EXPECT_EQ(table->prepare_rows(args, {0, 39}, exec.get()), kInvalidArgument);
  EXPECT_EQ(table->prepare_rows(args, {8, 40}, exec.get()), kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(All, ColumnsTest, testing::ValuesIn(kAllIsas), IsaParamName);

class EmbedTest : public testing::TestWithParam<Isa> {};

TEST_P(EmbedTest, CopiesTheDequantisedRowOfEachIdAndRefusesOthers) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  std::mt19937 rng(test::RandomSeed(1));
  for (const DType type : kAllTypes) {
    const uint32_t k = 512;
    const std::vector<uint8_t> rows = RandomRows(type, 7, k, rng);
    const std::vector<int32_t> ids = {6, 0, 3};
    std::vector<float> out(size_t{3} * (k + 1), -1.0F);
    EmbedRowsArgs args{.table = rows.data(),
                       .type = type,
                       .table_rows = 7,
                       .k = k,
                       .ids = ids.data(),
                       .num_rows = 3,
                       .out = out.data(),
                       .out_stride = k + 1};
    ASSERT_EQ(table->embed_rows(args, {0, 3}, nullptr), kOk);
    for (uint32_t row = 0; row < 3; ++row) {
      std::vector<float> expected(k);
      const auto id = static_cast<size_t>(ids[row]);
      ASSERT_EQ(table->dequantize_row(type, &rows[RowBytes(type, k) * id], k, expected.data()),
                kOk);
      ASSERT_EQ(0, std::memcmp(&out[row * (k + 1)], expected.data(), k * sizeof(float)));
      ASSERT_EQ(out[row * (k + 1) + k], -1.0F);
    }
    for (const int32_t bad : {-1, 7}) {
      args.ids = &bad;
      EXPECT_EQ(table->embed_rows(args, {0, 1}, nullptr), kInvalidArgument) << bad;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EmbedTest, testing::ValuesIn(kAllIsas), IsaParamName);

}  // namespace
}  // namespace spindle::kernels
