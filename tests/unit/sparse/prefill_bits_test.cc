// Sparse prefill in the attention runtime: dense where everything is selected, the same bits in any
// chunks, company, threads and placement, and nothing read that was not selected.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attention_rig.h"
#include "sparse/algorithm_registry.h"
#include "sparse/prefill_registry.h"

namespace spindle::sparse {
namespace {

#if defined(SPINDLE_SANITIZED)
constexpr uint32_t kPrefillPrompt = 900;  // two sparse blocks
constexpr uint32_t kPrefillQueryHeads = 2;
#else
constexpr uint32_t kPrefillPrompt = 1500;  // two segments, and a last block that is not full
constexpr uint32_t kPrefillQueryHeads = 6;
#endif
constexpr uint32_t kPrefillKvHeads = 2;

// As sparse as inputs without any structure allow.
PrefillPolicy SparsePrefill(const std::string& name, std::vector<bool> dense_layers = {}) {
  const std::vector<double> values = name == "tri_shape"
                                         ? std::vector<double>{128, 200, 128}
                                         : std::vector<double>{128, 16, 0.5, 128, 0};
  return {FindPrefillMethod(name), values, std::move(dense_layers)};
}

PrefillPolicy FullPrefill(const std::string& name) {
  // Everything, by choice where there is one: the threshold is below 1.
  const std::vector<double> values = name == "tri_shape"
                                         ? std::vector<double>{0, 1 << 19, 128}
                                         : std::vector<double>{128, 16, 0.9999999, 128, 0};
  return {FindPrefillMethod(name), values};
}

class PrefillBitsTest : public ::testing::TestWithParam<const char*> {
 protected:
  static RigOptions Options() {
    return {.table = kernels::BestKernels()->name.data(),
            .num_layers = 2,
            .num_q_heads = kPrefillQueryHeads,
            .num_kv_heads = kPrefillKvHeads,
            .num_threads = 2,
            .num_stripes = 120};
  }

  static std::vector<float> Prefill(AttentionRig& rig,
                                    const PrefillPolicy* prefill,
                                    uint32_t chunk,
                                    PrefillUse* use = nullptr) {
    const SequenceId sequence = rig.Open();
    std::vector<float> results;
    for (uint32_t first = 0; first < kPrefillPrompt; first += chunk) {
      const RigRows rows{sequence,
                         1,
                         first,
                         std::min(chunk, kPrefillPrompt - first),
                         nullptr,
                         kPrefillPrompt,
                         nullptr,
                         nullptr,
                         prefill,
                         use};
      const std::vector<float> part = rig.Step({&rows, 1});
      results.insert(results.end(), part.begin(), part.end());
    }
    rig.store().Close(sequence);
    return results;
  }
};

TEST_P(PrefillBitsTest, EverythingSelectedIsDense) {
  AttentionRig rig(Options());
  const std::vector<float> dense = Prefill(rig, nullptr, 512);
  const PrefillPolicy full = FullPrefill(GetParam());
  EXPECT_TRUE(SameBits(Prefill(rig, &full, 512), dense));
}

TEST_P(PrefillBitsTest, SparseBlocksAreNotAndTheRestIs) {
  AttentionRig rig(Options());
  const std::vector<float> dense = Prefill(rig, nullptr, 512);
  const PrefillPolicy policy = SparsePrefill(GetParam());
  PrefillUse use;
  const std::vector<float> sparse = Prefill(rig, &policy, 512, &use);
  const uint32_t begin = policy.SparseBegin();
  const uint32_t end = policy.SparseEnd(kPrefillPrompt);
  ASSERT_LT(begin, end);
  uint32_t changed = 0;
  for (uint32_t row = 0; row < kPrefillPrompt; ++row) {
    const size_t at = row * rig.token_width();
    const bool is_same =
        std::memcmp(&sparse[at], &dense[at], rig.token_width() * sizeof(float)) == 0;
    if (row < begin || row >= end) {
      EXPECT_TRUE(is_same) << row;  // inputs of layers do not depend on the layers before here
    }
    changed += is_same ? 0 : 1;
  }
  EXPECT_GT(changed, (end - begin) / 2);
  EXPECT_EQ(use.sparse_blocks, (end - begin) / 128);
  EXPECT_GT(use.share_min, 0);
  EXPECT_LT(use.MeanShare(), 0.95);
}

TEST_P(PrefillBitsTest, ChunksThreadsAndPlacementDoNotMatter) {
  const PrefillPolicy policy = SparsePrefill(GetParam());
  AttentionRig reference(Options());
  const std::vector<float> expected = Prefill(reference, &policy, 2048);
  for (const uint32_t chunk : {128U, 256U, 640U, 1024U}) {
    EXPECT_TRUE(SameBits(Prefill(reference, &policy, chunk), expected)) << chunk;
  }
  RigOptions options = Options();
  for (const uint32_t threads : {1U, 4U}) {
    options.num_threads = threads;
    AttentionRig rig(options);
    EXPECT_TRUE(SameBits(Prefill(rig, &policy, 512), expected)) << threads;
  }
  options = Options();
  options.mirror = true;
  for (const uint32_t frames : {0U, 8U, 64U}) {
    options.frames_per_group = frames;
    AttentionRig rig(options);
    EXPECT_TRUE(SameBits(Prefill(rig, &policy, 384), expected)) << frames;
  }
}

TEST_P(PrefillBitsTest, CompanyDoesNotMatter) {
  AttentionRig rig(Options());
  const PrefillPolicy policy = SparsePrefill(GetParam());
  const PrefillPolicy other = SparsePrefill("tri_shape");
  const SparsePolicy decode(FindAlgorithm("quest"),
                            {.budget_tokens = 64, .recent_tokens = 20, .min_context = 0});
  const std::vector<float> expected = Prefill(rig, &policy, 512);
  const SequenceId mine = rig.Open();
  const SequenceId neighbour = rig.Open();
  const SequenceId decoding = rig.Open();
  const RigRows prompt{decoding, 7, 0, 300, &decode, 300};
  rig.Step({&prompt, 1});
  std::vector<float> results;
  for (uint32_t first = 0; first < kPrefillPrompt; first += 256) {
    const uint32_t count = std::min(256U, kPrefillPrompt - first);
    const std::vector<RigRows> rows = {
        {decoding, 7, 300 + first / 256, 1, &decode, 300},
        {mine, 1, first, count, nullptr, kPrefillPrompt, nullptr, nullptr, &policy},
        {neighbour, 3, first, count, nullptr, kPrefillPrompt, nullptr, nullptr, &other}};
    const std::vector<float> part = rig.Step(rows);
    const auto width = static_cast<ptrdiff_t>(rig.token_width());
    results.insert(results.end(), part.begin() + width, part.begin() + width * (1 + count));
  }
  EXPECT_TRUE(SameBits(results, expected));
}

// Prompt and generated tokens in one step, as after a preemption.
TEST_P(PrefillBitsTest, RecomputedRowsMakeTheSameChoices) {
  AttentionRig rig(Options());
  const PrefillPolicy policy = SparsePrefill(GetParam());
  const SparsePolicy decode(FindAlgorithm("streaming"),
                            {.budget_tokens = 64, .recent_tokens = 20, .min_context = 0});
  constexpr uint32_t kSteps = 5;
  std::vector<float> expected = Prefill(rig, &policy, 512);
  const SequenceId sequence = rig.Open();
  const RigRows prompt{
      sequence, 1, 0, kPrefillPrompt, &decode, kPrefillPrompt, nullptr, nullptr, &policy};
  EXPECT_TRUE(SameBits(rig.Step({&prompt, 1}), expected));
  for (uint32_t step = 0; step < kSteps; ++step) {
    const RigRows row{
        sequence, 1, kPrefillPrompt + step, 1, &decode, kPrefillPrompt, nullptr, nullptr, &policy};
    const std::vector<float> part = rig.Step({&row, 1});
    expected.insert(expected.end(), part.begin(), part.end());
  }
  const SequenceId again = rig.Open();
  const RigRows all{
      again, 1, 0, kPrefillPrompt + kSteps, &decode, kPrefillPrompt, nullptr, nullptr, &policy};
  EXPECT_TRUE(SameBits(rig.Step({&all, 1}), expected));
}

TEST_P(PrefillBitsTest, DenseLayersAndWindowsChooseNothing) {
  RigOptions options = Options();
  const PrefillPolicy policy = SparsePrefill(GetParam());
  const PrefillPolicy first_dense = SparsePrefill(GetParam(), {true});
  for (const bool has_window : {false, true}) {
    options.windows = has_window ? std::vector<uint32_t>{300, 0} : std::vector<uint32_t>{0};
    AttentionRig rig(options);
    const std::vector<float> dense = Prefill(rig, nullptr, 512);
    const std::vector<float> results = Prefill(rig, has_window ? &policy : &first_dense, 512);
    bool second_differs = false;
    for (uint32_t row = 0; row < kPrefillPrompt; ++row) {
      const size_t at = row * rig.token_width();
      EXPECT_EQ(std::memcmp(&results[at], &dense[at], rig.q_width() * sizeof(float)), 0) << row;
      second_differs = second_differs || std::memcmp(&results[at + rig.q_width()],
                                                     &dense[at + rig.q_width()],
                                                     rig.q_width() * sizeof(float)) != 0;
    }
    EXPECT_TRUE(second_differs);
  }
}

// Of F32 keys and of every table.
TEST_P(PrefillBitsTest, AnyTableAndType) {
  const PrefillPolicy policy = SparsePrefill(GetParam());
  for (const char* const table : kTableNames) {
    if (kernels::FindKernelsByName(table) == nullptr || std::string(table) == "reference") {
      continue;  // the estimate of the reference takes minutes
    }
    RigOptions options = Options();
    options.table = table;
    options.type = DType::kF32;
    AttentionRig rig(options);
    PrefillUse use;
    const std::vector<float> whole = Prefill(rig, &policy, 2048, &use);
    EXPECT_TRUE(SameBits(Prefill(rig, &policy, 256), whole)) << table;
    EXPECT_TRUE(std::ranges::all_of(whole, [](float value) { return std::isfinite(value); }));
    EXPECT_GT(use.sparse_blocks, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, PrefillBitsTest, ::testing::Values("tri_shape", "xattention"));

// Values of blocks that are not selected may be anything.
TEST(PrefillBits, WhatIsNotSelectedIsNotRead) {
  AttentionRig rig({.table = kernels::BestKernels()->name.data(), .num_q_heads = 3});
  const PrefillPolicy policy = SparsePrefill("tri_shape");  // block 0, and two before the diagonal
  const auto run = [&](uint32_t poisoned_block) {
    const SequenceId sequence = rig.Open();
    const RigRows before{sequence, 1, 0, 768, nullptr, 1024, nullptr, nullptr, &policy};
    rig.Step({&before, 1});
    if (poisoned_block > 0) {
      const kv::KvGeometry& geometry = rig.store().geometry();
      std::memset(rig.store().View(sequence).stripes[2 * size_t{poisoned_block}],
                  0xFF,
                  geometry.stripe_bytes());
    }
    const RigRows block{sequence, 1, 768, 128, nullptr, 1024, nullptr, nullptr, &policy};
    std::vector<float> result = rig.Step({&block, 1});
    rig.store().Close(sequence);
    return result;
  };
  const std::vector<float> expected = run(0);
  EXPECT_TRUE(SameBits(run(1), expected));
  EXPECT_TRUE(SameBits(run(3), expected));
  EXPECT_FALSE(SameBits(run(4), expected));
  EXPECT_FALSE(SameBits(run(5), expected));
}

}  // namespace
}  // namespace spindle::sparse
