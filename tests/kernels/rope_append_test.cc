// Rotation and append of every table against rotation in double, element by element.
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/codes.h"
#include "kernels/registry.h"
#include "support/random_seed.h"

namespace spindle::kernels {
namespace {

struct RopeShape {
  uint32_t head_dim;
  uint32_t rope_dim;
};

using RopeParam = std::tuple<Isa, DType, RopePairing, bool, RopeShape>;

constexpr uint32_t kQHeads = 3;
constexpr uint32_t kKvHeads = 2;
constexpr uint32_t kRows = 5;
constexpr int32_t kPositions[kRows] = {0, 1, 17, 4095, 8191};
constexpr float kEps = 1e-5F;

class RopeAppendTest : public testing::TestWithParam<RopeParam> {
 protected:
  void SetUp() override {
    table_ = FindKernels(std::get<0>(GetParam()));
    if (table_ == nullptr) {
      GTEST_SKIP() << "this CPU lacks the instruction set";
    }
    kv_type_ = std::get<1>(GetParam());
    d_ = std::get<4>(GetParam()).head_dim;
    const uint32_t rope_dim = std::get<4>(GetParam()).rope_dim;
    const uint32_t half = rope_dim / 2;
    cos_.resize(size_t{8192} * half, std::numeric_limits<float>::quiet_NaN());
    sin_ = cos_;
    for (const int32_t position : kPositions) {
      for (uint32_t i = 0; i < half; ++i) {
        const double angle = position * std::pow(10000.0, -2.0 * i / rope_dim);
        cos_[static_cast<size_t>(position) * half + i] = static_cast<float>(std::cos(angle));
        sin_[static_cast<size_t>(position) * half + i] = static_cast<float>(std::sin(angle));
      }
    }
    Fill(&q_, kRows * (kQHeads * d_ + 1));
    Fill(&k_, kRows * (kKvHeads * d_ + 2));
    Fill(&v_, kRows * (kKvHeads * d_ + 3));
    Fill(&q_norm_, d_);
    Fill(&k_norm_, d_);
    row_bytes_ = RowBytes(kv_type_, d_);
    // Slots in falling order; the last row is not stored. One byte of shift: stores may not assume
    // alignment.
    arena_.assign(kRows * 2 * kKvHeads * row_bytes_ + 1, 0xAB);
    for (uint32_t row = 0; row < kRows; ++row) {
      uint8_t* const k = arena_.data() + 1 + (kRows - 1 - row) * 2 * kKvHeads * row_bytes_;
      slots_.push_back(row == kRows - 1 ? KvSlot{nullptr, nullptr}
                                        : KvSlot{k, k + kKvHeads * row_bytes_});
    }
    const bool norm = std::get<3>(GetParam());
    q_out_.resize(kRows * kQHeads * d_);
    args_ = {.q = q_.data(),
             .k = k_.data(),
             .v = v_.data(),
             .q_stride = kQHeads * d_ + 1,
             .k_stride = kKvHeads * d_ + 2,
             .v_stride = kKvHeads * d_ + 3,
             .q_norm = norm ? q_norm_.data() : nullptr,
             .k_norm = norm ? k_norm_.data() : nullptr,
             .norm_eps = kEps,
             .rope_cos = cos_.data(),
             .rope_sin = sin_.data(),
             .positions = kPositions,
             .slots = slots_.data(),
             .head_stride_bytes = row_bytes_,
             .q_out = q_out_.data(),
             .q_out_stride = kQHeads * d_,
             .num_rows = kRows,
             .num_q_heads = kQHeads,
             .num_kv_heads = kKvHeads,
             .head_dim = d_,
             .rope_dim = rope_dim,
             .pairing = std::get<2>(GetParam()),
             .kv_type = kv_type_};
  }

  void Fill(std::vector<float>* values, size_t count) {
    std::normal_distribution<float> normal;
    values->resize(count);
    for (float& value : *values) {
      value = normal(rng_);
    }
  }

  // The rotated head in double, and per element the magnitude that its rounding errors scale with.
  void Expected(const float* in,
                const float* weight,
                int32_t position,
                std::vector<double>* out,
                std::vector<double>* magnitude) const {
    double squares = 0;
    for (uint32_t i = 0; i < d_; ++i) {
      squares += double{in[i]} * double{in[i]};
    }
    const double scale = weight == nullptr ? 1.0 : 1.0 / std::sqrt(squares / d_ + double{kEps});
    std::vector<double> x(d_);
    for (uint32_t i = 0; i < d_; ++i) {
      x[i] = in[i] * scale * (weight == nullptr ? 1.0 : double{weight[i]});
    }
    *out = x;
    magnitude->resize(d_);
    for (uint32_t i = 0; i < d_; ++i) {
      (*magnitude)[i] = std::fabs(x[i]);
    }
    const uint32_t half = args_.rope_dim / 2;
    for (uint32_t i = 0; i < half; ++i) {
      const bool split = args_.pairing == RopePairing::kHalfSplit;
      const uint32_t a = split ? i : 2 * i;
      const uint32_t b = split ? i + half : 2 * i + 1;
      const double c = double{cos_[static_cast<size_t>(position) * half + i]};
      const double s = double{sin_[static_cast<size_t>(position) * half + i]};
      (*out)[a] = x[a] * c - x[b] * s;
      (*out)[b] = x[a] * s + x[b] * c;
      (*magnitude)[a] = (*magnitude)[b] = std::fabs(x[a]) + std::fabs(x[b]);
    }
  }

  // One stored element.
  double Stored(const uint8_t* row, uint32_t i) const {
    return double{LoadFloat(kv_type_, row, i)};
  }

  const KernelTable* table_ = nullptr;
  DType kv_type_ = DType::kBF16;
  uint32_t d_ = 0;
  size_t row_bytes_ = 0;
  std::vector<float> cos_, sin_, q_, k_, v_, q_norm_, k_norm_, q_out_;
  std::vector<uint8_t> arena_;
  std::vector<KvSlot> slots_;
  RopeAppendArgs args_{};
  std::mt19937 rng_{static_cast<uint32_t>(test::RandomSeed(1))};
};

TEST_P(RopeAppendTest, MatchesRotationInDouble) {
  ASSERT_EQ(table_->rope_append(args_, {0, kRows}, nullptr), kOk);
  // Norm: d/16 + 8 roundings of the sum, a handful more; rotation: three.
  const double relative = (d_ / 16 + 24) * 0x1p-24;
  const double storage = kv_type_ == DType::kBF16 ? 0x1p-8 : 0.0;
  std::vector<double> expected;
  std::vector<double> magnitude;
  for (uint32_t row = 0; row < kRows; ++row) {
    for (uint32_t h = 0; h < kQHeads; ++h) {
      const float* const in = q_.data() + row * args_.q_stride + h * d_;
      Expected(in, args_.q_norm, kPositions[row], &expected, &magnitude);
      for (uint32_t i = 0; i < d_; ++i) {
        ASSERT_NEAR(
            double{q_out_[(row * kQHeads + h) * d_ + i]}, expected[i], magnitude[i] * relative);
      }
    }
    for (uint32_t h = 0; slots_[row].k != nullptr && h < kKvHeads; ++h) {
      const float* const in = k_.data() + row * args_.k_stride + h * d_;
      Expected(in, args_.k_norm, kPositions[row], &expected, &magnitude);
      for (uint32_t i = 0; i < d_; ++i) {
        ASSERT_NEAR(Stored(slots_[row].k + h * row_bytes_, i),
                    expected[i],
                    magnitude[i] * relative + std::fabs(expected[i]) * storage * 1.01);
        const float value = v_[row * args_.v_stride + h * d_ + i];
        const float stored = kv_type_ == DType::kF32 ? value : Bf16ToFloat(FloatToBf16(value));
        ASSERT_EQ(Stored(slots_[row].v + h * row_bytes_, i), double{stored});
      }
    }
  }
}

TEST_P(RopeAppendTest, RowsAreIndependentAndQueriesMayBeRotatedInPlace) {
  ASSERT_EQ(table_->rope_append(args_, {0, kRows}, nullptr), kOk);
  const std::vector<uint8_t> whole = arena_;
  const std::vector<float> q_whole = q_out_;
  std::fill(arena_.begin(), arena_.end(), uint8_t{0xAB});
  args_.q_out = q_.data();
  args_.q_out_stride = args_.q_stride;
  for (uint32_t row = kRows; row-- > 0;) {
    ASSERT_EQ(table_->rope_append(args_, {row, row + 1}, nullptr), kOk);
  }
  EXPECT_EQ(arena_, whole);
  for (uint32_t row = 0; row < kRows; ++row) {
    for (uint32_t i = 0; i < kQHeads * d_; ++i) {
      ASSERT_EQ(q_[row * args_.q_stride + i], q_whole[row * kQHeads * d_ + i]);
    }
  }
}

TEST_P(RopeAppendTest, NanStaysInItsRow) {
  k_[args_.k_stride + 3] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_EQ(table_->rope_append(args_, {0, kRows}, nullptr), kOk);
  bool found = false;
  for (uint32_t row = 0; row + 1 < kRows; ++row) {
    for (uint32_t i = 0; i < d_; ++i) {
      const bool is_nan = std::isnan(Stored(slots_[row].k, i));
      EXPECT_TRUE(row == 1 || !is_nan);
      found = found || is_nan;
    }
  }
  EXPECT_TRUE(found);
}

TEST_P(RopeAppendTest, RefusesImpossibleShapes) {
  RopeAppendArgs bad = args_;
  bad.rope_dim = 63;
  EXPECT_EQ(table_->rope_append(bad, {0, 0}, nullptr), kInvalidArgument);
  bad.rope_dim = args_.head_dim + 2;
  EXPECT_EQ(table_->rope_append(bad, {0, 0}, nullptr), kInvalidArgument);
  bad = args_;
  bad.kv_type = DType::kF16;
  EXPECT_EQ(table_->rope_append(bad, {0, 0}, nullptr), kInvalidArgument);
}

std::string RopeName(const testing::TestParamInfo<RopeParam>& info) {
  static constexpr const char* kIsaNames[] = {"Reference", "Baseline", "Avx2", "Avx512", "Amx"};
  const RopeShape shape = std::get<4>(info.param);
  return std::string(kIsaNames[static_cast<size_t>(std::get<0>(info.param))]) +
         std::string(Describe(std::get<1>(info.param)).name) +
         (std::get<2>(info.param) == RopePairing::kHalfSplit ? "HalfSplit" : "Adjacent") +
         (std::get<3>(info.param) ? "Norm" : "Plain") + std::to_string(shape.head_dim) + "Of" +
         std::to_string(shape.rope_dim);
}

INSTANTIATE_TEST_SUITE_P(
    Tables,
    RopeAppendTest,
    testing::Combine(
        testing::Values(Isa::kReference, Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAmx),
        testing::Values(DType::kBF16, DType::kF32),
        testing::Values(RopePairing::kHalfSplit, RopePairing::kAdjacent),
        testing::Bool(),
        testing::Values(RopeShape{64, 64}, RopeShape{80, 32}, RopeShape{128, 126})),
    RopeName);

}  // namespace
}  // namespace spindle::kernels
