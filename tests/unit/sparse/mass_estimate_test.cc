// The estimate of attention mass and what is selected by it, against plain definitions.
#include "sparse/mass_estimate.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "selection_rig.h"
#include "sparse/shadowkv/shadowkv_algorithm.h"
#include "support/random_seed.h"

namespace spindle::sparse {
namespace {

constexpr uint32_t kMassDim = 16;
constexpr uint32_t kMassChunk = ShadowKvAlgorithm::kChunkTokens;
constexpr float kMassScale = 0.25F;
#if defined(SPINDLE_SANITIZED)
constexpr uint32_t kMassRounds = 100;
#else
constexpr uint32_t kMassRounds = 1200;
#endif

struct MassCase {
  std::vector<float> keys;
  std::vector<float> q;
  uint32_t num_tokens;
  uint32_t group;
  SparseSettings settings;
};

// Chunks around directions of their own, some of which the queries like.
MassCase DrawMassCase(std::mt19937& rng) {
  std::normal_distribution<float> normal;
  MassCase drawn;
  drawn.num_tokens = 1 + static_cast<uint32_t>(rng() % 600);
  drawn.group = 1 + static_cast<uint32_t>(rng() % 4);
  for (uint32_t i = 0; i < drawn.group * kMassDim; ++i) {
    drawn.q.push_back(normal(rng));
  }
  std::vector<float> direction(kMassDim);
  for (uint32_t i = 0; i < drawn.num_tokens; ++i) {
    for (uint32_t e = 0; e < kMassDim; ++e) {
      direction[e] = i % kMassChunk == 0 ? 3 * normal(rng) : direction[e];
      drawn.keys.push_back(direction[e] + 0.3F * normal(rng));
    }
  }
  drawn.settings.sink_tokens = static_cast<uint32_t>(rng() % 20);
  drawn.settings.recent_tokens = static_cast<uint32_t>(rng() % 80);
  drawn.settings.min_context = 0;
  return drawn;
}

// The definition, in double precision.
struct NaiveMass {
  std::set<uint32_t> always;
  std::vector<uint32_t> candidates;         // chunks with a token that is not always attended
  std::vector<std::vector<double>> weight;  // [query head][candidates]
  std::vector<double> always_weight;        // [query head]
  std::vector<double> whole;                // [query head]
  std::vector<uint32_t> ranking;            // of candidates, best first

  [[nodiscard]] double Covered(uint32_t head, uint32_t count) const {
    double sum = always_weight[head];
    for (uint32_t i = 0; i < count; ++i) {
      sum += weight[head][ranking[i]];
    }
    return sum / whole[head];
  }

  [[nodiscard]] double Least(uint32_t count) const {
    double least = 1;
    for (uint32_t head = 0; head < whole.size(); ++head) {
      least = std::min(least, Covered(head, count));
    }
    return least;
  }

  [[nodiscard]] std::set<uint32_t> Positions(uint32_t count) const {
    std::set<uint32_t> positions = always;
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t t = 0; t < kMassChunk; ++t) {
        positions.insert(candidates[ranking[i]] * kMassChunk + t);
      }
    }
    return positions;
  }
};

double MassDot(const MassCase& of, uint32_t head, const std::vector<double>& key) {
  double sum = 0;
  for (uint32_t e = 0; e < kMassDim; ++e) {
    sum += double{of.q[head * kMassDim + e]} * key[e];
  }
  return sum;
}

std::vector<double> KeyOf(const SelectionRig& rig, uint32_t position) {
  std::vector<double> key(kMassDim);
  for (uint32_t e = 0; e < kMassDim; ++e) {
    key[e] = double{rig.Key(position, e)};
  }
  return key;
}

// About 32, equally far apart, of the chunks between sink and recent tokens; outliers among them
// are none.
std::set<uint32_t> SampledChunks(const MassCase& of) {
  const uint32_t begin = of.settings.sink_tokens / kMassChunk;
  const uint32_t recent = std::min(of.num_tokens, std::max(1U, of.settings.recent_tokens));
  uint32_t end = begin;
  while ((end + 1) * kMassChunk <= of.num_tokens && end * kMassChunk < of.num_tokens - recent) {
    ++end;
  }
  std::set<uint32_t> chunks;
  for (uint32_t chunk = begin; chunk < end; chunk += (end - begin + 31) / 32) {
    chunks.insert(chunk);
  }
  return chunks;
}

NaiveMass DefineMass(const MassCase& of, const SelectionRig& rig, std::set<uint32_t> always) {
  NaiveMass mass;
  mass.always = std::move(always);
  std::vector<std::vector<double>> means;
  for (uint32_t chunk = 0; (chunk + 1) * kMassChunk <= of.num_tokens; ++chunk) {
    uint32_t beside = 0;
    std::vector<double> mean(kMassDim, 0.0);
    for (uint32_t i = 0; i < kMassChunk; ++i) {
      beside += mass.always.contains(chunk * kMassChunk + i) ? 0U : 1U;
      for (uint32_t e = 0; e < kMassDim; ++e) {
        mean[e] += double{rig.Key(chunk * kMassChunk + i, e)} / kMassChunk;
      }
    }
    for (double& value : mean) {
      value = double{kernels::Bf16ToFloat(kernels::FloatToBf16(static_cast<float>(value)))};
    }
    if (beside > 0) {
      mass.candidates.push_back(chunk);
      means.push_back(mean);
    }
  }
  const std::set<uint32_t> sampled = SampledChunks(of);
  std::vector<double> best(mass.candidates.size(), -1e300);
  for (uint32_t head = 0; head < of.group; ++head) {
    double always_weight = 0;
    for (const uint32_t position : mass.always) {
      always_weight += std::exp(double{kMassScale} * MassDot(of, head, KeyOf(rig, position)));
    }
    std::vector<double>& weights = mass.weight.emplace_back();
    double sum = 0;
    double sampled_exactly = 0;
    double sampled_by_means = 0;
    for (uint32_t i = 0; i < means.size(); ++i) {
      uint32_t beside = 0;
      double exact = 0;
      for (uint32_t t = 0; t < kMassChunk; ++t) {
        const uint32_t position = mass.candidates[i] * kMassChunk + t;
        if (!mass.always.contains(position)) {
          ++beside;
          exact += std::exp(double{kMassScale} * MassDot(of, head, KeyOf(rig, position)));
        }
      }
      const double power = std::exp(double{kMassScale} * MassDot(of, head, means[i]));
      sum += power;
      weights.push_back(beside * power);
      if (sampled.contains(mass.candidates[i])) {
        sampled_exactly += exact;
        sampled_by_means += weights.back();
      }
    }
    double whole = always_weight;
    for (double& weight : weights) {
      weight *= sampled_by_means > 0 ? sampled_exactly / sampled_by_means : 1;
      whole += weight;
    }
    for (uint32_t i = 0; i < means.size(); ++i) {
      best[i] = std::max(best[i], double{kMassScale} * MassDot(of, head, means[i]) - std::log(sum));
    }
    mass.always_weight.push_back(always_weight);
    mass.whole.push_back(whole);
  }
  for (uint32_t i = 0; i < best.size(); ++i) {
    mass.ranking.push_back(i);
  }
  std::stable_sort(mass.ranking.begin(), mass.ranking.end(), [&best](uint32_t a, uint32_t b) {
    return best[a] > best[b];
  });
  return mass;
}

// The fewest of the ranking that cover `share` for every head, at most `most`; -1: too close to
// the border to say.
int64_t NaiveCount(const NaiveMass& mass, double share, uint32_t most) {
  constexpr double kNear = 1e-4;
  uint32_t count = 0;
  while (count < most && mass.Least(count) < share) {
    if (mass.Least(count) > share - kNear) {
      return -1;
    }
    ++count;
  }
  return mass.Least(count) < share + kNear && count < most ? -1 : int64_t{count};
}

TEST(MassEstimateTest, TopPEqualsTheDefinitionAndCoversEveryHead) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(41)));
  uint32_t num_compared = 0;
  uint32_t num_capped = 0;
  for (uint32_t round = 0; round < kMassRounds + kMassRounds / 4; ++round) {
    const ShadowKvAlgorithm algorithm(round % 3 == 0 ? 0 : 5);
    MassCase drawn = DrawMassCase(rng);
    SelectionRig rig(algorithm, *kernels::BestKernels(), kMassDim, DType::kF32);
    rig.Append(drawn.keys);
    const std::set<uint32_t> always = rig.Choose(drawn.settings, 0, drawn.q, kMassScale);
    const NaiveMass mass = DefineMass(drawn, rig, always);
    const double share = 0.05 + 0.9 * static_cast<double>(rng() % 1000) / 1000;
    const uint32_t budget =
        round % 4 == 0 ? static_cast<uint32_t>(rng() % drawn.num_tokens) : drawn.num_tokens;
    drawn.settings.top_p_mass = share;
    const uint32_t most = std::min((budget + kMassChunk - 1) / kMassChunk,
                                   static_cast<uint32_t>(mass.candidates.size()));
    const int64_t count = NaiveCount(mass, share, most);
    const Selection chosen = rig.Select(drawn.settings, budget, drawn.q, kMassScale);
    if (count < 0) {
      continue;
    }
    const auto wanted = static_cast<uint32_t>(count);
    ASSERT_EQ(PositionsOf(chosen.tiles), mass.Positions(wanted)) << "round " << round;
    ASSERT_NEAR(chosen.mass, mass.Least(wanted), 1e-3) << "round " << round;
    if (wanted < most) {
      for (uint32_t head = 0; head < drawn.group; ++head) {
        ASSERT_GE(mass.Covered(head, wanted), share);
      }
    }
    ++num_compared;
    num_capped += most > 0 && wanted == most && mass.Least(wanted) < share ? 1U : 0U;
  }
  EXPECT_GE(num_compared, kMassRounds);
  EXPECT_GT(num_capped, 0U);
}

TEST(MassEstimateTest, LargerSharesChooseSupersets) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(42)));
  for (uint32_t round = 0; round < 100; ++round) {
    const ShadowKvAlgorithm algorithm(3);
    MassCase drawn = DrawMassCase(rng);
    SelectionRig rig(algorithm, *kernels::BestKernels(), kMassDim, DType::kBF16);
    rig.Append(drawn.keys);
    std::set<uint32_t> last;
    float last_mass = 0;
    for (const double share : {0.1, 0.5, 0.8, 0.95, 0.999, 1.0}) {
      drawn.settings.top_p_mass = share;
      const Selection chosen = rig.Select(drawn.settings, drawn.num_tokens, drawn.q, kMassScale);
      const std::set<uint32_t> positions = PositionsOf(chosen.tiles);
      ASSERT_TRUE(std::includes(positions.begin(), positions.end(), last.begin(), last.end()));
      ASSERT_GE(chosen.mass, last_mass);
      ASSERT_GE(chosen.mass, static_cast<float>(share) - 1e-5F);
      last = positions;
      last_mass = chosen.mass;
    }
  }
}

TEST(MassEstimateTest, ABudgetHasAnEstimateThatChangesNothing) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(43)));
  for (uint32_t round = 0; round < 200; ++round) {
    const ShadowKvAlgorithm algorithm(round % 2 == 0 ? 0 : 4);
    MassCase drawn = DrawMassCase(rng);
    SelectionRig rig(algorithm, *kernels::BestKernels(), kMassDim, DType::kF32);
    rig.Append(drawn.keys);
    const std::set<uint32_t> always = rig.Choose(drawn.settings, 0, drawn.q, kMassScale);
    const NaiveMass mass = DefineMass(drawn, rig, always);
    const auto budget = static_cast<uint32_t>(rng() % drawn.num_tokens);
    const Selection plain = rig.Select(drawn.settings, budget, drawn.q, kMassScale);
    EXPECT_TRUE(std::isnan(plain.mass));
    drawn.settings.estimates_mass = true;
    const Selection estimated = rig.Select(drawn.settings, budget, drawn.q, kMassScale);
    ASSERT_EQ(PositionsOf(plain.tiles), PositionsOf(estimated.tiles));
    const uint32_t wanted = std::min((budget + kMassChunk - 1) / kMassChunk,
                                     static_cast<uint32_t>(mass.candidates.size()));
    ASSERT_NEAR(estimated.mass, mass.Least(wanted), 1e-3) << "round " << round;
  }
}

// Keys of a chunk that are all the same are what their mean says: the estimate is the truth.
TEST(MassEstimateTest, EqualKeysAreWeighedExactly) {
  const ShadowKvAlgorithm algorithm(0);
  SelectionRig rig(algorithm, *kernels::BestKernels(), kMassDim, DType::kF32);
  std::vector<float> keys(128 * kMassDim, 0.0F);
  for (uint32_t i = 0; i < 128; ++i) {
    keys[i * kMassDim] = static_cast<float>(i / kMassChunk % 5);  // exact in bf16
  }
  rig.Append(keys);
  std::vector<float> q(kMassDim, 0.0F);
  q[0] = 4.0F;
  SparseSettings settings{.sink_tokens = 3, .recent_tokens = 10, .min_context = 0};
  settings.estimates_mass = true;
  const Selection chosen = rig.Select(settings, 24, q, kMassScale);
  const std::set<uint32_t> positions = PositionsOf(chosen.tiles);
  double covered = 0;
  double whole = 0;
  for (uint32_t i = 0; i < 128; ++i) {
    const double weight = std::exp(double{keys[i * kMassDim]});
    whole += weight;
    covered += positions.contains(i) ? weight : 0;
  }
  EXPECT_NEAR(chosen.mass, covered / whole, 1e-5);
}

}  // namespace
}  // namespace spindle::sparse
