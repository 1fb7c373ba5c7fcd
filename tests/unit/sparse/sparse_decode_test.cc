// Algorithms in the attention runtime: equal to dense with everything selected, the same bits in
// any company, chunking, placement and after sharing, and the index follows its stripe.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "attention_rig.h"
#include "base/prefix_key.h"
#include "mean_key/mean_key_algorithm.h"
#include "seer_support.h"
#include "sparse/algorithm_registry.h"
#include "sparse/seer_r/seer_algorithm.h"

namespace spindle::sparse {
namespace {

#if defined(SPINDLE_SANITIZED)
constexpr uint32_t kPrompt = 650;          // more than the outliers of shadowkv
constexpr uint32_t kSegmentPrompt = 1090;  // with one segment behind which enough has come
constexpr uint32_t kQueryHeads = 2;
constexpr uint32_t kSteps = 4;
// One for each kind of index.
constexpr const char* kAlgorithms[] = {"quest_int8", "shadowkv", "retroinfer", "seer_r"};
#else
constexpr uint32_t kPrompt = 1100;  // two segments
constexpr uint32_t kSegmentPrompt = kPrompt;
constexpr uint32_t kQueryHeads = 6;
constexpr uint32_t kSteps = 20;
constexpr const char* kAlgorithms[] = {"dense",
                                       "streaming",
                                       "quest",
                                       "quest_int8",
                                       "shadowkv",
                                       "shadowkv_int8",
                                       "retroinfer",
                                       "retroinfer_int8",
                                       "seer_r",
                                       "mean_key"};
#endif

constexpr uint32_t kDecodeLayers = 2;
constexpr uint32_t kDecodeKvHeads = 2;

// seer_r comes with weights: random ones.
std::shared_ptr<const SparseAlgorithm> RandomSeer() {
  static const std::shared_ptr<const SparseAlgorithm> seer = [] {
    std::mt19937 rng(7);
    return std::make_shared<SeerAlgorithm>(
        RandomGates(
            {.num_layers = kDecodeLayers, .num_kv_heads = kDecodeKvHeads, .group = kQueryHeads / 2},
            rng),
        AttentionRig::kMaxPositions);
  }();
  return seer;
}

constexpr std::string_view kInt8Suffix = "_int8";

// That of the build, with indexes in bf16 or int8, the example of docs/add-an-algorithm.md, or one
// with weights.
std::shared_ptr<const SparseAlgorithm> AlgorithmOf(std::string_view name) {
  static const auto kExample = std::make_shared<const MeanKeyAlgorithm>();
  if (name == "seer_r") {
    return RandomSeer();
  }
  if (name.ends_with(kInt8Suffix)) {
    name.remove_suffix(kInt8Suffix.size());
    return FindAlgorithm(name, Algorithms(IndexType::kInt8));
  }
  return name == kExample->name() ? kExample : FindAlgorithm(name);
}

SparsePolicy Policy(const char* algorithm, uint32_t budget, bool always_ranks = false) {
  SparseSettings settings{.budget_tokens = budget, .recent_tokens = 20, .min_context = 0};
  settings.always_ranks = always_ranks;
  return {AlgorithmOf(algorithm), settings};
}

// Relative to the largest of all: probabilities were rounded to bf16.
void ExpectNear(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  float largest = 0;
  float difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(b[i]));
    difference = std::max(difference, std::abs(a[i] - b[i]));
  }
  EXPECT_LE(difference, 2e-2F * largest);
}

class SparseDecodeTest : public ::testing::TestWithParam<const char*> {
 protected:
  static RigOptions Options() {
    return {.table = kernels::BestKernels()->name.data(),
            .num_layers = kDecodeLayers,
            .num_q_heads = kQueryHeads,
            .num_kv_heads = kDecodeKvHeads,
            .num_threads = 2,
            .num_stripes = 80};
  }

  // Decodes `steps` tokens from `first` on, one row a step.
  std::vector<float> Decode(AttentionRig& rig,
                            SequenceId sequence,
                            const SparsePolicy* policy,
                            uint32_t first,
                            uint32_t steps) {
    std::vector<float> results;
    for (uint32_t position = first; position < first + steps; ++position) {
      const RigRows rows{sequence, 1, position, 1, policy, prompt_};
      const std::vector<float> part = rig.Step({&rows, 1});
      results.insert(results.end(), part.begin(), part.end());
    }
    return results;
  }

  std::vector<float> PrefillAndDecode(AttentionRig& rig,
                                      const SparsePolicy* policy,
                                      uint32_t chunk = 512) {
    const SequenceId sequence = rig.Open(policy);
    for (uint32_t first = 0; first < prompt_; first += chunk) {
      const RigRows rows{sequence, 1, first, std::min(chunk, prompt_ - first), policy, prompt_};
      rig.Step({&rows, 1});
    }
    std::vector<float> results = Decode(rig, sequence, policy, prompt_, kSteps);
    rig.store().Close(sequence);
    return results;
  }

  [[nodiscard]] std::vector<Digest> KeysOfPrompt() const {
    const std::vector<TokenId> tokens(prompt_ / 64 * 64, 5);
    return StripeKeys(RootKey(PrefixRoot()), tokens);
  }

  const uint32_t prompt_ =
      AlgorithmOf(GetParam())->index_unit() == IndexUnit::kSegment ? kSegmentPrompt : kPrompt;
};

TEST_P(SparseDecodeTest, EverythingSelectedEqualsDense) {
  AttentionRig rig(Options());
  const std::vector<float> dense = PrefillAndDecode(rig, nullptr);
  for (const bool always_ranks : {false, true}) {
    const SparsePolicy policy = Policy(GetParam(), prompt_ + kSteps, always_ranks);
    const std::vector<float> results = PrefillAndDecode(rig, &policy);
    if (always_ranks && policy.algorithm().name() == "retroinfer") {
      ExpectNear(results, dense);  // the same tokens in the order of clusters
    } else {
      EXPECT_TRUE(SameBits(results, dense)) << always_ranks;
    }
  }
}

TEST_P(SparseDecodeTest, ASmallBudgetIsNotDense) {
  if (std::string_view(GetParam()) == "dense") {
    GTEST_SKIP() << "selects everything";
  }
  AttentionRig rig(Options());
  const SparsePolicy policy = Policy(GetParam(), 64);
  EXPECT_FALSE(SameBits(PrefillAndDecode(rig, &policy), PrefillAndDecode(rig, nullptr)));
}

TEST_P(SparseDecodeTest, ChunksThreadsAndPlacementDoNotMatter) {
  const SparsePolicy policy = Policy(GetParam(), 160);
  AttentionRig reference(Options());
  const std::vector<float> expected = PrefillAndDecode(reference, &policy);
  EXPECT_TRUE(SameBits(PrefillAndDecode(reference, &policy, 70), expected));
  RigOptions options = Options();
  options.num_threads = 1;
  AttentionRig single(options);
  EXPECT_TRUE(SameBits(PrefillAndDecode(single, &policy), expected));
  options = Options();
  options.mirror = true;
  options.has_clusters = true;
  for (const uint32_t frames : {0U, 8U, 32U}) {
    options.frames_per_group = frames;
    AttentionRig rig(options);
    EXPECT_TRUE(SameBits(PrefillAndDecode(rig, &policy), expected)) << frames;
  }
}

TEST_P(SparseDecodeTest, RecomputedRowsMakeTheSameChoices) {
  const SparsePolicy policy = Policy(GetParam(), 160);
  AttentionRig rig(Options());
  const std::vector<float> expected = PrefillAndDecode(rig, &policy);
  const SequenceId again = rig.Open();
  const RigRows all{again, 1, 0, prompt_ + kSteps, &policy, prompt_};
  const std::vector<float> results = rig.Step({&all, 1});
  const std::vector<float> tail(results.end() - static_cast<ptrdiff_t>(expected.size()),
                                results.end());
  EXPECT_TRUE(SameBits(tail, expected));
}

// The index comes with a shared stripe, or is built where another method has left none.
TEST_P(SparseDecodeTest, SharedStripesGiveTheSameBits) {
  const SparsePolicy policy = Policy(GetParam(), 160);
  AttentionRig rig(Options());
  const std::vector<float> expected = PrefillAndDecode(rig, &policy);
  const std::vector<Digest> keys = KeysOfPrompt();
  for (const SparsePolicy* first_policy : {&policy, static_cast<const SparsePolicy*>(nullptr)}) {
    const SequenceId first = rig.Open();
    const RigRows prompt{first, 1, 0, prompt_, first_policy, prompt_};
    rig.Step({&prompt, 1});
    for (uint32_t i = 0; i < keys.size(); ++i) {
      rig.store().Seal(first, i, keys[i]);
    }
    const SequenceId second =
        rig.store().Open(BudgetGroupId(2), keys, static_cast<uint32_t>(keys.size()));
    const uint32_t shared = static_cast<uint32_t>(keys.size()) * 64;
    const RigRows rest{second, 1, shared, prompt_ - shared, &policy, prompt_};
    rig.Step({&rest, 1});
    EXPECT_TRUE(SameBits(Decode(rig, second, &policy, prompt_, kSteps), expected));
    rig.store().Close(first);
    rig.store().Close(second);
    rig.store().ResetPrefixCache();
  }
}

uint64_t NumIndexedTokens(const AttentionRig& rig) {
  uint64_t tokens = 0;
  for (const IndexedTokens& each : rig.runtime().Indexed()) {
    tokens += each.tokens;
  }
  return tokens;
}

TEST_P(SparseDecodeTest, ASharedIndexIsMadeOnce) {
  const SparsePolicy policy = Policy(GetParam(), 160);
  AttentionRig rig(Options());
  const std::vector<Digest> keys = KeysOfPrompt();
  const auto shared = static_cast<uint32_t>(keys.size() * kStripeTokens);
  const bool has_index = policy.algorithm().index_bytes(rig.store().geometry()) > 0;
  const bool of_segments = policy.algorithm().index_unit() == IndexUnit::kSegment;
  const SequenceId first = rig.Open();
  const RigRows prompt{first, 1, 0, prompt_, &policy, prompt_};
  rig.Step({&prompt, 1});
  const uint64_t once = NumIndexedTokens(rig);
  const auto segments = static_cast<uint32_t>(prompt_ / kSegmentTokens * kSegmentTokens);
  EXPECT_EQ(once, !has_index ? 0 : of_segments ? segments : prompt_);
  for (uint32_t i = 0; i < keys.size(); ++i) {
    rig.store().Seal(first, i, keys[i]);
  }
  const SequenceId second =
      rig.store().Open(BudgetGroupId(2), keys, static_cast<uint32_t>(keys.size()));
  const RigRows rest{second, 1, shared, prompt_ - shared, &policy, prompt_};
  rig.Step({&rest, 1});
  EXPECT_EQ(NumIndexedTokens(rig) - once, has_index && !of_segments ? prompt_ - shared : 0);
  rig.store().Close(first);
  rig.store().Close(second);
}

// Another sequence's index in a recycled slot is never taken for its own.
TEST_P(SparseDecodeTest, RecycledSlotsAreIndexedAnew) {
  RigOptions options = Options();
  options.num_stripes = prompt_ / 64 + 3;
  AttentionRig rig(options);
  const SparsePolicy policy = Policy(GetParam(), 160);
  const std::vector<float> expected = PrefillAndDecode(rig, &policy);
  const SequenceId other = rig.Open();
  const RigRows rows{other, 9, 0, prompt_, &policy, prompt_};
  rig.Step({&rows, 1});
  rig.store().Close(other);
  EXPECT_TRUE(SameBits(PrefillAndDecode(rig, &policy), expected));
}

TEST_P(SparseDecodeTest, ForksContinueAsTheirParent) {
  const SparsePolicy policy = Policy(GetParam(), 160);
  AttentionRig rig(Options());
  const std::vector<float> expected = PrefillAndDecode(rig, &policy);
  const SequenceId parent = rig.Open();
  const RigRows prompt{parent, 1, 0, prompt_, &policy, prompt_};
  rig.Step({&prompt, 1});
  const absl::StatusOr<SequenceId> child = rig.store().Fork(parent);
  ASSERT_TRUE(child.ok());
  EXPECT_TRUE(SameBits(Decode(rig, *child, &policy, prompt_, kSteps), expected));
}

TEST_P(SparseDecodeTest, MixedCompanyDoesNotMatter) {
  AttentionRig rig(Options());
  const SparsePolicy policy = Policy(GetParam(), 160);
  const SparsePolicy other_policy = Policy("quest", 48);
  const std::vector<float> expected = PrefillAndDecode(rig, &policy);
  const SequenceId sequence = rig.Open();
  const RigRows prompt{sequence, 1, 0, prompt_, &policy, prompt_};
  rig.Step({&prompt, 1});
  const SequenceId dense = rig.Open();
  const SequenceId other = rig.Open();
  const std::vector<RigRows> prompts = {{dense, 4, 0, 300, nullptr, 300},
                                        {other, 5, 0, 500, &other_policy, 500}};
  rig.Step(prompts);
  std::vector<float> results;
  for (uint32_t step = 0; step < kSteps; ++step) {
    const std::vector<RigRows> rows = {{dense, 4, 300 + step, 1, nullptr, 300},
                                       {sequence, 1, prompt_ + step, 1, &policy, prompt_},
                                       {other, 5, 500 + step, 1, &other_policy, 500}};
    const std::vector<float> out = rig.Step(rows);
    const auto width = static_cast<ptrdiff_t>(rig.token_width());
    results.insert(results.end(), out.begin() + width, out.begin() + 2 * width);
  }
  EXPECT_TRUE(SameBits(results, expected));
}

TEST_P(SparseDecodeTest, DenseLayersAndShortContextsAreDense) {
  AttentionRig rig(Options());
  const std::vector<float> dense = PrefillAndDecode(rig, nullptr);
  SparseSettings settings{
      .budget_tokens = 64, .recent_tokens = 20, .min_context = prompt_ + kSteps + 1};
  const SparsePolicy short_context(AlgorithmOf(GetParam()), settings);
  EXPECT_TRUE(SameBits(PrefillAndDecode(rig, &short_context), dense));
  settings.min_context = 0;
  settings.dense_layers = {true, false};
  const SparsePolicy first_dense(AlgorithmOf(GetParam()), settings);
  const std::vector<float> results = PrefillAndDecode(rig, &first_dense);
  const size_t width = rig.q_width();
  for (uint32_t step = 0; step < kSteps; ++step) {
    const size_t at = step * rig.token_width();
    EXPECT_EQ(std::memcmp(&results[at], &dense[at], width * sizeof(float)), 0) << step;
  }
  if (std::string_view(GetParam()) != "dense") {
    EXPECT_FALSE(SameBits(results, dense));
  }
}

// The first layer has a window, the second none.
TEST_P(SparseDecodeTest, LayersWithAWindowChooseNothing) {
  const SparsePolicy policy = Policy(GetParam(), 64);
  RigOptions options = Options();
  options.windows = {300, 0};
  for (const bool mirror : {false, true}) {
    options.mirror = mirror;
    options.has_clusters = mirror;
    options.frames_per_group = mirror ? 16 : 0;
    AttentionRig rig(options);
    const std::vector<float> dense = PrefillAndDecode(rig, nullptr);
    const std::vector<float> results = PrefillAndDecode(rig, &policy);
    const size_t width = rig.q_width();
    for (uint32_t step = 0; step < kSteps; ++step) {
      const size_t at = step * rig.token_width();
      EXPECT_EQ(std::memcmp(&results[at], &dense[at], width * sizeof(float)), 0) << step;
    }
    if (std::string_view(GetParam()) != "dense") {
      EXPECT_FALSE(SameBits(results, dense));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, SparseDecodeTest, ::testing::ValuesIn(kAlgorithms));

}  // namespace
}  // namespace spindle::sparse
