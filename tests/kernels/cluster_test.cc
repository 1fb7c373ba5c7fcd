// Clustering and estimation kernels of every table against the reference table, against what
// clusters must satisfy, and an example of RetroInfer worked by hand.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "index_support.h"
#include "kernel_cases.h"
#include "kernels/api/attention.h"
#include "kernels/codes.h"
#include "kernels/registry.h"
#include "support/random_seed.h"

namespace spindle::kernels {
namespace {

constexpr float kTolerance = 1.0F / 128;  // of bf16, one unit in the last place

struct Clusters {
  std::vector<uint16_t> begins;
  std::vector<uint16_t> tokens;
  std::vector<float> key_means;    // [found][dim]
  std::vector<float> value_means;  // [found][dim]
  uint32_t found = 0;
};

// Tokens with keys and values of one type.
struct Tokens {
  Tokens(
      uint32_t count, uint32_t head_dim, DType element, std::vector<float> k, std::vector<float> v)
      : num(count), dim(head_dim), type(element), keys(std::move(k)), values(std::move(v)) {
    Store(&keys, &key_bytes, &key_rows);
    Store(&values, &value_bytes, &value_rows);
  }

  // Values become what the type can hold.
  void Store(std::vector<float>* from,
             std::vector<uint8_t>* bytes,
             std::vector<const uint8_t*>* rows) const {
    const size_t width = type == DType::kF32 ? 4 : 2;
    bytes->resize(from->size() * width);
    for (size_t i = 0; i < from->size(); ++i) {
      const uint16_t half = FloatToBf16((*from)[i]);
      if (type == DType::kBF16) {
        (*from)[i] = Bf16ToFloat(half);
        std::memcpy(bytes->data() + 2 * i, &half, 2);
      } else {
        std::memcpy(bytes->data() + 4 * i, &(*from)[i], 4);
      }
    }
    for (uint32_t t = 0; t < num; ++t) {
      rows->push_back(bytes->data() + t * dim * width);
    }
  }

  uint32_t num;
  uint32_t dim;
  DType type;
  std::vector<float> keys;  // [num][dim]
  std::vector<float> values;
  std::vector<uint8_t> key_bytes = {};
  std::vector<uint8_t> value_bytes = {};
  std::vector<const uint8_t*> key_rows = {};
  std::vector<const uint8_t*> value_rows = {};
};

Clusters Cluster(const KernelTable& table,
                 const Tokens& tokens,
                 uint32_t wanted,
                 uint32_t steps,
                 IndexType index_type = IndexType::kBf16) {
  Clusters out;
  out.begins.assign(wanted + 1, 0xFFFF);
  out.tokens.assign(tokens.num, 0xFFFF);
  std::vector<float> scratch(ClusterScratchFloats(tokens.num, tokens.dim));
  const VectorBlock block = ClusterVectors(index_type, tokens.dim);
  Vectors means(block);
  Vectors value_means(block);
  EXPECT_EQ(table.cluster_keys({.k = tokens.key_rows.data(),
                                .v = tokens.value_rows.data(),
                                .num_tokens = tokens.num,
                                .num_clusters = wanted,
                                .head_dim = tokens.dim,
                                .type = tokens.type,
                                .iterations = steps,
                                .scratch = scratch.data(),
                                .index_type = index_type,
                                .key_means = means.Place(0).data,
                                .value_means = value_means.Place(0).data,
                                .begins = out.begins.data(),
                                .tokens = out.tokens.data(),
                                .num_non_empty = &out.found}),
            kOk);
  EXPECT_TRUE(means.IsIntactBehind() && value_means.IsIntactBehind());
  for (uint32_t i = 0; i < out.found * tokens.dim; ++i) {
    out.key_means.push_back(static_cast<float>(means.At(i / tokens.dim, i % tokens.dim)));
    out.value_means.push_back(static_cast<float>(value_means.At(i / tokens.dim, i % tokens.dim)));
  }
  return out;
}

Tokens RandomTokens(uint32_t num, uint32_t dim, DType type, std::mt19937& rng) {
  std::vector<float> keys = RandomFloats(size_t{num} * dim, rng);
  std::vector<float> values = RandomFloats(size_t{num} * dim, rng);
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] += static_cast<float>(i % dim % 3);  // a mean that has to be taken off
  }
  return {num, dim, type, std::move(keys), std::move(values)};
}

class ClusterKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  std::mt19937 rng_{static_cast<uint32_t>(test::RandomSeed(11))};
};

// Products differ in the last bits between tables, which decides a token only where two centroids
// are equally near.
TEST_P(ClusterKernelsTest, EqualsThePlainDefinition) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  const KernelTable& reference = *FindKernels(Isa::kReference);
  for (int round = 0; round < 1000; ++round) {
    const uint32_t num = 1 + static_cast<uint32_t>(rng_() % 90);
    const uint32_t dim = 16 * (1 + static_cast<uint32_t>(rng_() % 5));
    const uint32_t wanted = 1 + static_cast<uint32_t>(rng_() % std::min(num, 64U));
    const DType type = rng_() % 2 == 0 ? DType::kF32 : DType::kBF16;
    const Tokens tokens = RandomTokens(num, dim, type, rng_);
    const Clusters expected = Cluster(reference, tokens, wanted, 5);
    const Clusters found = Cluster(*table, tokens, wanted, 5);
    ASSERT_EQ(found.begins, expected.begins) << round;
    ASSERT_EQ(found.tokens, expected.tokens) << round;
    for (size_t i = 0; i < expected.key_means.size(); ++i) {
      ASSERT_NEAR(found.key_means[i], expected.key_means[i], kTolerance * 4);
      ASSERT_NEAR(found.value_means[i], expected.value_means[i], kTolerance * 4);
    }
  }
}

// How far from the exact mean it may be stored: half a step of the type, and its own rounding.
double StoredWithin(IndexType type, double mean, double largest) {
  const double code = largest / kMaxIndexCode * (1 + std::ldexp(1.0, -7));  // a scale is a bf16
  return type == IndexType::kInt8 ? code / 2 + 1e-5 : std::ldexp(std::abs(mean), -8) + 1e-5;
}

TEST_P(ClusterKernelsTest, EveryTokenIsInOneClusterAndMeansAreThoseOfMembers) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  for (const auto& [type, dim] :
       std::vector<std::pair<IndexType, uint32_t>>{{IndexType::kBf16, 64U},
                                                   {IndexType::kBf16, 80U},
                                                   {IndexType::kBf16, 128U},
                                                   {IndexType::kInt8, 64U},
                                                   {IndexType::kInt8, 80U},
                                                   {IndexType::kInt8, 128U}}) {
    const Tokens tokens = RandomTokens(1008, dim, DType::kBF16, rng_);
    const Clusters clusters = Cluster(*table, tokens, 63, 5, type);
    std::vector<uint16_t> sorted = clusters.tokens;
    std::ranges::sort(sorted);
    std::vector<uint16_t> all(tokens.num);
    std::iota(all.begin(), all.end(), uint16_t{0});
    EXPECT_EQ(sorted, all);
    EXPECT_EQ(clusters.begins.back(), tokens.num);
    for (uint32_t i = 0; i < clusters.found; ++i) {
      const uint32_t begin = clusters.begins[i];
      const uint32_t end = clusters.begins[i + 1];
      ASSERT_LT(begin, end);
      EXPECT_TRUE(std::is_sorted(clusters.tokens.begin() + begin, clusters.tokens.begin() + end));
      for (const auto& [rows, stored] : {std::pair{&tokens.keys, &clusters.key_means},
                                         std::pair{&tokens.values, &clusters.value_means}}) {
        std::vector<double> mean(dim);
        double largest = 0;
        for (uint32_t d = 0; d < dim; ++d) {
          for (uint32_t j = begin; j < end; ++j) {
            mean[d] += double{(*rows)[size_t{clusters.tokens[j]} * dim + d]} / (end - begin);
          }
          largest = std::max(largest, std::abs(mean[d]));
        }
        for (uint32_t d = 0; d < dim; ++d) {
          EXPECT_NEAR(
              (*stored)[size_t{i} * dim + d], mean[d], StoredWithin(type, mean[d], largest));
        }
      }
    }
  }
}

// Σ over tokens of the cosine with the direction of their cluster's mean, keys less their mean.
double Objective(const Tokens& tokens, const Clusters& clusters) {
  std::vector<double> mean(tokens.dim);
  for (size_t i = 0; i < tokens.keys.size(); ++i) {
    mean[i % tokens.dim] += double{tokens.keys[i]} / tokens.num;
  }
  double sum = 0;
  for (uint32_t i = 0; i < clusters.found; ++i) {
    std::vector<double> direction(tokens.dim);
    for (uint32_t j = clusters.begins[i]; j < clusters.begins[i + 1]; ++j) {
      for (uint32_t d = 0; d < tokens.dim; ++d) {
        direction[d] += double{tokens.keys[size_t{clusters.tokens[j]} * tokens.dim + d]} - mean[d];
      }
    }
    // The sum over members of the product with the unit vector of their sum is that sum's length.
    double square = 0;
    for (const double x : direction) {
      square += x * x;
    }
    sum += std::sqrt(square);
  }
  return sum;
}

TEST_P(ClusterKernelsTest, EveryIterationImprovesTheClusters) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  const Tokens tokens = RandomTokens(512, 64, DType::kF32, rng_);
  double before = 0;
  for (uint32_t steps = 1; steps <= 6; ++steps) {
    const double now = Objective(tokens, Cluster(*table, tokens, 32, steps));
    EXPECT_GT(now, before * (1 - 1e-6)) << steps;
    before = now;
  }
}

TEST_P(ClusterKernelsTest, EqualKeysMakeOneClusterAndEmptyOnesAreDropped) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  const Tokens tokens(
      100, 16, DType::kBF16, std::vector<float>(1600, 0.5F), RandomFloats(1600, rng_));
  const Clusters clusters = Cluster(*table, tokens, 7, 5);
  EXPECT_EQ(clusters.found, 1U);
  EXPECT_EQ(clusters.begins, (std::vector<uint16_t>{0, 100, 100, 100, 100, 100, 100, 100}));
}

TEST_P(ClusterKernelsTest, RefusesWhatItCannotCluster) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  const ClusterArgs good{.k = nullptr,
                         .v = nullptr,
                         .num_tokens = 64,
                         .num_clusters = 4,
                         .head_dim = 64,
                         .type = DType::kF32,
                         .iterations = 5,
                         .scratch = nullptr,
                         .index_type = IndexType::kBf16,
                         .key_means = nullptr,
                         .value_means = nullptr,
                         .begins = nullptr,
                         .tokens = nullptr,
                         .num_non_empty = nullptr};
  const auto refuses = [&](auto change) {
    ClusterArgs args = good;
    change(args);
    return table->cluster_keys(args) == kInvalidArgument;
  };
  EXPECT_TRUE(refuses([](ClusterArgs& args) { args.num_tokens = 1025; }));
  EXPECT_TRUE(refuses([](ClusterArgs& args) { args.num_tokens = 3; }));
  EXPECT_TRUE(refuses([](ClusterArgs& args) { args.num_clusters = 65; }));
  EXPECT_TRUE(refuses([](ClusterArgs& args) { args.num_clusters = 0; }));
  EXPECT_TRUE(refuses([](ClusterArgs& args) { args.head_dim = 72; }));
  EXPECT_TRUE(refuses([](ClusterArgs& args) { args.iterations = 0; }));
  EXPECT_TRUE(refuses([](ClusterArgs& args) { args.type = DType::kQ8_0; }));
}

// Blobs as an index keeps them: begins, then value means.
struct EstimateCase {
  EstimateCase(uint32_t num_segments, uint32_t head_dim, IndexType type = IndexType::kBf16)
      : dim(head_dim), block(ClusterVectors(type, head_dim)) {
    blobs.assign(num_segments, std::vector<uint8_t>(kValueOffset + BlockBytes(block)));
    chosen.resize(num_segments);
  }

  void SetCluster(uint32_t segment,
                  uint32_t cluster,
                  uint32_t end,
                  const std::vector<float>& mean) {
    std::vector<uint8_t>& blob = blobs[segment];
    for (uint32_t i = cluster + 1; i <= kMaxSegmentClusters; ++i) {
      const auto stored = static_cast<uint16_t>(end);
      std::memcpy(blob.data() + 2 * size_t{i}, &stored, 2);
    }
    uint8_t* const values = blob.data() + kValueOffset;
    uint8_t* const vector = values + cluster * VectorBytes(block);
    constexpr float kScale = 1.0F / 32;
    for (uint32_t d = 0; d < dim; ++d) {
      const uint16_t half = FloatToBf16(mean[d]);
      if (block.type == IndexType::kInt8) {
        vector[d] = static_cast<uint8_t>(std::lround(mean[d] / kScale));
      } else {
        std::memcpy(vector + 2 * size_t{d}, &half, 2);
      }
    }
    if (block.type == IndexType::kInt8) {
      const uint16_t scale = FloatToBf16(kScale);
      std::memcpy(values + ScalesOffset(block) + 2 * size_t{cluster}, &scale, 2);
    }
    chosen[segment] |= uint64_t{1} << cluster;
  }

  [[nodiscard]] double Value(uint32_t place, uint32_t d) const {
    return test::ElementOf(
        block, &blobs[place / kMaxSegmentClusters][kValueOffset], place % kMaxSegmentClusters, d);
  }

  // States [num_queries][dim + 2].
  [[nodiscard]] std::vector<float> Run(const KernelTable& table,
                                       const std::vector<float>& scores,
                                       float scale,
                                       float softcap) const {
    std::vector<const uint8_t*> addresses;
    for (const std::vector<uint8_t>& blob : blobs) {
      addresses.push_back(blob.data());
    }
    const auto num_segments = static_cast<uint32_t>(blobs.size());
    const auto num_queries =
        static_cast<uint32_t>(scores.size() / (num_segments * kMaxSegmentClusters));
    std::vector<float> states(size_t{num_queries} * (dim + 2), 99.0F);
    table.estimate_clusters({.blobs = addresses.data(),
                             .num_segments = num_segments,
                             .index_type = block.type,
                             .value_offset = kValueOffset,
                             .begins_offset = 0,
                             .chosen = chosen.data(),
                             .scores = scores.data(),
                             .num_queries = num_queries,
                             .head_dim = dim,
                             .scale = scale,
                             .softcap = softcap,
                             .states = states.data()});
    return states;
  }

  static constexpr size_t kValueOffset = 192;
  uint32_t dim;
  VectorBlock block;
  std::vector<std::vector<uint8_t>> blobs;
  std::vector<uint64_t> chosen;
};

// Keys {0, ln 4} and values {1, 3} with q = 1: mean key ln 2, mean value 2.
TEST_P(ClusterKernelsTest, HandExample) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  EstimateCase c(1, 16);
  std::vector<float> mean(16, 0.0F);
  mean[0] = 2;
  c.SetCluster(0, 0, 2, mean);
  std::vector<float> scores(64, 1000.0F);  // of clusters that are not chosen
  scores[0] = std::log(2.0F);
  std::vector<float> state = c.Run(*table, scores, 1, 0);
  EXPECT_FLOAT_EQ(state[0] / state[17], 2.0F);

  // With a steady token of logit 0 and value 10: 18/5.
  float out[16];
  float lse = 0;
  const float q[16] = {1};
  const float k[16] = {0};
  const float v[16] = {10};
  const KvRun run{.k = k,
                  .v = v,
                  .live = 1,
                  .row_stride = 16,
                  .tile = 0,
                  .count = 1,
                  .first_lane = 0,
                  .last_of_tile = 1};
  const AttentionItem item{.q = q,
                           .out = out,
                           .lse = &lse,
                           .runs = &run,
                           .num_runs = 1,
                           .num_rows = 1,
                           .first_position = 0,
                           .window = 0,
                           .last_span = state.data()};
  const AttentionArgs args{.items = &item,
                           .num_items = 1,
                           .q_stride = 16,
                           .out_stride = 16,
                           .head_dim = 16,
                           .group = 1,
                           .scale = 1,
                           .softcap = 0,
                           .kv_type = DType::kF32};
  AttentionUnit unit{};
  AttentionPlan plan{.units = &unit,
                     .unit_capacity = 1,
                     .num_units = 0,
                     .partials = nullptr,
                     .partial_capacity = 0,
                     .num_partials = 0};
  ASSERT_EQ(table->plan_attention(args, 1, &plan), kOk);
  AlignedBytes scratch(size_t{1} << 20);
  Exec exec;
  exec.scratch = scratch.data();
  exec.scratch_bytes = size_t{1} << 20;
  ASSERT_EQ(table->attention(args, plan, {0, 1}, &exec), kOk);
  EXPECT_NEAR(out[0], 3.6F, 1e-5);
  EXPECT_NEAR(lse, std::log(5.0F), 1e-5);
}

TEST_P(ClusterKernelsTest, EstimatesAreAveragesOverWeightedMeans) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  for (int round = 0; round < 50; ++round) {
    const uint32_t dim = 16 * (1 + static_cast<uint32_t>(rng_() % 8));
    const uint32_t num_segments = 1 + static_cast<uint32_t>(rng_() % 4);
    const float softcap = round % 3 == 0 ? 20.0F : 0.0F;
    EstimateCase c(num_segments, dim, round % 2 == 0 ? IndexType::kBf16 : IndexType::kInt8);

    struct Chosen {
      uint32_t place;
      uint32_t count;
    };

    std::vector<Chosen> all;
    for (uint32_t segment = 0; segment < num_segments; ++segment) {
      uint32_t end = 0;
      for (uint32_t i = 0; i < kMaxSegmentClusters; ++i) {
        if (rng_() % 3 == 0 && round != 7) {
          const uint32_t count = 1 + static_cast<uint32_t>(rng_() % 15);
          end += count;
          c.SetCluster(segment, i, end, RandomFloats(dim, rng_));
          all.push_back({segment * kMaxSegmentClusters + i, count});
        }
      }
    }
    constexpr uint32_t kQueries = 3;
    const size_t num = size_t{num_segments} * kMaxSegmentClusters;
    std::vector<float> scores = RandomFloats(kQueries * num, rng_);
    for (float& score : scores) {
      score *= round == 5 ? 400.0F : 8.0F;
    }
    const std::vector<float> states = c.Run(*table, scores, 0.25F, softcap);
    for (uint32_t query = 0; query < kQueries; ++query) {
      const float* const state = states.data() + size_t{query} * (dim + 2);
      std::vector<double> sum(dim);
      double total = 0;
      double most = -std::numeric_limits<double>::infinity();
      const auto logit = [&](const Chosen& of) {
        const double s = double{scores[query * num + of.place]} * 0.25;
        return softcap == 0 ? s : softcap * std::tanh(s / softcap);
      };
      for (const Chosen& of : all) {
        most = std::max(most, logit(of));
      }
      for (const Chosen& of : all) {
        const double weight = of.count * std::exp(logit(of) - most);
        total += weight;
        for (uint32_t d = 0; d < dim; ++d) {
          sum[d] += weight * c.Value(of.place, d);
        }
      }
      if (all.empty()) {
        EXPECT_EQ(state[dim], -std::numeric_limits<float>::infinity());
        EXPECT_EQ(state[dim + 1], 0.0F);
        continue;
      }
      EXPECT_NEAR(state[dim + 1] / total, 1.0, 2e-5);
      for (uint32_t d = 0; d < dim; ++d) {
        EXPECT_NEAR(state[d] / state[dim + 1], sum[d] / total, 2e-5);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, ClusterKernelsTest, testing::ValuesIn(kAllIsas), IsaParamName);

}  // namespace
}  // namespace spindle::kernels
