// Who gets how many frames of the fast tier: floors, growth and shrinking, caps, skipped steps.
#include "engine/fast_budget.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "metrics/metrics.h"
#include "sparse/algorithm_registry.h"
#include "sparse/dense/dense_algorithm.h"

namespace spindle::engine {
namespace {

constexpr uint32_t kGroups = 4;

class FastBudgetTest : public ::testing::Test {
 protected:
  // 2 layers × 2 heads, pages of 16 tokens and 4 KiB, one ring of 64 frames.
  explicit FastBudgetTest(uint32_t frames_per_group = 64) {
    kv::FastTierOptions options;
    options.geometry = {.num_layers = 2, .num_kv_heads = 2, .head_dim = 64};
    options.ring_frames = 64;
    options.fast_bytes = (uint64_t{64} + uint64_t{kGroups} * frames_per_group) * 4096;
    options.metadata_bytes = uint64_t{4} << 20;
    auto tier = kv::FastTier::Create(options, *kernels::BestKernels());
    EXPECT_TRUE(tier.ok()) << tier.status();
    tier_ = *std::move(tier);
    budget_ = std::make_unique<FastBudget>(
        sparse::FastMemory{tier_.get(), &link_}, options.geometry, metrics_);
  }

  // A request with a prompt, running if there is room. `pages` 0: dense.
  Choice& Start(uint32_t prompt_tokens, double pages = 0, float ratio = 5.0F) {
    SparseDecode decode;
    if (pages > 0) {
      decode = {.policy = std::make_shared<const sparse::SparsePolicy>(
                    std::make_shared<const sparse::DenseAlgorithm>(), sparse::SparseSettings{}),
                .mandatory_pages = pages};
    }
    return StartWith(decode, prompt_tokens, ratio);
  }

  static SparseDecode Sparse(const char* algorithm, const sparse::SparseSettings& settings) {
    SparseDecode decode;
    decode.policy =
        std::make_shared<const sparse::SparsePolicy>(sparse::FindAlgorithm(algorithm), settings);
    return decode;
  }

  Choice& StartWith(const SparseDecode& decode, uint32_t prompt_tokens, float ratio) {
    requests_.push_back(std::make_unique<Request>());
    Request& request = *requests_.back();
    request.spec.prompt.assign(prompt_tokens, 1);
    request.spec.buffer_ratio = ratio;
    request.spec.decode = decode;
    request.choices.resize(1);
    Choice& choice = request.choices[0];
    choice.request = &request;
    choice.history = request.spec.prompt;
    const absl::Status status = budget_->Open(choice);
    EXPECT_TRUE(status.ok()) << status;
    running_.push_back(&choice);
    return choice;
  }

  void Steps(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      budget_->BeginStep(running_);
    }
  }

  void Stop(Choice& choice) {
    budget_->Close(choice);
    std::erase(running_, &choice);
  }

  void ExpectIntact() {
    uint64_t frames = 0;
    for (const Choice* choice : running_) {
      frames += uint64_t{choice->fast.frames_per_group} * kGroups;
      EXPECT_EQ(tier_->Stats(choice->fast.set).frames,
                uint64_t{choice->fast.frames_per_group} * kGroups);
    }
    EXPECT_EQ(frames + tier_->num_free_frames() + 64, tier_->pool().num_frames());
    const absl::Status status = tier_->CheckIntegrity();
    EXPECT_TRUE(status.ok()) << status;
  }

  metrics::Registry registry_{{}};
  FastMetrics metrics_{registry_};
  kv::EmulatedLink link_{{.gigabytes_per_second = 1.0F, .latency_us = 0}};
  std::unique_ptr<kv::FastTier> tier_;
  std::unique_ptr<FastBudget> budget_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Choice*> running_;
};

TEST_F(FastBudgetTest, DenseTakesWhatItsContextNeedsAndIsFree) {
  EXPECT_EQ(Start(300).fast.frames_per_group, 24U);   // 19 pages, whole runs
  EXPECT_EQ(Start(2000).fast.frames_per_group, 40U);  // 125 pages, the rest of the frames
  EXPECT_EQ(Start(500).fast.frames_per_group, 0U);    // runs all the same
  ExpectIntact();
}

TEST_F(FastBudgetTest, DenseRequestsShareEvenlyInTime) {
  const Choice& first = Start(2000);
  const Choice& second = Start(2000);
  EXPECT_EQ(first.fast.frames_per_group, 64U);
  EXPECT_EQ(second.fast.frames_per_group, 0U);
  Steps(200);
  EXPECT_EQ(first.fast.frames_per_group, 32U);
  EXPECT_EQ(second.fast.frames_per_group, 32U);
  ExpectIntact();
  Stop(*running_[0]);
  Steps(200);
  EXPECT_EQ(running_[0]->fast.frames_per_group, 64U);
  ExpectIntact();
}

TEST_F(FastBudgetTest, FloorsDecideWhoMayStart) {
  const Choice& first = Start(4000, 12);  // floor 24, target 72
  EXPECT_EQ(first.fast.frames_per_group, 64U);
  EXPECT_TRUE(budget_->Fits(first, {}));
  Start(4000, 12);
  EXPECT_FALSE(budget_->Fits(first, running_));  // 3 floors of 24 in 64
  // The same for one that has never run and has nothing but its algorithm's word.
  Choice& waiting = Start(4000, 12);
  Stop(waiting);
  EXPECT_EQ(waiting.fast.mandatory_pages, 0);
  EXPECT_FALSE(budget_->Fits(waiting, running_));
  EXPECT_TRUE(budget_->Fits(waiting, std::span(running_).first(1)));
  Steps(200);
  for (const Choice* choice : running_) {
    EXPECT_GE(choice->fast.frames_per_group, 24U);
  }
  ExpectIntact();
}

// A share of the budget is one of the request's own context, and outliers come on top.
TEST_F(FastBudgetTest, WithoutMeasurementsTheSettingsSayWhatIsNeeded) {
  const auto pages = [this](const char* algorithm, uint32_t prompt_tokens) {
    Choice& choice = StartWith(
        Sparse(algorithm, {.budget_tokens = 0, .budget_fraction = 0.1}), prompt_tokens, 5.0F);
    const double expected = choice.fast.mandatory_pages;
    Stop(choice);
    return expected;
  };
  constexpr double kPageTokens = 16;
  EXPECT_NEAR(pages("quest", 1000), (100 + 68) / kPageTokens + 2, 1e-9);
  EXPECT_NEAR(pages("quest", 4000), (400 + 68) / kPageTokens + 2, 1e-9);
  EXPECT_NEAR(pages("shadowkv", 4000), (400 + 68 + 384) / kPageTokens + 2, 1e-9);
  EXPECT_NEAR(pages("retroinfer", 4000), (1.5 * 400 + 68 + 528) / kPageTokens + 2, 1e-9);
}

// Quest's index is a sixteenth of the KV: 64 of 256 frames for 4,096 tokens.
class FastBudgetIndexTest : public FastBudgetTest {
 protected:
  Choice& StartQuest(float ratio) {
    return StartWith(Sparse("quest", {.budget_tokens = 64}), 4000, ratio);
  }
};

TEST_F(FastBudgetIndexTest, FramesStayUnusedForIndexes) {
  Choice& sparse = StartQuest(5.0F);
  EXPECT_EQ(sparse.fast.index_frames, 64U);
  EXPECT_EQ(budget_->index_bytes(), uint64_t{64} * 4096);
  EXPECT_EQ(sparse.fast.frames_per_group, 48U);  // of 64 that it would like
  EXPECT_EQ(Start(2000).fast.frames_per_group, 0U);
  for (const uint32_t tokens : {4096U, 4097U, 6000U}) {
    sparse.history.resize(tokens);
    Steps(200);
    const uint64_t index = (tokens + 63) / 64 + 1;
    EXPECT_EQ(sparse.fast.index_frames, index) << "a stripe ahead of its growth";
    const uint64_t pages =
        uint64_t{sparse.fast.frames_per_group + running_[1]->fast.frames_per_group} * kGroups;
    EXPECT_LE(pages + index, 256U);
    EXPECT_GT(pages + index, 200U);
    ExpectIntact();
  }
  Stop(sparse);
  EXPECT_EQ(budget_->index_bytes(), 0U);
}

TEST_F(FastBudgetIndexTest, FloorsGiveWayToAnIndexThatHasGrown) {
  Choice& choice = StartQuest(5.0F);  // floor 24
  choice.history.resize(12000);
  Steps(200);
  EXPECT_EQ(choice.fast.index_frames, 189U);
  EXPECT_EQ(choice.fast.frames_per_group, 16U);  // of 67 frames
  ExpectIntact();
}

TEST_F(FastBudgetIndexTest, ChoicesShareTheIndexOfTheirPrompt) {
  requests_.push_back(std::make_unique<Request>());
  Request& request = *requests_.back();
  request.spec.prompt.assign(4000, 1);
  request.spec.buffer_ratio = 0.0F;
  request.spec.decode = Sparse("quest", {.budget_tokens = 64});
  request.spec.sampling.num_choices = 3;
  request.choices.resize(3);
  for (Choice& choice : request.choices) {
    choice.request = &request;
    choice.history = request.spec.prompt;
    ASSERT_TRUE(budget_->Open(choice).ok());
    running_.push_back(&choice);
  }
  EXPECT_EQ(request.choices[0].fast.index_frames, 64U);
  EXPECT_EQ(request.choices[1].fast.index_frames, 1U);
  EXPECT_EQ(request.choices[2].fast.index_frames, 1U);
  Stop(request.choices[0]);
  EXPECT_EQ(request.choices[1].fast.index_frames, 64U);
  EXPECT_EQ(request.choices[2].fast.index_frames, 1U);
  EXPECT_EQ(budget_->index_bytes(), uint64_t{65} * 4096);
  Stop(request.choices[2]);
  Stop(request.choices[1]);
  EXPECT_EQ(budget_->index_bytes(), 0U);
}

TEST_F(FastBudgetIndexTest, IndexesDecideWhoMayStart) {
  const Choice& first = StartQuest(0.0F);  // floor 16 frames per group, index 64: 128 together
  EXPECT_TRUE(budget_->Fits(first, running_));
  StartQuest(0.0F);
  EXPECT_FALSE(budget_->Fits(first, running_));
}

TEST_F(FastBudgetIndexTest, CapsHoldIndexesToo) {
  Choice& choice = StartQuest(5.0F);
  choice.request->spec.fast_bytes = (uint64_t{64} + uint64_t{8} * kGroups) * 4096;
  Steps(200);
  EXPECT_EQ(choice.fast.frames_per_group, 8U);
  choice.request->spec.fast_bytes = uint64_t{64} * 4096;
  Steps(200);
  EXPECT_EQ(choice.fast.frames_per_group, 0U) << "all is streamed";
}

TEST_F(FastBudgetTest, SmallBuffersAndCapsLowerTheFloor) {
  Choice& choice = Start(4000, 12, 0.0F);
  EXPECT_EQ(choice.fast.frames_per_group, 16U);  // 12 pages, no buffer
  choice.request->spec.fast_bytes = uint64_t{8} * kGroups * 4096;
  Steps(200);
  EXPECT_EQ(choice.fast.frames_per_group, 8U);
  ExpectIntact();
}

TEST_F(FastBudgetTest, WhoDoesNotFitSkipsAndComesBack) {
  std::vector<Choice*> all;
  for (uint32_t i = 0; i < 2; ++i) {
    all.push_back(&Start(4000, 12));
    all.back()->fast.working_set_pages = uint64_t{40} * kGroups;
  }
  uint32_t seconds_turns = 0;
  for (uint32_t step = 0; step < 130; ++step) {
    std::vector<Choice*> decodes = all;
    budget_->Compose(&decodes);
    ASSERT_EQ(decodes.size(), 1U);
    seconds_turns += decodes[0] == all[1] ? 1U : 0U;
  }
  EXPECT_EQ(seconds_turns, 2U);  // once in 64 steps
  EXPECT_EQ(metrics_.skipped_sequences.Value(), 130.0);
}

// Steps in which nearly every copied page had just been evicted, over a link that is always busy.
TEST_F(FastBudgetTest, ThrashingPausesOneSequenceForAWhile) {
  std::vector<Choice*> all;
  for (uint32_t i = 0; i < 2; ++i) {
    all.push_back(&Start(4000, 12));
    all.back()->fast.working_set_pages = uint64_t{30} * kGroups;
  }
  sparse::MirrorCounters counters;
  TimePoint now{std::chrono::seconds(1)};
  uint32_t paused_steps = 0;
  uint32_t together = 0;
  for (uint32_t step = 0; step < 400; ++step) {
    std::vector<Choice*> decodes = all;
    budget_->Compose(&decodes);
    ASSERT_FALSE(decodes.empty());
    budget_->BeginStep(running_);
    counters.page_misses += 100;
    counters.page_refaults += 90;
    now = link_.Send(now, 1'000'000);  // a millisecond
    budget_->EndStep(running_, counters, now);
    const uint32_t num_paused =
        (all[0]->fast.is_paused ? 1U : 0U) + (all[1]->fast.is_paused ? 1U : 0U);
    ASSERT_LE(num_paused, 1U);
    ASSERT_EQ(metrics_.paused_sequences.Value(), num_paused);
    paused_steps += num_paused;
    together += decodes.size() == 2 ? 1U : 0U;
    ExpectIntact();
  }
  EXPECT_GE(metrics_.pauses.Value(), 4);
  EXPECT_GT(paused_steps, 200U);
  EXPECT_GT(together, 10U);
  // Whoever is left over goes on at once.
  while (!all[0]->fast.is_paused && !all[1]->fast.is_paused) {
    counters.page_misses += 100;
    counters.page_refaults += 90;
    now = link_.Send(now, 1'000'000);
    budget_->EndStep(running_, counters, now);
  }
  Stop(*all[all[0]->fast.is_paused ? 1 : 0]);
  std::vector<Choice*> decodes = running_;
  budget_->Compose(&decodes);
  EXPECT_EQ(decodes.size(), 1U);
  EXPECT_EQ(metrics_.paused_sequences.Value(), 0);
}

TEST_F(FastBudgetTest, ContextsGrowBeyondWhatWasCovered) {
  Choice& choice = Start(100);
  choice.history.resize(8000);
  Steps(1);
  EXPECT_GE(choice.fast.covered_pages, 500U);
  Steps(200);
  EXPECT_EQ(choice.fast.frames_per_group, 64U);
  ExpectIntact();
}

TEST(FastBudgetWithoutTierTest, EverythingFits) {
  metrics::Registry registry{{}};
  const FastMetrics metrics(registry);
  FastBudget budget({}, {.num_layers = 2, .num_kv_heads = 2, .head_dim = 64}, metrics);
  Choice choice;
  EXPECT_TRUE(budget.Fits(choice, {}));
  EXPECT_TRUE(budget.Open(choice).ok());
  std::vector<Choice*> decodes = {&choice};
  budget.Compose(&decodes);
  EXPECT_EQ(decodes.size(), 1U);
  budget.BeginStep(decodes);
  budget.Close(choice);
}

}  // namespace
}  // namespace spindle::engine
