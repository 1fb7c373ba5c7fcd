// SeerAttention-R's index and choice against their definition.
#include "sparse/seer_r/seer_algorithm.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "seer_support.h"
#include "selection_rig.h"
#include "support/random_seed.h"

namespace spindle::sparse {
namespace {

constexpr uint32_t kSeerMaxTokens = 1024;
#if defined(SPINDLE_SANITIZED)
constexpr uint32_t kSeerRounds = 60;
#else
constexpr uint32_t kSeerRounds = 1200;
#endif

uint32_t Pick(std::mt19937& rng, uint32_t n) {
  return static_cast<uint32_t>(rng() % n);
}

std::vector<float> Normals(size_t n, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) {
    value = normal(rng);
  }
  return values;
}

// Keys that lean another way in each block, so that blocks differ by more than chance.
std::vector<float> LeaningKeys(uint32_t num_tokens, uint32_t d, std::mt19937& rng) {
  std::vector<float> keys = Normals(size_t{num_tokens} * d, rng);
  std::vector<float> lean;
  for (uint32_t token = 0; token < num_tokens; ++token) {
    if (token % 64 == 0) {
      lean = Normals(d, rng);
    }
    for (uint32_t i = 0; i < d; ++i) {
      keys[size_t{token} * d + i] += 2 * lean[i];
    }
  }
  return keys;
}

struct GateScores {
  Doubles logits;       // of complete blocks
  Doubles exactness;    // how far a logit may be off
  double own = -1e300;  // of the row's incomplete block: 0; without one: none
};

// Logits of all complete blocks.
GateScores NaiveGateScores(const SelectionRig& rig,
                           const SeerGates& gates,
                           const tensor::AttentionSpec& spec,
                           const std::vector<float>& q) {
  const uint32_t num_tokens = rig.num_tokens();
  const Doubles query = NaiveGateQuery(gates, spec, 0, 0, q, num_tokens - 1);
  GateScores scores;
  for (uint32_t block = 0; (block + 1) * 64 <= num_tokens; ++block) {
    std::vector<Doubles> keys(64, Doubles(gates.head_dim));
    for (uint32_t lane = 0; lane < 64; ++lane) {
      for (uint32_t i = 0; i < gates.head_dim; ++i) {
        keys[lane][i] = double{rig.Key(block * 64 + lane, i)};
      }
    }
    const Doubles key = NaiveGateKey(gates, spec, 0, 0, keys, block * 64);
    double dot = 0;
    double sum = 0;
    double largest = 0;
    for (uint32_t i = 0; i < gates.width; ++i) {
      dot += query[i] * key[i];
      sum += std::abs(query[i] * key[i]);
      largest = std::max(largest, std::abs(query[i] * key[i]));
    }
    const double root = std::sqrt(static_cast<double>(gates.width));
    scores.logits.push_back(dot / root);
    // One element that rounds to the other side, and the roundings of fp32.
    scores.exactness.push_back((largest * 0x1p-7 + sum * 1e-5) / root);
  }
  if (num_tokens % 64 != 0) {
    scores.own = 0;
  }
  return scores;
}

void AddBlock(uint32_t block, std::set<uint32_t>* positions) {
  for (uint32_t i = 0; i < 64; ++i) {
    positions->insert(block * 64 + i);
  }
}

struct GateCase {
  GateShape shape;
  tensor::RopeTable rope;
  tensor::AttentionSpec spec;
  SeerGates gates;
  uint32_t num_tokens;
  SparseSettings settings;
  std::vector<float> q;
};

GateCase MakeCase(uint32_t round, std::mt19937& rng) {
  GateCase c;
  c.shape = {.group = 1 + Pick(rng, 4),
             .head_dim = round % 3 == 0 ? 64U : 16U,
             .width = round % 4 == 0 ? 32U : 64U,
             .qk_norm = round % 2 == 0,
             .rope_base = round % 7 == 0 ? 0.0F : 10000.0F};
  c.rope = MakeRope(kSeerMaxTokens, c.shape.head_dim, round % 5 == 0 ? 1.25F : 1.0F);
  c.spec.head_dim = c.shape.head_dim;
  c.spec.pairing =
      round % 2 == 0 ? kernels::RopePairing::kHalfSplit : kernels::RopePairing::kAdjacent;
  c.gates = RandomGates(c.shape, rng);
  c.num_tokens = round % 6 == 0 ? 64 * (1 + Pick(rng, 12)) : 1 + Pick(rng, 800);
  c.settings = {.sink_tokens = Pick(rng, 80), .recent_tokens = Pick(rng, 100), .min_context = 0};
  c.settings.always_ranks = round % 5 == 0;
  c.q = Normals(size_t{c.shape.group} * c.shape.head_dim, rng);
  return c;
}

// The first block and the row's own are attended whatever the settings say.
std::set<uint32_t> AlwaysOf(const GateCase& c) {
  std::set<uint32_t> positions = AlwaysAttended(c.settings, c.num_tokens, 64);
  if (c.num_tokens >= 64) {
    AddBlock(0, &positions);
    if (c.num_tokens % 64 == 0) {
      AddBlock(c.num_tokens / 64 - 1, &positions);
    }
  }
  return positions;
}

// Blocks that add something to `always`.
std::vector<uint32_t> BlocksBeside(const std::set<uint32_t>& always, uint32_t num_tokens) {
  std::vector<uint32_t> blocks;
  for (uint32_t block = 0; (block + 1) * 64 <= num_tokens; ++block) {
    for (uint32_t i = 0; i < 64; ++i) {
      if (!always.contains(block * 64 + i)) {
        blocks.push_back(block);
        break;
      }
    }
  }
  return blocks;
}

TEST(SeerAlgorithmTest, ChoicesEqualTheDefinition) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(51)));
  uint32_t num_ranked = 0;
  uint32_t num_near_ties = 0;
  for (uint32_t round = 0; round < kSeerRounds; ++round) {
    GateCase c = MakeCase(round, rng);
    c.spec.rope = &c.rope;
    const SeerAlgorithm algorithm(c.gates, kSeerMaxTokens);
    SelectionRig rig(algorithm,
                     *kernels::BestKernels(),
                     c.shape.head_dim,
                     round % 2 == 0 ? DType::kBF16 : DType::kF32,
                     &c.spec);
    rig.Append(LeaningKeys(c.num_tokens, c.shape.head_dim, rng));
    const uint32_t budget = Pick(rng, c.num_tokens + 70);
    std::set<uint32_t> expected = AlwaysOf(c);
    const GateScores scores = NaiveGateScores(rig, c.gates, c.spec, c.q);
    std::vector<uint32_t> ranking = BlocksBeside(expected, c.num_tokens);
    std::stable_sort(ranking.begin(), ranking.end(), [&](uint32_t a, uint32_t b) {
      return scores.logits[a] > scores.logits[b];
    });
    const size_t wanted = std::min<size_t>((budget + 63) / 64, ranking.size());
    if (wanted > 0 && wanted < ranking.size()) {
      const uint32_t in = ranking[wanted - 1];
      const uint32_t out = ranking[wanted];
      if (scores.logits[in] - scores.logits[out] < scores.exactness[in] + scores.exactness[out]) {
        ++num_near_ties;
        continue;
      }
      ++num_ranked;
    }
    for (size_t i = 0; i < wanted; ++i) {
      AddBlock(ranking[i], &expected);
    }
    ASSERT_EQ(rig.Choose(c.settings, budget, c.q, 0.125F), expected) << "round " << round;
  }
  EXPECT_GT(num_ranked, kSeerRounds / 3);
  EXPECT_LT(num_near_ties, kSeerRounds / 10);
}

TEST(SeerAlgorithmTest, ThresholdsEqualTheDefinition) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(52)));
  uint32_t num_between = 0;
  for (uint32_t round = 0; round < kSeerRounds / 4; ++round) {
    GateCase c = MakeCase(round, rng);
    c.spec.rope = &c.rope;
    const SeerAlgorithm algorithm(c.gates, kSeerMaxTokens);
    SelectionRig rig(algorithm, *kernels::BestKernels(), c.shape.head_dim, DType::kF32, &c.spec);
    rig.Append(LeaningKeys(c.num_tokens, c.shape.head_dim, rng));
    const double threshold = std::ldexp(1.0, -1 - static_cast<int>(Pick(rng, 13)));
    c.settings.knobs = {64, threshold};
    std::set<uint32_t> expected = AlwaysOf(c);
    const std::vector<uint32_t> blocks = BlocksBeside(expected, c.num_tokens);
    const GateScores scores = NaiveGateScores(rig, c.gates, c.spec, c.q);
    double sum = std::exp(scores.own);
    for (const double logit : scores.logits) {
      sum += std::exp(logit);
    }
    bool is_near = false;
    size_t passing = 0;
    for (const uint32_t block : blocks) {
      const double log_p = scores.logits[block] - std::log(sum);
      const double distance = log_p - std::log(threshold);
      is_near = is_near || std::abs(distance) < 2 * *std::max_element(scores.exactness.begin(),
                                                                      scores.exactness.end());
      if (distance > 0) {
        AddBlock(block, &expected);
        ++passing;
      }
    }
    if (is_near) {
      continue;
    }
    ASSERT_EQ(rig.Choose(c.settings, 0, c.q, 0.125F), expected) << "round " << round;
    num_between += passing > 0 && passing < blocks.size() ? 1U : 0U;
  }
  EXPECT_GT(num_between, kSeerRounds / 30);
}

TEST(SeerAlgorithmTest, AThresholdBelowZeroSelectsEverything) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(53)));
  for (uint32_t round = 0; round < 20; ++round) {
    GateCase c = MakeCase(round, rng);
    c.spec.rope = &c.rope;
    const SeerAlgorithm algorithm(c.gates, kSeerMaxTokens);
    SelectionRig rig(algorithm, *kernels::BestKernels(), c.shape.head_dim, DType::kBF16, &c.spec);
    rig.Append(LeaningKeys(c.num_tokens, c.shape.head_dim, rng));
    c.settings.knobs = {64, -1};
    EXPECT_EQ(rig.Choose(c.settings, 0, c.q, 0.125F).size(), c.num_tokens);
    c.settings.knobs = {64, 0.999999};  // no share is larger
    EXPECT_EQ(rig.Choose(c.settings, 0, c.q, 0.125F), AlwaysOf(c));
  }
}

TEST(SeerAlgorithmTest, TheFirstBlockAndTheRowsOwnAreAlwaysThere) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(54)));
  tensor::AttentionSpec spec;
  const tensor::RopeTable rope = MakeRope(kSeerMaxTokens, 64);
  spec.rope = &rope;
  const SeerAlgorithm algorithm(RandomGates({}, rng), kSeerMaxTokens);
  for (const uint32_t num_tokens : {1U, 63U, 64U, 65U, 127U, 128U, 129U, 640U, 700U}) {
    SelectionRig rig(algorithm, *kernels::BestKernels(), 64, DType::kBF16, &spec);
    rig.Append(LeaningKeys(num_tokens, 64, rng));
    std::set<uint32_t> expected;
    for (uint32_t p = 0; p < num_tokens; ++p) {
      if (p < 64 || p / 64 == (num_tokens - 1) / 64) {
        expected.insert(p);
      }
    }
    const SparseSettings settings{.sink_tokens = 0, .recent_tokens = 1, .min_context = 0};
    EXPECT_EQ(rig.Choose(settings, 0, Normals(64, rng), 0.125F), expected) << num_tokens;
  }
}

// Without training, blocks are ranked by the mean query and their mean key, both without rotation.
TEST(SeerAlgorithmTest, IdentityGatesScoreByMeanKeys) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(55)));
  constexpr uint32_t kDim = 16;
  constexpr uint32_t kGroup = 2;
  tensor::AttentionSpec spec;
  const tensor::RopeTable rope = MakeRope(kSeerMaxTokens, kDim);
  spec.rope = &rope;
  const SeerAlgorithm algorithm(
      MeanKeyGates({.group = kGroup, .head_dim = kDim, .width = kDim, .rope_base = 0.0F}),
      kSeerMaxTokens);
  for (uint32_t round = 0; round < 50; ++round) {
    // Means of block b: small integers, no two products equal.
    constexpr uint32_t kBlocks = 12;
    std::vector<float> heads[kGroup] = {Normals(kDim, rng), Normals(kDim, rng)};
    std::vector<double> score(kBlocks, 0.0);
    std::vector<float> keys;
    for (uint32_t block = 0; block < kBlocks; ++block) {
      const std::vector<float> mean = Normals(kDim, rng);
      for (uint32_t i = 0; i < kDim; ++i) {
        score[block] += double{mean[i]} * double{heads[0][i] + heads[1][i]};
      }
      for (uint32_t lane = 0; lane < 64; ++lane) {
        // Around the mean, in pairs that cancel.
        Doubles key(mean.begin(), mean.end());
        key[lane / 2 % kDim] += lane % 2 == 0 ? 3.0 : -3.0;
        const Doubles rotated = Turn(key, spec, block * 64 + lane, 1);
        keys.insert(keys.end(), rotated.begin(), rotated.end());
      }
    }
    SelectionRig rig(algorithm, *kernels::BestKernels(), kDim, DType::kF32, &spec);
    rig.Append(keys);
    std::vector<float> q;
    for (const std::vector<float>& head : heads) {
      const Doubles rotated = Turn(Doubles(head.begin(), head.end()), spec, kBlocks * 64 - 1, 1);
      q.insert(q.end(), rotated.begin(), rotated.end());
    }
    const std::set<uint32_t> chosen =
        rig.Choose({.sink_tokens = 0, .recent_tokens = 1, .min_context = 0}, 64, q, 0.25F);
    const auto best = std::max_element(score.begin() + 1, score.end() - 1);
    double second = -1e300;
    for (auto it = score.begin() + 1; it != score.end() - 1; ++it) {
      second = it == best ? second : std::max(second, *it);
    }
    if (*best - second < 0.2) {
      continue;  // the index is bf16
    }
    EXPECT_EQ(chosen.size(), 3 * 64U);
    EXPECT_TRUE(chosen.contains(static_cast<uint32_t>(best - score.begin()) * 64)) << round;
  }
}

TEST(SeerAlgorithmTest, IncrementalEqualsBulk) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(56)));
  tensor::AttentionSpec spec;
  const tensor::RopeTable rope = MakeRope(kSeerMaxTokens, 64);
  spec.rope = &rope;
  const SeerAlgorithm algorithm(RandomGates({.qk_norm = true}, rng), kSeerMaxTokens);
  SelectionRig one_by_one(algorithm, *kernels::BestKernels(), 64, DType::kBF16, &spec);
  SelectionRig at_once(algorithm, *kernels::BestKernels(), 64, DType::kBF16, &spec);
  const std::vector<float> keys = LeaningKeys(260, 64, rng);
  for (uint32_t i = 0; i < 260; ++i) {
    one_by_one.Append(std::span(keys).subspan(size_t{i} * 64, 64));
  }
  at_once.Append(keys);
  EXPECT_EQ(one_by_one.index(), at_once.index());
  // A block that is not complete has no index yet.
  EXPECT_EQ(at_once.index()[4][0], ~uint64_t{0});
  EXPECT_NE(at_once.index()[3][0], ~uint64_t{0});
}

}  // namespace
}  // namespace spindle::sparse
