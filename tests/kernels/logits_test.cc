// Logits kernels of every table against sorting and sums in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/registry.h"
#include "support/random_seed.h"

namespace spindle::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr uint32_t kSizes[] = {1, 2, 15, 16, 17, 63, 64, 65, 1000, 4099, 49152};

bool IsSame(const ScoredToken& a, const ScoredToken& b) {
  return a.logit == b.logit && a.id == b.id;
}

class LogitsTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    table_ = FindKernels(GetParam());
    if (table_ == nullptr) {
      GTEST_SKIP() << "this CPU lacks the instruction set";
    }
  }

  // Rows that are smooth, full of ties, full of NaN, infinite, and constant.
  std::vector<std::vector<float>> Rows(uint32_t n) {
    std::normal_distribution<float> normal(0.0F, 4.0F);
    std::vector<std::vector<float>> rows(6, std::vector<float>(n));
    for (uint32_t i = 0; i < n; ++i) {
      rows[0][i] = normal(rng_);
      rows[1][i] = std::round(normal(rng_));
      rows[2][i] = rng_() % 3 == 0 ? kNan : std::round(normal(rng_));
      rows[3][i] = rng_() % 5 == 0 ? kInf : (rng_() % 2 == 0 ? -kInf : normal(rng_));
      rows[4][i] = -1.25F;
      rows[5][i] = i % 2 == 0 ? -kInf : kNan;
    }
    return rows;
  }

  static std::vector<ScoredToken> Sorted(const std::vector<float>& row) {
    std::vector<ScoredToken> all;
    for (uint32_t i = 0; i < row.size(); ++i) {
      if (!std::isnan(row[i])) {
        all.push_back({row[i], static_cast<int32_t>(i)});
      }
    }
    std::partial_sort(all.begin(), all.end(), all.end(), [](const auto& a, const auto& b) {
      return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    });
    return all;
  }

  const KernelTable* table_ = nullptr;
  std::mt19937 rng_{static_cast<uint32_t>(test::RandomSeed(1))};
};

TEST_P(LogitsTest, SummaryHasMaximumLowestIdAndSum) {
  for (const uint32_t n : kSizes) {
    for (const std::vector<float>& row : Rows(n)) {
      const std::vector<ScoredToken> sorted = Sorted(row);
      const LogitSummary summary = table_->summarize(row.data(), n);
      if (sorted.empty()) {
        EXPECT_EQ(summary.argmax, -1);
        EXPECT_EQ(summary.max, -kInf);
        continue;
      }
      ASSERT_EQ(summary.argmax, sorted[0].id);
      ASSERT_EQ(summary.max, sorted[0].logit);
      double sum = 0;
      for (const ScoredToken& token : sorted) {
        sum +=
            token.logit == summary.max ? 1.0 : std::exp(double{token.logit} - double{summary.max});
      }
      // Exponentials of arguments near 0, fp32 sums of at most 36 numbers.
      ASSERT_NEAR(summary.sum_exp, sum, sum * 48 * 0x1p-24) << n;
    }
  }
}

TEST_P(LogitsTest, EmptyRow) {
  const LogitSummary summary = table_->summarize(nullptr, 0);
  EXPECT_EQ(summary.argmax, -1);
  EXPECT_EQ(summary.max, -kInf);
  EXPECT_EQ(summary.sum_exp, 0.0);
  EXPECT_EQ(table_->top_k(nullptr, 0, 5, nullptr, nullptr), 0U);
  EXPECT_EQ(table_->collect_at_least(nullptr, 0, 0.0F, nullptr), 0U);
}

TEST_P(LogitsTest, TopKEqualsSorting) {
  for (const uint32_t n : kSizes) {
    for (const std::vector<float>& row : Rows(n)) {
      const std::vector<ScoredToken> sorted = Sorted(row);
      for (const uint32_t k : {0U, 1U, 2U, 20U, 100U, 3000U, n - 1, n, n + 1}) {
        std::vector<ScoredToken> out(k);
        std::vector<ScoredToken> scratch(n);
        const uint32_t count = table_->top_k(row.data(), n, k, out.data(), scratch.data());
        ASSERT_EQ(count, std::min<size_t>(k, sorted.size())) << n << " " << k;
        for (uint32_t i = 0; i < count; ++i) {
          ASSERT_TRUE(IsSame(out[i], sorted[i])) << n << " " << k << " " << i;
        }
      }
    }
  }
}

TEST_P(LogitsTest, CollectKeepsIdsAscending) {
  for (const uint32_t n : kSizes) {
    for (const std::vector<float>& row : Rows(n)) {
      for (const float threshold : {-kInf, -1.25F, 0.0F, 5.0F, kInf}) {
        std::vector<ScoredToken> expected;
        for (uint32_t i = 0; i < n; ++i) {
          if (row[i] >= threshold) {
            expected.push_back({row[i], static_cast<int32_t>(i)});
          }
        }
        std::vector<ScoredToken> out(n);
        out.resize(table_->collect_at_least(row.data(), n, threshold, out.data()));
        ASSERT_EQ(out.size(), expected.size());
        ASSERT_TRUE(std::equal(out.begin(), out.end(), expected.begin(), IsSame));
      }
    }
  }
}

std::string IsaName(const testing::TestParamInfo<Isa>& info) {
  static constexpr const char* kIsaNames[] = {"Reference", "Baseline", "Avx2", "Avx512", "Amx"};
  return kIsaNames[static_cast<size_t>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(
    Tables,
    LogitsTest,
    testing::Values(Isa::kReference, Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAmx),
    IsaName);

}  // namespace
}  // namespace spindle::kernels
