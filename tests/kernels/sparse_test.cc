// Index and Select kernels of every table against plain definitions.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "index_support.h"
#include "kernel_cases.h"
#include "kernels/registry.h"
#include "support/random_seed.h"

namespace spindle::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class SparseKernelsTest : public testing::TestWithParam<Isa> {};

// Index vectors in blobs of a stripe each, with bytes before and behind them.
struct Index {
  Index(uint32_t num_blobs, const VectorBlock& vectors, std::mt19937& rng)
      : block(vectors), offset(96) {
    std::normal_distribution<float> normal;
    for (uint32_t i = 0; i < num_blobs; ++i) {
      blobs.emplace_back(offset + BlockBytes(block) + 32, uint8_t{0xFF});
      uint8_t* const data = blobs.back().data() + offset;
      const bool is_int8 = block.type == IndexType::kInt8;
      for (size_t j = 0; is_int8 && j < ScalesOffset(block); ++j) {
        data[j] = static_cast<uint8_t>(static_cast<int>(Below(rng, 255)) - 127);
      }
      // Scales, or all elements.
      for (size_t j = is_int8 ? ScalesOffset(block) / 2 : 0;
           j < ScalesOffset(block) / 2 + (is_int8 ? block.count : 0);
           ++j) {
        const uint16_t half = FloatToBf16(is_int8 ? std::abs(normal(rng)) / 127 : normal(rng));
        std::memcpy(data + 2 * j, &half, sizeof(half));
      }
    }
    for (const std::vector<uint8_t>& blob : blobs) {
      addresses.push_back(blob.data());
    }
  }

  [[nodiscard]] double At(uint32_t partition, uint32_t d) const {
    return test::ElementOf(
        block, &blobs[partition / block.count][offset], partition % block.count, d);
  }

  VectorBlock block;
  size_t offset;
  std::vector<std::vector<uint8_t>> blobs;
  std::vector<const uint8_t*> addresses;
};

TEST_P(SparseKernelsTest, ScoresAreProductsOfQueriesAndVectors) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(5)));
  for (const uint32_t dim : {16U, 64U, 80U, 128U, 256U, 512U}) {
    for (const auto& [type, per_blob] :
         std::vector<std::pair<IndexType, uint32_t>>{{IndexType::kBf16, 1U},
                                                     {IndexType::kBf16, 4U},
                                                     {IndexType::kBf16, 8U},
                                                     {IndexType::kInt8, 1U},
                                                     {IndexType::kInt8, 4U},
                                                     {IndexType::kInt8, 8U}}) {
      const Index index(9, {type, per_blob, dim}, rng);
      for (const uint32_t num_queries : {1U, 2U, 3U, 4U, 7U, 16U}) {
        const std::vector<float> q = RandomFloats(size_t{num_queries} * dim, rng);
        const uint32_t first = Below(rng, 8 * per_blob);
        const uint32_t count = 1 + Below(rng, 9 * per_blob - first);
        std::vector<float> scores(size_t{num_queries} * count + 1, 77.0F);
        const ScorePartitionsArgs args{.blobs = index.addresses.data(),
                                       .offset = index.offset,
                                       .vectors = index.block,
                                       .first_partition = first,
                                       .num_partitions = count,
                                       .q = q.data(),
                                       .num_queries = num_queries,
                                       .scores = scores.data()};
        ASSERT_EQ(table->score_partitions(args), kOk);
        for (uint32_t i = 0; i < num_queries; ++i) {
          for (uint32_t j = 0; j < count; ++j) {
            double expected = 0;
            double magnitude = 0;
            for (uint32_t d = 0; d < dim; ++d) {
              const double product = double{q[i * size_t{dim} + d]} * index.At(first + j, d);
              expected += product;
              magnitude += std::abs(product);
            }
            // Every addition of a chain of dim / 16 and a tree of 4 rounds once, and so does the
            // product with a scale.
            const double bound = (dim / 16.0 + 6) * std::ldexp(1.0, -24) * magnitude;
            ASSERT_NEAR(scores[i * size_t{count} + j], expected, bound);
          }
        }
        ASSERT_EQ(scores.back(), 77.0F);
      }
    }
  }
}

TEST_P(SparseKernelsTest, ScoresOfAPartitionDoNotDependOnTheOthers) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(6)));
  const Index index(6, {IndexType::kInt8, 4, 128}, rng);
  const std::vector<float> q = RandomFloats(3 * 128, rng);
  const auto score = [&](uint32_t first, uint32_t count) {
    std::vector<float> scores(3 * size_t{count});
    EXPECT_EQ(table->score_partitions({index.addresses.data(),
                                       index.offset,
                                       index.block,
                                       first,
                                       count,
                                       q.data(),
                                       3,
                                       scores.data()}),
              kOk);
    return scores;
  };
  const std::vector<float> all = score(0, 24);
  for (uint32_t j = 0; j < 24; ++j) {
    const std::vector<float> one = score(j, 1);
    for (uint32_t i = 0; i < 3; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(one[i]), std::bit_cast<uint32_t>(all[i * 24 + j]));
    }
  }
}

TEST_P(SparseKernelsTest, RefusesShapesItCannotRead) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  for (const auto& [dim, per_blob, queries] : std::vector<std::array<uint32_t, 3>>{
           {24, 1, 1}, {0, 1, 1}, {528, 1, 1}, {64, 0, 1}, {64, 1, 0}, {64, 1, 17}}) {
    ScorePartitionsArgs args{};
    args.vectors = {.count = per_blob, .dim = dim};
    args.num_queries = queries;
    EXPECT_EQ(table->score_partitions(args), kInvalidArgument);
  }
}

TEST_P(SparseKernelsTest, ReductionIsOverSoftmaxes) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(7)));
  for (const uint32_t n : {1U, 2U, 15U, 16U, 17U, 64U, 471U}) {
    for (const uint32_t num_queries : {1U, 3U, 8U}) {
      const std::vector<float> scores = RandomFloats(size_t{num_queries} * n, rng);
      const float scale = 0.25F + static_cast<float>(Below(rng, 100)) * 0.1F;
      std::vector<double> sums(n, 0.0);
      std::vector<double> best(n, -1e300);
      for (uint32_t i = 0; i < num_queries; ++i) {
        double sum = 0;
        for (uint32_t j = 0; j < n; ++j) {
          sum += std::exp(double{scale} * double{scores[i * size_t{n} + j]});
        }
        for (uint32_t j = 0; j < n; ++j) {
          const double log_p = double{scale} * double{scores[i * size_t{n} + j]} - std::log(sum);
          sums[j] += std::exp(log_p);
          best[j] = std::max(best[j], log_p);
        }
      }
      std::vector<float> out(n);
      table->reduce_scores(
          {scores.data(), num_queries, n, scale, GroupReduction::kSum, out.data()});
      for (uint32_t j = 0; j < n; ++j) {
        // Exponents below 100 in size, rounded to 24 bits.
        ASSERT_NEAR(out[j], sums[j], 2e-5 * sums[j] + 1e-30) << n << " " << j;
      }
      table->reduce_scores(
          {scores.data(), num_queries, n, scale, GroupReduction::kMaxLog, out.data()});
      for (uint32_t j = 0; j < n; ++j) {
        ASSERT_NEAR(out[j], best[j], 2e-5) << n << " " << j;
      }
    }
  }
}

TEST_P(SparseKernelsTest, HeadsWithoutScoresDoNotCount) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  std::vector<float> scores(40, -kInfinity);
  std::fill_n(scores.begin(), 20, std::nanf(""));
  std::vector<float> out(20, 1.0F);
  table->reduce_scores({scores.data(), 2, 20, 1.0F, GroupReduction::kSum, out.data()});
  EXPECT_EQ(out, std::vector<float>(20, 0.0F));
  table->reduce_scores({scores.data(), 2, 20, 1.0F, GroupReduction::kMaxLog, out.data()});
  EXPECT_EQ(out, std::vector<float>(20, -kInfinity));
}

TEST_P(SparseKernelsTest, LogarithmsTellTinyProbabilitiesApart) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  const std::vector<float> scores = {500.0F, 1.0F, 2.0F, 0.0F};
  std::vector<float> out(4);
  table->reduce_scores({scores.data(), 1, 4, 1.0F, GroupReduction::kMaxLog, out.data()});
  EXPECT_GT(out[2], out[1]);
  EXPECT_GT(out[1], out[3]);
}

std::vector<uint32_t> BestBySorting(const std::vector<float>& scores, uint32_t k) {
  std::vector<uint32_t> order;
  for (uint32_t j = 0; j < scores.size(); ++j) {
    if (!std::isnan(scores[j])) {
      order.push_back(j);
    }
  }
  std::stable_sort(
      order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  order.resize(std::min<size_t>(order.size(), k));
  std::sort(order.begin(), order.end());
  return order;
}

TEST_P(SparseKernelsTest, TheBestComeWithTiesByPosition) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(8)));
  const std::vector<float> odd = {
      0.0F, -0.0F, 1e-40F, -1e-40F, kInfinity, -kInfinity, std::nanf("")};
  for (uint32_t round = 0; round < 1500; ++round) {
    const uint32_t n = 1 + Below(rng, round % 10 == 0 ? 700 : 90);
    const uint32_t k = round % 7 == 0 ? n : Below(rng, n + 1);
    const uint32_t kinds = round % 3;
    std::vector<float> scores(n);
    for (float& score : scores) {
      score = kinds == 0   ? static_cast<float>(Below(rng, 5))
              : kinds == 1 ? static_cast<float>(static_cast<int32_t>(rng())) * 1e-9F
                           : odd[Below(rng, static_cast<uint32_t>(odd.size()))];
    }
    std::vector<uint64_t> chosen((n + 63) / 64 + 1, 0xDEADBEEF);
    const uint32_t count = table->select_best({scores.data(), n, k, chosen.data()});
    std::vector<uint32_t> ids;
    for (uint32_t j = 0; j < (n + 63) / 64 * 64; ++j) {
      if ((chosen[j / 64] >> (j % 64) & 1) != 0) {
        ids.push_back(j);
      }
    }
    ASSERT_EQ(ids, BestBySorting(scores, k)) << "round " << round;
    ASSERT_EQ(count, ids.size());
    ASSERT_EQ(chosen.back(), 0xDEADBEEF);
  }
}

TEST_P(SparseKernelsTest, TheBestThatFitGoUpToTheFirstThatDoesNot) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(6)));
  for (int round = 0; round < 2000; ++round) {
    const uint32_t n = 1 + Below(rng, 200);
    std::vector<float> scores(n);
    std::vector<uint16_t> weights(n);
    const uint32_t levels = 1 + Below(rng, 30);  // few: many ties
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t kind = Below(rng, 20);
      scores[i] = kind == 0   ? std::numeric_limits<float>::quiet_NaN()
                  : kind == 1 ? -kInfinity
                  : kind == 2 ? kInfinity
                              : static_cast<float>(Below(rng, levels)) - 10.0F;
      weights[i] = static_cast<uint16_t>(Below(rng, 30));
    }
    const uint64_t budget = round % 10 == 0 ? 0 : Below(rng, 15 * n);
    std::vector<uint32_t> order;
    for (uint32_t i = 0; i < n; ++i) {
      if (!std::isnan(scores[i])) {
        order.push_back(i);
      }
    }
    std::stable_sort(
        order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
    std::vector<uint64_t> expected((n + 63) / 64, 0);
    uint64_t weight = 0;
    uint32_t count = 0;
    for (const uint32_t i : order) {
      weight += weights[i];
      if (weight > budget) {
        break;
      }
      expected[i / 64] |= uint64_t{1} << (i % 64);
      ++count;
    }
    std::vector<uint64_t> chosen((n + 63) / 64, ~uint64_t{0});
    ASSERT_EQ(table->select_within({.scores = scores.data(),
                                    .weights = weights.data(),
                                    .n = n,
                                    .budget = budget,
                                    .chosen = chosen.data()}),
              count)
        << round;
    ASSERT_EQ(chosen, expected) << round;
  }
}

TEST_P(SparseKernelsTest, BoundsHoldAndAreTheClosest) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(9)));
  for (const DType type : {DType::kBF16, DType::kF32}) {
    for (const uint32_t head_dim : {16U, 64U, 80U, 128U}) {
      for (const uint32_t page_tokens : {8U, 16U, 32U}) {
        const Stripe stripe(type, head_dim, page_tokens, rng);
        for (const auto& [first, count] : std::vector<std::pair<uint32_t, uint32_t>>{
                 {0, 16}, {48, 16}, {5, 1}, {7, 40}, {0, 64}}) {
          Vectors out({IndexType::kBf16, 1, 2 * head_dim});
          ASSERT_EQ(table->key_bounds({stripe.keys, first, count, out.Place(0)}), kOk);
          for (uint32_t d = 0; d < head_dim; ++d) {
            float max = stripe.At(first, d);
            float min = max;
            for (uint32_t lane = first; lane < first + count; ++lane) {
              max = std::max(max, stripe.At(lane, d));
              min = std::min(min, stripe.At(lane, d));
            }
            const double upper = out.At(0, d);
            const double lower = out.At(0, head_dim + d);
            ASSERT_GE(upper, max);
            ASSERT_LE(lower, min);
            if (type == DType::kBF16) {
              ASSERT_EQ(upper, max);
              ASSERT_EQ(lower, min);
            } else {  // one bf16 step at most
              ASSERT_LE(upper - max, std::ldexp(std::abs(max), -7));
              ASSERT_LE(min - lower, std::ldexp(std::abs(min), -7));
            }
          }
          ASSERT_TRUE(out.IsIntactBehind());
        }
      }
    }
  }
}

TEST_P(SparseKernelsTest, MeansAndTheLeastParallelKey) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(10)));
  for (const DType type : {DType::kBF16, DType::kF32}) {
    for (const uint32_t head_dim : {16U, 64U, 80U, 128U}) {
      const Stripe stripe(type, head_dim, 16, rng);
      for (const auto& [first, count] :
           std::vector<std::pair<uint32_t, uint32_t>>{{0, 8}, {56, 8}, {13, 1}, {10, 30}}) {
        std::vector<double> mean(head_dim, 0.0);
        double mean_square = 0;
        for (uint32_t d = 0; d < head_dim; ++d) {
          for (uint32_t lane = first; lane < first + count; ++lane) {
            mean[d] += double{stripe.At(lane, d)} / count;
          }
          mean_square += mean[d] * mean[d];
        }
        double least = 1;
        for (uint32_t lane = first; lane < first + count; ++lane) {
          double dot = 0;
          double square = 0;
          for (uint32_t d = 0; d < head_dim; ++d) {
            dot += mean[d] * double{stripe.At(lane, d)};
            square += double{stripe.At(lane, d)} * double{stripe.At(lane, d)};
          }
          least = std::min(least, dot / std::sqrt(mean_square * square));
        }
        Vectors out({IndexType::kBf16, 1, head_dim});
        float cosine = 0;
        ASSERT_EQ(table->key_mean({stripe.keys, first, count, out.Place(0), &cosine}), kOk);
        for (uint32_t d = 0; d < head_dim; ++d) {
          // Half a bf16 step, and the rounding of the sum.
          const double bound = std::ldexp(std::abs(mean[d]), -8) + 1e-5;
          ASSERT_NEAR(out.At(0, d), mean[d], bound);
        }
        ASSERT_NEAR(cosine, least, 1e-5);
        ASSERT_TRUE(out.IsIntactBehind());
      }
    }
  }
}

TEST_P(SparseKernelsTest, AKeyThatIsNoNumberShowsInItsBounds) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  std::mt19937 rng(1);
  for (const uint16_t bad : {uint16_t{0x7FC0}, uint16_t{0x7F80}, uint16_t{0xFF80}}) {
    Stripe stripe(DType::kBF16, 64, 16, rng);
    std::memcpy(&stripe.bytes[stripe.row_bytes * 3 + 2 * 20], &bad, sizeof(bad));
    Vectors out({IndexType::kBf16, 1, 128});
    ASSERT_EQ(table->key_bounds({stripe.keys, 0, 16, out.Place(0)}), kOk);
    for (uint32_t d = 0; d < 64; ++d) {
      EXPECT_EQ(std::isnan(out.At(0, d)), d == 20);
      EXPECT_EQ(std::isnan(out.At(0, 64 + d)), d == 20);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, SparseKernelsTest, testing::ValuesIn(kAllIsas), IsaParamName);

}  // namespace
}  // namespace spindle::kernels
