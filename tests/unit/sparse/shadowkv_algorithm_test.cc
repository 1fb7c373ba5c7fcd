// ShadowKV's landmarks and outliers against their definition; streaming's window.
#include "sparse/shadowkv/shadowkv_algorithm.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "selection_rig.h"
#include "sparse/streaming/streaming_algorithm.h"
#include "support/random_seed.h"

namespace spindle::sparse {
namespace {

constexpr uint32_t kDim = 16;

uint32_t Draw(std::mt19937& rng, uint32_t n) {
  return static_cast<uint32_t>(rng() % n);
}

// 1 - the least cosine between a chunk's mean and its keys, in units of the index.
double Deviation(const SelectionRig& rig, uint32_t chunk) {
  std::vector<double> mean(kDim, 0.0);
  for (uint32_t i = 0; i < 8; ++i) {
    for (uint32_t e = 0; e < kDim; ++e) {
      mean[e] += double{rig.Key(chunk * 8 + i, e)} / 8;
    }
  }
  double least = 1;
  for (uint32_t i = 0; i < 8; ++i) {
    double dot = 0;
    double mean_square = 0;
    double key_square = 0;
    for (uint32_t e = 0; e < kDim; ++e) {
      const double x = double{rig.Key(chunk * 8 + i, e)};
      dot += x * mean[e];
      mean_square += mean[e] * mean[e];
      key_square += x * x;
    }
    const double lengths = std::sqrt(mean_square * key_square);
    least = std::min(least, lengths == 0 ? 0 : dot / lengths);
  }
  return 1 - least;
}

// Chunks of one direction each, exactly; `outliers` of them with one key turned away, each by
// another angle. Keys and queries are such that scores are exact and distinct.
struct Scene {
  std::vector<float> keys;
  std::vector<float> q;
};

Scene MakeScene(uint32_t num_tokens, std::mt19937& rng) {
  Scene scene;
  scene.q.assign(kDim, 0.0F);
  scene.q[0] = 1.0F;
  scene.q[1] = 0.125F;
  std::vector<float> direction(kDim);
  for (uint32_t position = 0; position < num_tokens; ++position) {
    if (position % 8 == 0) {
      for (float& value : direction) {
        value = static_cast<float>(Draw(rng, 17)) - 8.0F;
      }
      direction[2] = 5.0F;  // no chunk without a length
    }
    scene.keys.insert(scene.keys.end(), direction.begin(), direction.end());
    if (position % 8 == 3 && Draw(rng, 4) == 0) {
      scene.keys[scene.keys.size() - kDim + 3 + Draw(rng, 8)] += 40.0F;
    }
  }
  return scene;
}

TEST(ShadowKvAlgorithmTest, ChoicesEqualTheDefinition) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(31)));
  uint32_t num_ranked = 0;
#if defined(SPINDLE_SANITIZED)
  constexpr uint32_t kRounds = 100;
#else
  constexpr uint32_t kRounds = 1200;
#endif
  for (uint32_t round = 0; round < kRounds; ++round) {
    const uint32_t outliers = round % 3 == 0 ? 0 : 5;
    const ShadowKvAlgorithm algorithm(outliers);
    SelectionRig rig(algorithm, *kernels::BestKernels(), kDim, DType::kBF16);
    const uint32_t num_tokens = 1 + Draw(rng, 500);
    const Scene scene = MakeScene(num_tokens, rng);
    rig.Append(scene.keys);
    SparseSettings settings{
        .sink_tokens = Draw(rng, 20), .recent_tokens = Draw(rng, 80), .min_context = 0};
    settings.always_ranks = round % 5 == 0;
    const uint32_t budget = Draw(rng, num_tokens);
    const std::set<uint32_t> always = AlwaysAttended(settings, num_tokens, 8);
    // Outliers first, then the best of the rest.
    std::vector<std::pair<double, uint32_t>> deviations;
    for (uint32_t chunk = 0; (chunk + 1) * 8 <= num_tokens; ++chunk) {
      bool adds = false;
      for (uint32_t i = 0; i < 8; ++i) {
        adds = adds || !always.contains(chunk * 8 + i);
      }
      if (adds) {
        deviations.emplace_back(-std::round(Deviation(rig, chunk) * 32767), chunk);
      }
    }
    std::sort(deviations.begin(), deviations.end());
    // Near ties of rounded deviations at the border say nothing.
    if (deviations.size() > outliers && outliers > 0 &&
        std::abs(deviations[outliers - 1].first - deviations[outliers].first) <= 1 &&
        deviations[outliers - 1].first != 0) {
      continue;
    }
    std::set<uint32_t> outlier_chunks;
    for (uint32_t i = 0; i < std::min<size_t>(outliers, deviations.size()); ++i) {
      outlier_chunks.insert(deviations[i].second);
    }
    const auto score = [&](uint32_t chunk) {
      if (outlier_chunks.contains(chunk)) {
        return -1e300;
      }
      double sum = 0;
      for (uint32_t e = 0; e < kDim; ++e) {
        double mean = 0;
        for (uint32_t i = 0; i < 8; ++i) {
          mean += double{rig.Key(chunk * 8 + i, e)} / 8;
        }
        sum += double{scene.q[e]} *
               double{kernels::Bf16ToFloat(kernels::FloatToBf16(static_cast<float>(mean)))};
      }
      return sum;
    };
    const size_t rest = deviations.size() - outlier_chunks.size();
    const uint32_t capped = std::min<uint32_t>((budget + 7) / 8, static_cast<uint32_t>(rest)) * 8;
    std::set<uint32_t> expected = NaiveChoice(settings, num_tokens, capped, 8, score);
    for (const uint32_t chunk : outlier_chunks) {
      for (uint32_t i = 0; i < 8; ++i) {
        expected.insert(chunk * 8 + i);
      }
    }
    const std::set<uint32_t> chosen = rig.Choose(settings, budget, scene.q, 0.25F);
    ASSERT_EQ(chosen, expected) << "round " << round;
    num_ranked += chosen.size() < num_tokens ? 1U : 0U;
  }
  EXPECT_GT(num_ranked, kRounds / 3);
}

TEST(ShadowKvAlgorithmTest, HandExample) {
  const ShadowKvAlgorithm algorithm(1);
  SelectionRig rig(algorithm, *kernels::BestKernels(), kDim, DType::kBF16);
  // Chunk 1 has keys (1, 1) and (1, -1): its landmark is (1, 0), cosines are 0.7071.
  std::vector<float> keys(64 * kDim, 0.0F);
  for (uint32_t position = 0; position < 64; ++position) {
    keys[position * kDim] = 1.0F;
    keys[position * kDim + 1] = position / 8 != 1 ? 0.0F : position % 2 == 0 ? 1.0F : -1.0F;
  }
  rig.Append(keys);
  const std::set<uint32_t> chosen =
      rig.Choose({.sink_tokens = 0, .recent_tokens = 1, .min_context = 0},
                 0,
                 std::vector<float>(kDim, 0.0F),
                 1.0F);
  std::set<uint32_t> expected = {63};
  for (uint32_t i = 8; i < 16; ++i) {
    expected.insert(i);
  }
  EXPECT_EQ(chosen, expected);
}

TEST(ShadowKvAlgorithmTest, ANeedleIsAlwaysFound) {
  const ShadowKvAlgorithm bf16;
  const ShadowKvAlgorithm int8(ShadowKvAlgorithm::kDefaultOutlierChunks, IndexType::kInt8);
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(32)));
  std::normal_distribution<float> normal;
  for (uint32_t round = 0; round < 50; ++round) {
    SelectionRig rig(round % 2 == 0 ? bf16 : int8, *kernels::BestKernels(), 64, DType::kBF16);
    std::vector<float> q(64);
    for (float& value : q) {
      value = normal(rng);
    }
    std::vector<float> keys(2000 * 64);
    for (float& value : keys) {
      value = normal(rng);
    }
    const uint32_t needle = 8 * (5 + Draw(rng, 200));
    for (uint32_t i = 0; i < 8 * 64; ++i) {
      keys[needle * 64 + i] = 3 * q[i % 64];
    }
    rig.Append(keys);
    EXPECT_TRUE(rig.Choose({.min_context = 0}, 8, q, 0.125F).contains(needle));
  }
}

TEST(StreamingAlgorithmTest, SinkAndWindowAndNothingElse) {
  const StreamingAlgorithm algorithm;
  SelectWorkspace workspace(*kernels::BestKernels());
  for (const uint32_t num_tokens : {1U, 4U, 63U, 64U, 65U, 300U, 1024U}) {
    for (const uint32_t sink : {0U, 4U, 70U}) {
      for (const uint32_t recent : {0U, 1U, 64U, 200U}) {
        for (const uint32_t budget : {0U, 50U, 5000U}) {
          const SparseSettings settings{
              .sink_tokens = sink, .recent_tokens = recent, .min_context = 0};
          Selection selection;
          algorithm.Select(
              {.position = num_tokens - 1, .settings = &settings, .budget_tokens = budget},
              workspace,
              &selection);
          std::set<uint32_t> expected;
          for (uint32_t p = 0; p < num_tokens; ++p) {
            if (p < sink || p + std::max(1U, recent) + budget >= num_tokens) {
              expected.insert(p);
            }
          }
          EXPECT_EQ(PositionsOf(selection.tiles), expected);
        }
      }
    }
  }
}

}  // namespace
}  // namespace spindle::sparse
