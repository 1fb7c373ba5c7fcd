// Index vectors in int8, of every table: what is stored of keys, and what is chosen by it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "index_support.h"
#include "kernel_cases.h"
#include "kernels/registry.h"
#include "support/random_seed.h"

namespace spindle::kernels {
namespace {

constexpr uint32_t kPage = 16;

// Keys times `factor`.
Stripe ScaledStripe(DType type, uint32_t head_dim, double factor, std::mt19937& rng) {
  Stripe stripe(type, head_dim, 16, rng);
  const auto scaled = [factor](float x) { return static_cast<float>(double{x} * factor); };
  const size_t width = type == DType::kF32 ? 4 : 2;
  for (size_t i = 0; i < stripe.bytes.size(); i += width) {
    if (type == DType::kF32) {
      float value;
      std::memcpy(&value, &stripe.bytes[i], sizeof(value));
      value = scaled(value);
      std::memcpy(&stripe.bytes[i], &value, sizeof(value));
    } else {
      uint16_t half;
      std::memcpy(&half, &stripe.bytes[i], sizeof(half));
      half = FloatToBf16(scaled(Bf16ToFloat(half)));
      std::memcpy(&stripe.bytes[i], &half, sizeof(half));
    }
  }
  return stripe;
}

class Int8IndexTest : public testing::TestWithParam<Isa> {
 protected:
  std::mt19937 rng_{static_cast<uint32_t>(test::RandomSeed(14))};
};

// Also of keys so small that scales are no normal numbers, and so large that they nearly overflow.
TEST_P(Int8IndexTest, BoundsHoldWithinACodeAndEveryTableStoresTheSame) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  const KernelTable& reference = *FindKernels(Isa::kReference);
  for (const DType type : {DType::kBF16, DType::kF32}) {
    for (const uint32_t head_dim : {16U, 64U, 80U, 128U, 256U}) {
      for (const double factor : {1.0, 0.0, 3e-42, 1e-36, 1e37}) {
        const Stripe stripe = ScaledStripe(type, head_dim, factor, rng_);
        Vectors out({IndexType::kInt8, 4, 2 * head_dim});
        Vectors expected({IndexType::kInt8, 4, 2 * head_dim});
        for (uint32_t page = 0; page < 4; ++page) {
          const uint32_t first = page * kPage;
          ASSERT_EQ(table->key_bounds({stripe.keys, first, kPage, out.Place(page)}), kOk);
          ASSERT_EQ(reference.key_bounds({stripe.keys, first, kPage, expected.Place(page)}), kOk);
          double largest = 0;
          for (uint32_t d = 0; d < head_dim; ++d) {
            double max = double{stripe.At(first, d)};
            double min = max;
            for (uint32_t lane = first; lane < first + kPage; ++lane) {
              max = std::max(max, double{stripe.At(lane, d)});
              min = std::min(min, double{stripe.At(lane, d)});
            }
            const double upper = out.At(page, d);
            const double lower = out.At(page, head_dim + d);
            ASSERT_GE(upper, max);
            ASSERT_LE(lower, min);
            ASSERT_LE(upper - max, out.Scale(page));
            ASSERT_LE(min - lower, out.Scale(page));
            largest = std::max({largest, std::abs(max), std::abs(min)});
          }
          // A bf16 step above the least that does; the least of all is 2^-133.
          const double least = largest / kMaxIndexCode;
          ASSERT_LE(out.Scale(page), least * (1 + std::ldexp(1.0, -7)) + std::ldexp(1.0, -133));
        }
        ASSERT_EQ(out.bytes(), expected.bytes());
        ASSERT_TRUE(out.IsIntactBehind());
      }
    }
  }
}

TEST_P(Int8IndexTest, BoundsOfScoresHoldForEveryKey) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  for (const uint32_t head_dim : {64U, 128U}) {
    for (int round = 0; round < 50; ++round) {
      const Stripe stripe(round % 2 == 0 ? DType::kBF16 : DType::kF32, head_dim, 16, rng_);
      Vectors index({IndexType::kInt8, 4, 2 * head_dim});
      for (uint32_t page = 0; page < 4; ++page) {
        ASSERT_EQ(table->key_bounds({stripe.keys, page * kPage, kPage, index.Place(page)}), kOk);
      }
      const std::vector<float> q = RandomFloats(head_dim, rng_);
      std::vector<float> signs(2 * size_t{head_dim});
      for (uint32_t d = 0; d < head_dim; ++d) {
        signs[d] = std::max(q[d], 0.0F);
        signs[head_dim + d] = std::min(q[d], 0.0F);
      }
      const uint8_t* const blob = index.bytes().data();
      std::vector<float> scores(4);
      ASSERT_EQ(table->score_partitions({.blobs = &blob,
                                         .offset = 0,
                                         .vectors = {IndexType::kInt8, 4, 2 * head_dim},
                                         .first_partition = 0,
                                         .num_partitions = 4,
                                         .q = signs.data(),
                                         .num_queries = 1,
                                         .scores = scores.data()}),
                kOk);
      for (uint32_t lane = 0; lane < 64; ++lane) {
        double product = 0;
        double magnitude = 0;
        for (uint32_t d = 0; d < head_dim; ++d) {
          product += double{q[d]} * double{stripe.At(lane, d)};
          magnitude += std::abs(double{q[d]}) * index.Scale(lane / kPage) * kMaxIndexCode;
        }
        // What the sum of the score may lose in fp32.
        const double lost = (2 * head_dim / 16.0 + 6) * std::ldexp(1.0, -24) * magnitude;
        ASSERT_GE(scores[lane / kPage], product - lost) << lane;
      }
    }
  }
}

TEST_P(Int8IndexTest, MeansAreTheNearestCodes) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  for (const DType type : {DType::kBF16, DType::kF32}) {
    for (const uint32_t head_dim : {16U, 64U, 80U, 128U, 256U}) {
      const Stripe stripe(type, head_dim, 16, rng_);
      Vectors out({IndexType::kInt8, 8, head_dim});
      for (uint32_t chunk = 0; chunk < 8; ++chunk) {
        float cosine = 0;
        ASSERT_EQ(table->key_mean({stripe.keys, chunk * 8, 8, out.Place(chunk), &cosine}), kOk);
        double largest = 0;
        for (uint32_t d = 0; d < head_dim; ++d) {
          double mean = 0;
          for (uint32_t lane = chunk * 8; lane < chunk * 8 + 8; ++lane) {
            mean += double{stripe.At(lane, d)} / 8;
          }
          largest = std::max(largest, std::abs(mean));
          // Half a code, and the rounding of the sum.
          ASSERT_NEAR(out.At(chunk, d), mean, out.Scale(chunk) / 2 + 1e-6);
        }
        ASSERT_LE(out.Scale(chunk), largest / kMaxIndexCode * (1 + std::ldexp(1.0, -7)) + 1e-8);
      }
      ASSERT_TRUE(out.IsIntactBehind());
    }
  }
}

TEST_P(Int8IndexTest, AKeyThatIsNoNumberMakesItsVectorNone) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  for (const uint16_t bad : {uint16_t{0x7FC0}, uint16_t{0x7F80}, uint16_t{0xFF80}}) {
    Stripe stripe(DType::kBF16, 64, 16, rng_);
    std::memcpy(&stripe.bytes[stripe.row_bytes * 3 + 2 * 20], &bad, sizeof(bad));
    Vectors bounds({IndexType::kInt8, 4, 128});
    Vectors means({IndexType::kInt8, 4, 64});
    for (uint32_t page = 0; page < 4; ++page) {
      float cosine = 0;
      ASSERT_EQ(table->key_bounds({stripe.keys, page * kPage, kPage, bounds.Place(page)}), kOk);
      ASSERT_EQ(table->key_mean({stripe.keys, page * kPage, kPage, means.Place(page), &cosine}),
                kOk);
      EXPECT_EQ(std::isnan(bounds.Scale(page)), page == 0);
      EXPECT_EQ(std::isnan(means.Scale(page)), page == 0);
      EXPECT_EQ(std::isnan(cosine), page == 0);
    }
  }
}

// Chosen by one query group over an index: reduced scores, and the bits of the k best.
struct Choice {
  std::vector<float> scores;
  std::vector<uint64_t> chosen;
};

Choice Choose(const KernelTable& table,
              const std::vector<const uint8_t*>& blobs,
              const VectorBlock& vectors,
              const std::vector<float>& q,
              uint32_t k) {
  const auto num_queries = static_cast<uint32_t>(q.size() / vectors.dim);
  const auto n = static_cast<uint32_t>(blobs.size()) * vectors.count;
  std::vector<float> products(size_t{num_queries} * n);
  EXPECT_EQ(table.score_partitions({.blobs = blobs.data(),
                                    .offset = 0,
                                    .vectors = vectors,
                                    .first_partition = 0,
                                    .num_partitions = n,
                                    .q = q.data(),
                                    .num_queries = num_queries,
                                    .scores = products.data()}),
            kOk);
  Choice out{std::vector<float>(n), std::vector<uint64_t>((n + 63) / 64)};
  table.reduce_scores({.scores = products.data(),
                       .num_queries = num_queries,
                       .num_partitions = n,
                       .scale = 0.125F,
                       .reduction = GroupReduction::kMaxLog,
                       .out = out.scores.data()});
  table.select_best({.scores = out.scores.data(), .n = n, .k = k, .chosen = out.chosen.data()});
  return out;
}

// Over the table's own index. Where the last one chosen and the first one left out are nearly
// equal, either may come first.
TEST_P(Int8IndexTest, ChoicesAreThoseOfThePlainDefinition) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  const KernelTable& reference = *FindKernels(Isa::kReference);
  int compared = 0;
  for (int round = 0; round < 1300; ++round) {
    const uint32_t dim = 16 * (1 + Below(rng_, 8));
    const bool is_bounds = round % 2 == 0;
    const VectorBlock block = is_bounds ? VectorBlock{IndexType::kInt8, 4, 2 * dim}
                                        : VectorBlock{IndexType::kInt8, 8, dim};
    std::vector<Vectors> index(1 + Below(rng_, 6), Vectors(block));
    std::vector<const uint8_t*> blobs;
    for (Vectors& vectors : index) {
      const Stripe stripe(round % 3 == 0 ? DType::kF32 : DType::kBF16, dim, 16, rng_);
      const uint32_t lanes = 64 / block.count;
      for (uint32_t i = 0; i < block.count; ++i) {
        float cosine = 0;
        ASSERT_EQ(is_bounds
                      ? table->key_bounds({stripe.keys, i * lanes, lanes, vectors.Place(i)})
                      : table->key_mean({stripe.keys, i * lanes, lanes, vectors.Place(i), &cosine}),
                  kOk);
      }
      blobs.push_back(vectors.bytes().data());
    }
    const std::vector<float> q = RandomFloats(size_t{1 + Below(rng_, 8)} * block.dim, rng_);
    const auto n = static_cast<uint32_t>(index.size()) * block.count;
    const uint32_t k = 1 + Below(rng_, n - 1);
    const Choice expected = Choose(reference, blobs, block, q, k);
    std::vector<float> ranked = expected.scores;
    std::ranges::sort(ranked, std::greater<>());
    // Logarithms of shares of sums below 100 in size, in fp32.
    if (ranked[k - 1] - ranked[k] > 5e-5) {
      ++compared;
      ASSERT_EQ(Choose(*table, blobs, block, q, k).chosen, expected.chosen) << round;
    }
  }
  EXPECT_GE(compared, 1000);
}

INSTANTIATE_TEST_SUITE_P(Tables, Int8IndexTest, testing::ValuesIn(kAllIsas), IsaParamName);

}  // namespace
}  // namespace spindle::kernels
