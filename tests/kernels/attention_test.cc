// Accuracy of attention: every table against exact arithmetic over the stored values.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/attention_support.h"
#include "support/random_seed.h"

namespace spindle::kernels {
namespace {

#ifdef SPINDLE_SANITIZED
// The fp64 reference over long contexts takes minutes under a sanitizer and touches no new code
// there.
constexpr uint32_t kLengths[] = {1, 15, 16, 17, 63, 64, 65, 130};
#else
constexpr uint32_t kLengths[] = {1, 15, 16, 17, 63, 64, 65, 511, 1000, 1024, 1025, 2100};
#endif

// Every output within the bound that its roundings allow.
void ExpectWithinBound(const OracleResult& oracle, const AttentionResult& result) {
  ASSERT_EQ(oracle.out.size(), result.out.size());
  for (size_t i = 0; i < result.out.size(); ++i) {
    ASSERT_NEAR(double{result.out[i]}, oracle.out[i], oracle.bound[i] + 1e-30) << "output " << i;
  }
  for (size_t i = 0; i < result.lse.size(); ++i) {
    if (std::isinf(oracle.lse[i])) {
      ASSERT_EQ(double{result.lse[i]}, oracle.lse[i]) << "lse " << i;
    } else {
      ASSERT_NEAR(double{result.lse[i]}, oracle.lse[i], oracle.lse_bound[i]) << "lse " << i;
    }
  }
}

// Also the largest error within twice that of naive code in the same precision.
void ExpectAccurate(const AttentionCase& c, const AttentionResult& result) {
  const OracleResult oracle = Oracle(c);
  ExpectWithinBound(oracle, result);
  double error = 0;
  double naive_error = 0;
  for (size_t i = 0; i < oracle.out.size(); ++i) {
    error = std::max(error, std::fabs(double{result.out[i]} - oracle.out[i]));
    naive_error = std::max(naive_error, std::fabs(double{oracle.naive[i]} - oracle.out[i]));
  }
  EXPECT_LE(error, 2 * naive_error + 1e-5);
}

using GridParam = std::tuple<Isa, DType, HeadShape>;

class AttentionGridTest : public testing::TestWithParam<GridParam> {
 protected:
  void SetUp() override {
    table_ = FindKernels(std::get<0>(GetParam()));
    if (table_ == nullptr) {
      GTEST_SKIP() << "this CPU lacks the instruction set";
    }
    kv_type_ = std::get<1>(GetParam());
    shape_ = std::get<2>(GetParam());
    // KV heads are independent; two are enough.
    const uint32_t group = shape_.num_q_heads / shape_.num_kv_heads;
    shape_.num_kv_heads = std::min(shape_.num_kv_heads, 2U);
    shape_.num_q_heads = group * shape_.num_kv_heads;
  }

  const KernelTable* table_ = nullptr;
  DType kv_type_ = DType::kBF16;
  HeadShape shape_{};
  std::mt19937 rng_{static_cast<uint32_t>(test::RandomSeed(1))};
};

TEST_P(AttentionGridTest, DecodeMatchesExactArithmetic) {
  for (const uint32_t length : kLengths) {
    SCOPED_TRACE(length);
    const AttentionCase c = MakeCase(shape_, kv_type_, length, 1, rng_);
    ExpectAccurate(c, RunAttention(*table_, c, 2));
  }
}

TEST_P(AttentionGridTest, PrefillMatchesExactArithmetic) {
  for (const uint32_t length : kLengths) {
    SCOPED_TRACE(length);
    const uint32_t rows = std::min(length, length > 600 ? 5U : 70U);
    const AttentionCase c = MakeCase(shape_, kv_type_, length, rows, rng_);
    ExpectAccurate(c, RunAttention(*table_, c, 2));
  }
}

TEST_P(AttentionGridTest, WindowsHideOlderPositions) {
  for (const uint32_t window : {1U, 5U, 64U, 100U, 1000U}) {
    SCOPED_TRACE(window);
    AttentionCase c = MakeCase(shape_, kv_type_, 1100, 20, rng_);
    c.window = window;
    ExpectAccurate(c, RunAttention(*table_, c, 3));
  }
}

TEST_P(AttentionGridTest, DeadLanesMayHoldNan) {
  const auto is_live = [](uint32_t position) {
    return position % 7 != 3 && (position / 64) % 3 != 1 && position != 0;
  };
  for (const uint32_t rows : {1U, 40U}) {
    AttentionCase c = MakeCase(shape_, kv_type_, 700, rows, rng_);
    c.live = is_live;
    for (uint32_t h = 0; h < shape_.num_kv_heads; ++h) {
      for (uint32_t position = 0; position < 700; ++position) {
        for (uint32_t i = 0; !is_live(position) && i < shape_.head_dim; ++i) {
          c.kv[h].SetKey(position, i, std::numeric_limits<float>::quiet_NaN());
          c.kv[h].SetValue(position, i, std::numeric_limits<float>::infinity());
        }
      }
      c.runs[h] = c.kv[h].Runs(is_live);
    }
    ExpectAccurate(c, RunAttention(*table_, c, 2));
  }
}

TEST_P(AttentionGridTest, NothingLiveGivesZeroAndMinusInfinity) {
  AttentionCase c = MakeCase(shape_, kv_type_, 130, 3, rng_);
  c.live = [](uint32_t) { return false; };
  for (uint32_t h = 0; h < shape_.num_kv_heads; ++h) {
    c.runs[h] = c.kv[h].Runs(c.live);
  }
  const AttentionResult dead = RunAttention(*table_, c, 2);
  for (std::vector<KvRun>& runs : c.runs) {
    runs.clear();
  }
  const AttentionResult without_runs = RunAttention(*table_, c, 2);
  for (const AttentionResult* result : {&dead, &without_runs}) {
    EXPECT_THAT(result->out, testing::Each(0.0F));
    EXPECT_THAT(result->lse, testing::Each(-std::numeric_limits<float>::infinity()));
  }
}

TEST_P(AttentionGridTest, SoftCapAndExtremeScores) {
  AttentionCase c = MakeCase(shape_, kv_type_, 300, 20, rng_);
  c.softcap = 5.0F;
  ExpectAccurate(c, RunAttention(*table_, c, 2));
  // One key dominates by far, another is hopeless.
  c.softcap = 0;
  for (uint32_t i = 0; i < shape_.head_dim; ++i) {
    c.kv[0].SetKey(7, i, 100.0F * c.q[i]);
    c.kv[0].SetKey(8, i, -1000.0F * c.q[i]);
  }
  // Scores of thousands carry rounding errors that naive code may miss by luck.
  ExpectWithinBound(Oracle(c), RunAttention(*table_, c, 2));
}

TEST_P(AttentionGridTest, MisalignedAndRaggedRunsGiveTheSameBits) {
  const auto seed = static_cast<uint32_t>(test::RandomSeed(1)) + 1;
  std::mt19937 rng(seed);
  const size_t element = kv_type_ == DType::kBF16 ? 2 : 4;
  const auto is_live = [](uint32_t position) { return position % 11 != 5; };
  AttentionCase aligned = MakeCase(shape_, kv_type_, 333, 9, rng);
  rng.seed(seed);
  AttentionCase misaligned = MakeCase(shape_, kv_type_, 333, 9, rng, element);
  for (uint32_t h = 0; h < shape_.num_kv_heads; ++h) {
    aligned.runs[h] = aligned.kv[h].Runs(is_live);
    misaligned.runs[h] = misaligned.kv[h].RaggedRuns(is_live, rng);
  }
  const AttentionResult a = RunAttention(*table_, aligned, 2);
  const AttentionResult b = RunAttention(*table_, misaligned, 2);
  EXPECT_EQ(a.out, b.out);
  EXPECT_EQ(a.lse, b.lse);
}

std::string GridName(const testing::TestParamInfo<GridParam>& info) {
  static constexpr const char* kIsaNames[] = {"Reference", "Baseline", "Avx2", "Avx512", "Amx"};
  const HeadShape& shape = std::get<2>(info.param);
  return std::string(kIsaNames[static_cast<size_t>(std::get<0>(info.param))]) +
         std::string(Describe(std::get<1>(info.param)).name) + "Q" +
         std::to_string(shape.num_q_heads) + "Kv" + std::to_string(shape.num_kv_heads) + "D" +
         std::to_string(shape.head_dim);
}

INSTANTIATE_TEST_SUITE_P(
    Grid,
    AttentionGridTest,
    testing::Combine(
        testing::Values(Isa::kReference, Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAmx),
        testing::Values(DType::kBF16, DType::kF32),
        testing::Values(HeadShape{9, 3, 64},
                        HeadShape{32, 8, 128},
                        HeadShape{8, 8, 64},
                        HeadShape{5, 1, 128},
                        HeadShape{16, 1, 80},
                        HeadShape{4, 2, 96})),
    GridName);

}  // namespace
}  // namespace spindle::kernels
