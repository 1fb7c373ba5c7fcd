// Placement changes no bit: attention through a fast tier of any size equals attention in place,
// for dense rows and for choices that differ by head, step and layer.
#include <algorithm>
#include <bit>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "attention_rig.h"
#include "drawn_pages.h"

namespace spindle::sparse {
namespace {

struct Workload {
  const SparsePolicy* policy = nullptr;
  uint32_t decode_steps = 12;
  uint32_t chunk = 512;
};

#if defined(SPINDLE_SANITIZED)
constexpr uint32_t kPrompts[] = {1200, 70, 90};
constexpr uint32_t kLayers = 1;
constexpr uint32_t kQueryHeads = 2;
constexpr uint32_t kKvHeads = 2;
constexpr const char* kTables[] = {"baseline"};
#else
constexpr uint32_t kPrompts[] = {1100, 70, 2100};
constexpr uint32_t kLayers = 2;
constexpr uint32_t kQueryHeads = 6;
constexpr uint32_t kKvHeads = 3;
constexpr const char* kTables[] = {"baseline", "avx2", "avx512", "amx"};
#endif

// Three sequences: prefill in chunks, then decode together. All results.
std::vector<float> RunAll(AttentionRig& rig, const Workload& workload) {
  std::vector<float> results;
  std::vector<RigRows> rows;
  for (const uint32_t prompt : kPrompts) {
    const SequenceId sequence = rig.Open();
    const std::vector<float> part = rig.Run(sequence, prompt, 0, prompt, workload.chunk);
    results.insert(results.end(), part.begin(), part.end());
    rows.push_back({sequence, prompt, prompt, 1, workload.policy, prompt});
  }
  for (uint32_t step = 0; step < workload.decode_steps; ++step) {
    const std::vector<float> part = rig.Step(rows);
    results.insert(results.end(), part.begin(), part.end());
    for (RigRows& each : rows) {
      ++each.first_position;
    }
  }
  return results;
}

class MirrorAttentionTest : public ::testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  void SetUp() override {
    if (kernels::FindKernelsByName(std::get<0>(GetParam())) == nullptr) {
      GTEST_SKIP() << "this CPU cannot run the kernels";
    }
  }

  [[nodiscard]] static RigOptions Options() {
    RigOptions options;
    options.table = std::get<0>(GetParam());
    options.type = std::get<1>(GetParam());
    options.num_layers = kLayers;
    options.num_q_heads = kQueryHeads;
    options.num_kv_heads = kKvHeads;
    options.num_threads = 2;
    options.num_stripes = 80;
    return options;
  }

  static RigOptions Mirror(uint32_t frames) {
    RigOptions options = Options();
    options.mirror = true;
    options.frames_per_group = frames;
    return options;
  }
};

TEST_P(MirrorAttentionTest, DenseRowsThroughAnyNumberOfFrames) {
  const Workload workload;
  AttentionRig in_place(Options());
  const std::vector<float> expected = RunAll(in_place, workload);
  const uint32_t all = in_place.max_pages();
  for (const uint32_t frames : {0U, 8U, all}) {
    SCOPED_TRACE(frames);
    AttentionRig rig(Mirror(frames));
    EXPECT_TRUE(SameBits(RunAll(rig, workload), expected));
    const MirrorCounters counters = rig.runtime().Counters();
    EXPECT_GT(counters.page_misses, 100U);
    EXPECT_EQ(counters.page_refaults, 0U);  // dense never pushes its own pages out
    EXPECT_EQ(counters.page_hits > 0, frames > 0);
    EXPECT_EQ(counters.multi_pass_heads > 0, frames < all);
    EXPECT_EQ(counters.pages_streamed > 0, frames < all);
    const absl::Status intact = rig.tier().CheckIntegrity();
    EXPECT_TRUE(intact.ok()) << intact;
  }
}

TEST_P(MirrorAttentionTest, ChoicesByHeadAndStep) {
  for (const uint32_t one_in : {2U, 9U}) {
    const SparsePolicy policy = Drawn(one_in);
    const Workload workload{.policy = &policy};
    AttentionRig in_place(Options());
    const std::vector<float> expected = RunAll(in_place, workload);
    for (const uint32_t frames : {0U, 16U}) {
      SCOPED_TRACE(frames);
      AttentionRig rig(Mirror(frames));
      EXPECT_TRUE(SameBits(RunAll(rig, workload), expected));
      EXPECT_EQ(rig.runtime().Counters().page_hits > 0, frames > 0);
      const absl::Status intact = rig.tier().CheckIntegrity();
      EXPECT_TRUE(intact.ok()) << intact;
    }
  }
}

TEST_P(MirrorAttentionTest, WindowsReadOnlyWhatTheySee) {
  RigOptions options = Options();
  options.windows = kLayers == 1 ? std::vector<uint32_t>{200} : std::vector<uint32_t>{0, 200};
  AttentionRig in_place(options);
  const Workload workload;
  const std::vector<float> expected = RunAll(in_place, workload);
  options.mirror = true;
  AttentionRig rig(options);
  EXPECT_TRUE(SameBits(RunAll(rig, workload), expected));
  AttentionRig full(Mirror(0));
  RunAll(full, workload);
  EXPECT_LT(rig.runtime().Counters().page_misses, full.runtime().Counters().page_misses * 4 / 5);
}

// After a preemption decoded rows come in chunks, each with the choice that it had.
TEST_P(MirrorAttentionTest, RecomputedRowsMakeTheSameChoices) {
  const SparsePolicy policy = Drawn(4);
  constexpr uint32_t kPrompt = 1100;
  constexpr uint32_t kEnd = 1140;
  for (const bool mirror : {false, true}) {
    SCOPED_TRACE(mirror);
    AttentionRig rig(mirror ? Mirror(16) : Options());
    const SequenceId stepwise = rig.Open();
    rig.Run(stepwise, 1, 0, kPrompt, 512);
    std::vector<float> expected;
    for (uint32_t position = kPrompt; position < kEnd; ++position) {
      const RigRows rows{stepwise, 1, position, 1, &policy, kPrompt};
      const std::vector<float> part = rig.Step({&rows, 1});
      expected.insert(expected.end(), part.begin(), part.end());
    }
    const SequenceId again = rig.Open();
    rig.Run(again, 1, 0, 1088, 512);
    const RigRows rows{again, 1, 1088, kEnd - 1088, &policy, kPrompt};
    const std::vector<float> all = rig.Step({&rows, 1});
    const std::vector<float> tail(all.end() - static_cast<ptrdiff_t>(expected.size()), all.end());
    EXPECT_TRUE(SameBits(tail, expected));
  }
}

// Without the reference, whose plain loops would take minutes; the kernels' own tests have it.
INSTANTIATE_TEST_SUITE_P(Tables,
                         MirrorAttentionTest,
                         ::testing::Combine(::testing::ValuesIn(kTables),
                                            ::testing::Values(DType::kBF16, DType::kF32)));

TEST(MirrorAttentionLinkTest, ASlowLinkCostsTimeAndChangesNothing) {
  RigOptions options{.table = "baseline", .num_kv_heads = 1, .num_threads = 2};
  const Workload workload{.decode_steps = 4};
  AttentionRig in_place(options);
  const std::vector<float> expected = RunAll(in_place, workload);
  kv::EmulatedLink link({.gigabytes_per_second = 1.0F, .latency_us = 50});
  options.mirror = true;
  options.link = &link;
  AttentionRig rig(options);
  EXPECT_TRUE(SameBits(RunAll(rig, workload), expected));
  const MirrorCounters counters = rig.runtime().Counters();
  EXPECT_GT(counters.stall_ns, 0U);
  // A nanosecond per byte of pages; refreshed rows are not sent.
  EXPECT_EQ(static_cast<uint64_t>(link.busy().count()), counters.page_misses * 4096);
}

TEST(MirrorAttentionLinkTest, RowsAppendedToCachedPagesReachTheirFrames) {
  RigOptions options{.table = "baseline", .num_threads = 1};
  options.mirror = true;
  options.frames_per_group = 16;
  AttentionRig rig(options);
  const SequenceId sequence = rig.Open();
  rig.Run(sequence, 1, 0, 100, 100);
  const uint64_t misses = rig.runtime().Counters().page_misses;
  rig.Run(sequence, 1, 100, 112, 1);  // all within page 6
  EXPECT_EQ(rig.runtime().Counters().page_misses, misses);
  EXPECT_EQ(rig.runtime().Counters().bytes_copied, misses * 4096 + 12 * 2 * 128);
}

}  // namespace
}  // namespace spindle::sparse
