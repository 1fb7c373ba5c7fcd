// What governs choices beside the budget: choices that are kept for some rows, the guard that
// attends to a layer densely, estimates, and knobs; the same bits in any chunking, placement and
// after a preemption.
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "attention_rig.h"
#include "sparse/algorithm_registry.h"

namespace spindle::sparse {
namespace {

constexpr uint32_t kControlPrompt = 460;  // decoding begins in the middle of a stripe …
constexpr uint32_t kControlSteps = 70;    // … and crosses two borders
constexpr uint32_t kControlEnd = kControlPrompt + kControlSteps;

RigOptions ControlRig(bool mirror = false) {
  return {.table = kernels::BestKernels()->name.data(),
          .num_layers = 2,
          .num_q_heads = 4,
          .num_kv_heads = 2,
          .num_threads = 2,
          .num_stripes = 120,
          .mirror = mirror,
          .frames_per_group = mirror ? 8U : 0U};
}

SparseSettings SmallBudget() {
  return {.budget_tokens = 48, .sink_tokens = 4, .recent_tokens = 20, .min_context = 0};
}

SparseSettings Interval(uint32_t k) {
  SparseSettings settings = SmallBudget();
  settings.reselect_interval = k;
  return settings;
}

struct ControlRun {
  AttentionRig& rig;
  const SparsePolicy* policy;
  SequenceId sequence = rig.Open();
  KeptChoice kept = {};
  DecodeUse use = {};
  std::vector<LayerUse> layers = {};  // sized by those who want them

  std::vector<float> Rows(uint32_t begin, uint32_t end) {
    RigRows rows{sequence, 1, begin, end - begin, policy, kControlPrompt, &kept, &use};
    rows.layers = layers;
    return rig.Step({&rows, 1});
  }

  // One row a step.
  std::vector<float> Decode(uint32_t begin, uint32_t end) {
    std::vector<float> results;
    for (uint32_t position = begin; position < end; ++position) {
      const std::vector<float> part = Rows(position, position + 1);
      results.insert(results.end(), part.begin(), part.end());
    }
    return results;
  }

  // Rows [begin, end) in one step, of which those from `wanted` on are returned.
  std::vector<float> Tail(uint32_t begin, uint32_t end, uint32_t wanted) {
    const std::vector<float> all = Rows(begin, end);
    return {all.begin() + static_cast<ptrdiff_t>((wanted - begin) * rig.token_width()), all.end()};
  }
};

std::vector<float> DecodeBehindPrompt(AttentionRig& rig, const SparsePolicy* policy) {
  ControlRun run{rig, policy};
  run.Rows(0, kControlPrompt);
  return run.Decode(kControlPrompt, kControlEnd);
}

class ReselectTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ReselectTest, RowsBetweenChoicesAttendToTheLastOneAndWhatHasComeSince) {
  AttentionRig rig(ControlRig());
  const SparsePolicy policy(FindAlgorithm(GetParam()), Interval(5));
  const SparsePolicy every_row(FindAlgorithm(GetParam()), SmallBudget());
  ControlRun held{rig, &policy};
  ControlRun chosen{rig, &every_row};
  held.Rows(0, kControlPrompt);
  chosen.Rows(0, kControlPrompt);
  uint32_t num_held = 0;
  for (uint32_t position = kControlPrompt; position < kControlEnd; ++position) {
    const bool chooses = policy.AnchorOf(position, kControlPrompt) == position;
    EXPECT_EQ(chooses, position == kControlPrompt || position % 64 % 5 == 0);
    const std::vector<float> mine = held.Rows(position, position + 1);
    const std::vector<float> other = chosen.Rows(position, position + 1);
    if (chooses) {
      EXPECT_TRUE(SameBits(mine, other)) << position;  // the rig's inputs do not depend on outputs
    }
    num_held += chooses ? 0U : 1U;
    // One more token per row since the choice, on top of it.
    uint32_t live = 0;
    for (const Selection& group : held.kept.groups) {
      live += position - held.kept.anchor;
      for (const TileLive& tile : group.tiles) {
        live += static_cast<uint32_t>(std::popcount(tile.live));
      }
    }
    EXPECT_NEAR(held.use.last_share * (position + 1) * 4, live, 1e-3);
    EXPECT_EQ(held.kept.anchor, policy.AnchorOf(position, kControlPrompt));
  }
  EXPECT_GT(num_held, kControlSteps / 2);
}

TEST_P(ReselectTest, ChunksAndPlacementDoNotMatter) {
  const SparsePolicy policy(FindAlgorithm(GetParam()), Interval(7));
  AttentionRig rig(ControlRig());
  const std::vector<float> expected = DecodeBehindPrompt(rig, &policy);
  AttentionRig mirror(ControlRig(/*mirror=*/true));
  EXPECT_TRUE(SameBits(DecodeBehindPrompt(mirror, &policy), expected));
  ControlRun at_once{rig, &policy};
  EXPECT_TRUE(SameBits(at_once.Tail(0, kControlEnd, kControlPrompt), expected));
  ControlRun in_chunks{rig, &policy};
  in_chunks.Rows(0, kControlPrompt - 3);
  std::vector<float> results =
      in_chunks.Tail(kControlPrompt - 3, kControlPrompt + 3, kControlPrompt);
  for (uint32_t begin = kControlPrompt + 3; begin < kControlEnd; begin += 9) {
    const std::vector<float> part = in_chunks.Rows(begin, std::min(begin + 9, kControlEnd));
    results.insert(results.end(), part.begin(), part.end());
  }
  EXPECT_TRUE(SameBits(results, expected));
}

// What a preempted sequence does: its rows are computed again from a stripe on, or its open stripe
// comes back and it goes on; either way with what it had kept.
TEST_P(ReselectTest, ReplayAfterAPreemptionGivesTheSameBits) {
  const SparsePolicy policy(FindAlgorithm(GetParam()), Interval(11));
  AttentionRig rig(ControlRig());
  const uint32_t stop = kControlPrompt + 60;  // between two choices
  ControlRun run{rig, &policy};
  run.Rows(0, kControlPrompt);
  run.Decode(kControlPrompt, stop);
  const KeptChoice kept = run.kept;
  const std::vector<float> expected = run.Decode(stop, kControlEnd);
  for (const uint32_t from : {64U, 448U, 512U, stop}) {
    ControlRun again{rig, &policy};
    again.Rows(0, from);
    again.kept = kept;
    if (from < stop) {
      again.Rows(from, stop);
    }
    EXPECT_TRUE(SameBits(again.Decode(stop, kControlEnd), expected)) << from;
    rig.store().Close(again.sequence);
  }
}

TEST_P(ReselectTest, AnIntervalBehindAShortContextBeginsWithAChoice) {
  SparseSettings settings = Interval(64);
  settings.min_context = kControlPrompt + 20;
  const SparsePolicy policy(FindAlgorithm(GetParam()), settings);
  EXPECT_EQ(policy.AnchorOf(kControlPrompt + 25, kControlPrompt), kControlPrompt + 19);
  AttentionRig rig(ControlRig());
  const std::vector<float> expected = DecodeBehindPrompt(rig, &policy);
  ControlRun at_once{rig, &policy};
  EXPECT_TRUE(SameBits(at_once.Tail(0, kControlEnd, kControlPrompt), expected));
}

#if defined(SPINDLE_SANITIZED)
constexpr const char* kHolders[] = {"shadowkv"};
#else
constexpr const char* kHolders[] = {"dense", "streaming", "quest", "shadowkv"};
#endif
INSTANTIATE_TEST_SUITE_P(Algorithms, ReselectTest, ::testing::ValuesIn(kHolders));

TEST(QualityGuardTest, LayersUnderTheLeastMassAreDense) {
  for (const bool mirror : {false, true}) {
    AttentionRig rig(ControlRig(mirror));
    const std::vector<float> dense = DecodeBehindPrompt(rig, nullptr);
    SparseSettings settings = SmallBudget();
    settings.knobs = {8, 4};
    const SparsePolicy unguarded(FindAlgorithm("shadowkv"), settings);
    const std::vector<float> plain = DecodeBehindPrompt(rig, &unguarded);
    EXPECT_FALSE(SameBits(plain, dense));

    settings.min_mass = 1e-6;  // always reached
    const SparsePolicy lenient(FindAlgorithm("shadowkv"), settings);
    ControlRun easy{rig, &lenient};
    easy.Rows(0, kControlPrompt);
    EXPECT_TRUE(SameBits(easy.Decode(kControlPrompt, kControlEnd), plain));
    EXPECT_EQ(easy.use.fallback_rows, 0U);
    EXPECT_EQ(easy.use.mass_rows, kControlSteps);
    EXPECT_GT(easy.use.mass_min, 0.05);
    EXPECT_LT(easy.use.mass_sum / kControlSteps, 0.95);

    settings.min_mass = 1;  // never
    const SparsePolicy strict(FindAlgorithm("shadowkv"), settings);
    ControlRun hard{rig, &strict};
    hard.Rows(0, kControlPrompt);
    EXPECT_TRUE(SameBits(hard.Decode(kControlPrompt, kControlEnd), dense));
    EXPECT_EQ(hard.use.fallback_rows, kControlSteps);
    EXPECT_EQ(hard.use.share_min, 1);
    EXPECT_EQ(hard.use.mass_min, 1);
  }
}

// Per layer and row: with the guard at the median some fall back, and each is one or the other.
TEST(QualityGuardTest, EachLayerIsDenseOrChosen) {
  AttentionRig rig(ControlRig());
  const std::vector<float> dense = DecodeBehindPrompt(rig, nullptr);
  SparseSettings settings = SmallBudget();
  settings.knobs = {8, 4};
  settings.estimates_mass = true;
  const SparsePolicy unguarded(FindAlgorithm("shadowkv"), settings);
  ControlRun free{rig, &unguarded};
  free.Rows(0, kControlPrompt);
  const std::vector<float> plain = free.Decode(kControlPrompt, kControlEnd);
  settings.min_mass = free.use.mass_min + 0.02;
  const SparsePolicy policy(FindAlgorithm("shadowkv"), settings);
  ControlRun guarded{rig, &policy};
  guarded.Rows(0, kControlPrompt);
  const std::vector<float> mixed = guarded.Decode(kControlPrompt, kControlEnd);
  uint32_t num_dense = 0;
  uint32_t num_chosen = 0;
  for (size_t at = 0; at < mixed.size(); at += rig.q_width()) {
    const auto equals = [&](const std::vector<float>& other) {
      return std::memcmp(&mixed[at], &other[at], rig.q_width() * sizeof(float)) == 0;
    };
    EXPECT_TRUE(equals(dense) || equals(plain));
    num_dense += equals(dense) ? 1U : 0U;
    num_chosen += equals(plain) ? 1U : 0U;
  }
  EXPECT_GT(num_dense, 0U);
  EXPECT_GT(num_chosen, 0U);
  EXPECT_GT(guarded.use.fallback_rows, 0U);
  EXPECT_GE(guarded.use.MeanMass(), free.use.MeanMass());
}

TEST(MassInTheRuntimeTest, TopPAttendsToLessThanAllAndKeepsItsWord) {
  for (const bool mirror : {false, true}) {
    AttentionRig rig(ControlRig(mirror));
    SparseSettings settings{.budget_fraction = 1, .recent_tokens = 20, .min_context = 0};
    settings.knobs = {8, 4};
    double last_share = 0;
    for (const double mass : {0.5, 0.8, 0.95}) {
      settings.top_p_mass = mass;
      const SparsePolicy policy(FindAlgorithm("shadowkv"), settings);
      ControlRun run{rig, &policy};
      run.Rows(0, kControlPrompt);
      const std::vector<float> results = run.Decode(kControlPrompt, kControlEnd);
      EXPECT_EQ(run.use.mass_rows, kControlSteps);
      EXPECT_GE(run.use.mass_min, mass - 1e-5);
      const double share = run.use.share_sum / kControlSteps;
      EXPECT_GT(share, last_share);
      EXPECT_LT(share, 1);
      last_share = share;
      ControlRun at_once{rig, &policy};
      EXPECT_TRUE(SameBits(at_once.Tail(0, kControlEnd, kControlPrompt), results));
    }
  }
}

TEST(MassInTheRuntimeTest, AnEstimateCostsNoBit) {
  AttentionRig rig(ControlRig());
  SparseSettings settings = SmallBudget();
  const SparsePolicy plain(FindAlgorithm("shadowkv"), settings);
  settings.estimates_mass = true;
  const SparsePolicy estimated(FindAlgorithm("shadowkv"), settings);
  EXPECT_TRUE(SameBits(DecodeBehindPrompt(rig, &plain), DecodeBehindPrompt(rig, &estimated)));
}

TEST(LayerUseTest, LayersAddUpToTheRows) {
  for (const bool one_is_dense : {false, true}) {
    AttentionRig rig(ControlRig());
    SparseSettings settings = SmallBudget();
    settings.estimates_mass = true;
    settings.dense_layers = {one_is_dense, false};
    const SparsePolicy policy(FindAlgorithm("shadowkv"), settings);
    ControlRun run{rig, &policy};
    run.layers.resize(2);
    run.Rows(0, kControlPrompt);
    run.Decode(kControlPrompt, kControlEnd);
    EXPECT_EQ(run.layers[0].rows, one_is_dense ? 0U : kControlSteps);
    EXPECT_EQ(run.layers[1].rows, kControlSteps);
    EXPECT_EQ(run.layers[1].mass_rows, kControlSteps);
    EXPECT_EQ(run.layers[0].MeanShare() == 1, one_is_dense);
    const double num_layers = one_is_dense ? 1 : 2;
    EXPECT_NEAR(
        run.layers[0].share_sum + run.layers[1].share_sum, num_layers * run.use.share_sum, 1e-9);
    EXPECT_NEAR(
        run.layers[0].mass_sum + run.layers[1].mass_sum, num_layers * run.use.mass_sum, 1e-9);
    EXPECT_EQ(run.layers[0].page_hits + run.layers[1].page_misses, 0U) << "read where they are";
    EXPECT_EQ(run.layers[1].HitRate(), 1);
  }
}

TEST(LayerUseTest, PagesOfGeneratedRowsCount) {
  AttentionRig rig(ControlRig(/*mirror=*/true));
  const SparsePolicy policy(FindAlgorithm("quest"), SmallBudget());
  for (const SparsePolicy* const attends : {static_cast<const SparsePolicy*>(nullptr), &policy}) {
    ControlRun run{rig, attends};
    run.layers.resize(2);
    run.Rows(0, kControlPrompt);
    EXPECT_EQ(run.layers[0].page_hits + run.layers[0].page_misses, 0U) << "of the prompt";
    const MirrorCounters before = rig.runtime().Counters();
    run.Decode(kControlPrompt, kControlEnd);
    const MirrorCounters after = rig.runtime().Counters();
    EXPECT_EQ(run.layers[0].page_hits + run.layers[1].page_hits,
              after.page_hits - before.page_hits);
    EXPECT_EQ(run.layers[0].page_misses + run.layers[1].page_misses,
              after.page_misses - before.page_misses);
    for (const LayerUse& layer : run.layers) {
      EXPECT_GT(layer.page_hits, 0U);
      EXPECT_GT(layer.HitRate(), 0);
      EXPECT_LT(layer.HitRate(), 1) << "too few frames for everything";
      EXPECT_EQ(layer.mass_rows, 0U) << "no estimates";
    }
  }
}

}  // namespace
}  // namespace spindle::sparse
