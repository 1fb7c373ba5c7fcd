// What must not change a single bit: chunking, company, threads, sharing, recycled memory.
#include <vector>

#include <gtest/gtest.h>

#include "attention_rig.h"
#include "base/prefix_key.h"

namespace spindle::sparse {
namespace {

// More than a segment, so that a row's span states are merged.
constexpr uint32_t kLong = 1090;

// The last `count` tokens of a result.
std::vector<float> Tail(const AttentionRig& rig, const std::vector<float>& result, uint32_t count) {
  return {result.end() - static_cast<ptrdiff_t>(count * rig.token_width()), result.end()};
}

class AttentionBitsTest : public ::testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  void SetUp() override {
    if (kernels::FindKernelsByName(table()) == nullptr) {
      GTEST_SKIP() << "this CPU cannot run the " << table() << " kernels";
    }
  }

  [[nodiscard]] static const char* table() { return std::get<0>(GetParam()); }

  [[nodiscard]] static DType type() { return std::get<1>(GetParam()); }

  [[nodiscard]] static RigOptions Options() {
    return {.table = table(), .type = type(), .num_threads = 2};
  }
};

TEST_P(AttentionBitsTest, AnyChunkingGivesTheSameBits) {
  for (const uint32_t window : {0U, 300U}) {
    RigOptions options = Options();
    options.windows = {window};
    AttentionRig rig(options);
    std::vector<float> whole;
    for (const uint32_t chunk : {kLong, 64U, 256U, 100U}) {
      const SequenceId seq = rig.Open();
      const std::vector<float> out = rig.Run(seq, 1, 0, kLong, chunk);
      rig.store().Close(seq);
      if (chunk == kLong) {
        whole = out;
      }
      EXPECT_TRUE(SameBits(out, whole)) << chunk;
    }
  }
}

TEST_P(AttentionBitsTest, DecodeEqualsPrefill) {
  AttentionRig rig(Options());
  const std::vector<float> whole = rig.Run(rig.Open(), 1, 0, kLong, kLong);
  const SequenceId seq = rig.Open();
  rig.Run(seq, 1, 0, 1000, 1000);
  EXPECT_TRUE(SameBits(rig.Run(seq, 1, 1000, kLong, 1), Tail(rig, whole, kLong - 1000)));
  const SequenceId from_start = rig.Open();
  const std::vector<float> decoded = rig.Run(from_start, 1, 0, 130, 1);
  EXPECT_TRUE(SameBits(decoded, {whole.begin(), whole.begin() + 130 * 192}));
}

TEST_P(AttentionBitsTest, CompanyDoesNotMatter) {
  RigOptions options = Options();
  options.num_layers = 2;
  options.num_q_heads = 4;
  options.num_kv_heads = 2;
  AttentionRig rig(options);
  const SequenceId alone = rig.Open();
  const std::vector<float> expected = rig.Run(alone, 1, 0, 300, 150);
  const std::vector<float> expected_decode = rig.Run(alone, 1, 300, 301, 1);

  const SequenceId seq = rig.Open();
  const SequenceId prefilling = rig.Open();
  const SequenceId decoding = rig.Open();
  rig.Run(decoding, 3, 0, 77, 77);
  std::vector<float> mixed;
  for (uint32_t chunk = 0; chunk < 2; ++chunk) {
    const std::vector<RigRows> rows = {
        {decoding, 3, 77 + chunk, 1}, {seq, 1, 150 * chunk, 150}, {prefilling, 2, 90 * chunk, 90}};
    const std::vector<float> out = rig.Step(rows);
    const auto width = static_cast<ptrdiff_t>(rig.token_width());
    mixed.insert(mixed.end(), out.begin() + width, out.begin() + 151 * width);
  }
  EXPECT_TRUE(SameBits(mixed, expected));
  const std::vector<RigRows> decode_rows = {
      {prefilling, 2, 180, 1}, {seq, 1, 300, 1}, {decoding, 3, 79, 1}};
  const std::vector<float> out = rig.Step(decode_rows);
  const auto width = static_cast<ptrdiff_t>(rig.token_width());
  EXPECT_TRUE(SameBits({out.begin() + width, out.begin() + 2 * width}, expected_decode));
}

TEST_P(AttentionBitsTest, ThreadsDoNotMatter) {
  std::vector<float> expected_prefill;
  std::vector<float> expected_decode;
  for (const uint32_t threads : {1U, 2U, 3U}) {
    RigOptions options = Options();
    options.num_threads = threads;
    AttentionRig rig(options);
    const SequenceId seq = rig.Open();
    const std::vector<float> prefill = rig.Run(seq, 1, 0, kLong, 600);
    const std::vector<float> decode = rig.Run(seq, 1, kLong, kLong + 5, 1);
    if (threads == 1) {
      expected_prefill = prefill;
      expected_decode = decode;
    }
    EXPECT_TRUE(SameBits(prefill, expected_prefill)) << threads;
    EXPECT_TRUE(SameBits(decode, expected_decode)) << threads;
  }
}

std::vector<Digest> Keys(uint32_t num_stripes) {
  const std::vector<TokenId> tokens(num_stripes * kStripeTokens, 5);
  return StripeKeys(RootKey(PrefixRoot()), tokens);
}

TEST_P(AttentionBitsTest, SharedPrefixStripesGiveTheSameBits) {
  RigOptions options = Options();
  options.num_layers = 2;
  AttentionRig rig(options);
  const SequenceId first = rig.Open();
  const std::vector<float> cold = rig.Run(first, 1, 0, 230, 230);
  const auto keys = Keys(3);
  for (uint32_t i = 0; i < 3; ++i) {
    rig.store().Seal(first, i, keys[i]);
  }
  // While the first is still open, and again after it is gone.
  for (int round = 0; round < 2; ++round) {
    const SequenceId warm = rig.store().Open(BudgetGroupId(2), keys, 2);
    EXPECT_EQ(rig.store().View(warm).stripes.size(), 2U);
    EXPECT_TRUE(SameBits(rig.Run(warm, 1, 128, 230, 50), Tail(rig, cold, 230 - 128)));
    rig.store().Close(warm);
    if (round == 0) {
      rig.store().Close(first);
    }
  }
  EXPECT_TRUE(rig.store().CheckIntegrity().ok());
}

TEST_P(AttentionBitsTest, ForksContinueAsTheirParent) {
  RigOptions options = Options();
  options.num_layers = 2;
  AttentionRig rig(options);
  const SequenceId parent = rig.Open();
  rig.Run(parent, 1, 0, 100, 100);
  rig.store().Seal(parent, 0, Keys(1)[0]);
  const auto child = rig.store().Fork(parent);
  ASSERT_TRUE(child.ok());
  const std::vector<float> of_child = rig.Run(*child, 1, 100, 140, 1);
  const std::vector<float> other = rig.Run(parent, 2, 100, 140, 1);
  EXPECT_FALSE(SameBits(of_child, other));
  const SequenceId fresh = rig.Open();
  rig.Run(fresh, 1, 0, 100, 100);
  EXPECT_TRUE(SameBits(of_child, rig.Run(fresh, 1, 100, 140, 1)));
}

TEST_P(AttentionBitsTest, WhatRecycledStripesHeldDoesNotMatter) {
  RigOptions options = Options();
  options.num_stripes = 4;
  AttentionRig rig(options);
  const SequenceId fresh = rig.Open();
  std::vector<float> expected = rig.Run(fresh, 1, 0, 150, 60);
  const std::vector<float> expected_decode = rig.Run(fresh, 1, 150, 160, 1);
  ASSERT_TRUE(rig.store().Extend(fresh, 4 * kStripeTokens).ok());
  for (uint8_t* stripe : rig.store().View(fresh).stripes) {
    std::memset(stripe, 0xff, rig.store().geometry().stripe_bytes());  // NaN in every row
  }
  rig.store().Close(fresh);
  const SequenceId recycled = rig.Open();
  EXPECT_TRUE(SameBits(rig.Run(recycled, 1, 0, 150, 60), expected));
  EXPECT_TRUE(SameBits(rig.Run(recycled, 1, 150, 160, 1), expected_decode));
}

using AttentionRuntimeDeathTest = AttentionBitsTest;

TEST_P(AttentionRuntimeDeathTest, WritingIntoASealedStripeIsCaught) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  RigOptions options = Options();
  options.num_threads = 1;
  AttentionRig rig(options);
  const SequenceId seq = rig.Open();
  rig.Run(seq, 1, 0, 64, 64);
  rig.store().Seal(seq, 0, Keys(1)[0]);
  const SequenceRows rows{seq, 0, 1, 63};
  EXPECT_DEATH(rig.runtime().BeginStep({&rows, 1}).IgnoreError(), "");
}

// Not the reference table: it folds in fp64, so equal bits would say little.
INSTANTIATE_TEST_SUITE_P(TablesAndTypes,
                         AttentionBitsTest,
                         ::testing::Combine(::testing::Values("baseline", "avx2", "avx512", "amx"),
                                            ::testing::Values(DType::kBF16, DType::kF32)));

INSTANTIATE_TEST_SUITE_P(OneTable,
                         AttentionRuntimeDeathTest,
                         ::testing::Combine(::testing::Values("reference"),
                                            ::testing::Values(DType::kBF16)));

}  // namespace
}  // namespace spindle::sparse
