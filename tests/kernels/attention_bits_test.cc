// The fold-order law: the same bits for the same row and head, however rows, spans and workers are
// cut, and no way from a bad value into another row.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "kernels/attention_support.h"
#include "kernels/cpu/attention_plan.h"
#include "support/random_seed.h"

namespace spindle::kernels {
namespace {

using BitsParam = std::tuple<Isa, DType>;

class AttentionBitsTest : public testing::TestWithParam<BitsParam> {
 protected:
  void SetUp() override {
    table_ = FindKernels(std::get<0>(GetParam()));
    if (table_ == nullptr) {
      GTEST_SKIP() << "this CPU lacks the instruction set";
    }
    kv_type_ = std::get<1>(GetParam());
  }

  // Runs the rows of `c` in pieces of `chunk` rows, each with its own plan.
  AttentionResult InChunks(const AttentionCase& c, uint32_t chunk, uint32_t num_workers) {
    AttentionResult whole;
    whole.lse.resize(size_t{c.shape.num_q_heads} * c.num_rows);
    for (uint32_t begin = 0; begin < c.num_rows; begin += chunk) {
      const uint32_t end = std::min(c.num_rows, begin + chunk);
      const AttentionResult part = RunAttention(*table_, SliceRows(c, begin, end), num_workers);
      whole.out.insert(whole.out.end(), part.out.begin(), part.out.end());
      for (uint32_t h = 0; h < c.shape.num_kv_heads; ++h) {
        const size_t row = c.group();
        const size_t count = (end - begin) * row;
        std::copy_n(part.lse.begin() + static_cast<std::ptrdiff_t>(h * count),
                    count,
                    whole.lse.begin() +
                        static_cast<std::ptrdiff_t>((size_t{h} * c.num_rows + begin) * row));
      }
    }
    return whole;
  }

  static void ExpectSame(const AttentionResult& a, const AttentionResult& b) {
    EXPECT_EQ(a.out, b.out);
    EXPECT_EQ(a.lse, b.lse);
  }

  const KernelTable* table_ = nullptr;
  DType kv_type_ = DType::kBF16;
  std::mt19937 rng_{static_cast<uint32_t>(test::RandomSeed(1))};
};

TEST_P(AttentionBitsTest, PrefillEqualsDecodeEqualsChunks) {
  for (const HeadShape shape : {HeadShape{6, 2, 64}, HeadShape{4, 1, 128}, HeadShape{8, 1, 80}}) {
    SCOPED_TRACE(shape.head_dim);
    AttentionCase c = MakeCase(shape, kv_type_, 1063, 90, rng_);  // rows on both sides of a span
    const AttentionResult whole = RunAttention(*table_, c, 2);
    for (const uint32_t chunk : {1U, 2U, 7U, 32U}) {
      SCOPED_TRACE(chunk);
      ExpectSame(whole, InChunks(c, chunk, 1 + chunk % 3));
    }
    c.window = 77;
    ExpectSame(RunAttention(*table_, c, 2), InChunks(c, 1, 3));
  }
}

TEST_P(AttentionBitsTest, EveryGroupSizeGivesEachHeadItsOwnBits) {
  for (uint32_t group = 1; group <= 16; ++group) {
    SCOPED_TRACE(group);
    const AttentionCase c = MakeCase({group, 1, 64}, kv_type_, 150, 3, rng_);
    const AttentionResult together = RunAttention(*table_, c, 1);
    for (const uint32_t head : {0U, group / 2, group - 1}) {
      AttentionCase single = c;
      single.shape = {1, 1, 64};
      single.q.erase(single.q.begin(), single.q.begin() + head * 64);
      single.q.resize(c.q.size());
      const AttentionResult alone = RunAttention(*table_, single, 1);
      for (uint32_t row = 0; row < 3; ++row) {
        for (uint32_t i = 0; i < 64; ++i) {
          ASSERT_EQ(alone.out[row * 64 + i], together.out[(row * group + head) * 64 + i]);
        }
      }
    }
  }
}

// A row alone, as in decoding, beside the same row among others: of any number of heads and head
// size, and with holes in what is attended.
TEST_P(AttentionBitsTest, FewRowsGiveTheBitsOfMany) {
  const std::function<bool(uint32_t)> patterns[] = {
      [](uint32_t) { return true; },
      [](uint32_t position) { return position / 8 % 5 == 0; },
      [](uint32_t position) { return position % 64 < 16 || position % 64 >= 33; },
      [](uint32_t position) { return position * 2654435761U >> 31U == 0; }};
  for (uint32_t group = 1; group <= 9; ++group) {
    const uint32_t many = 9 / group + 1;  // ten query rows or more
    for (const uint32_t dim : {16U, 48U, 64U, 80U, 96U, 256U}) {
      AttentionCase c = MakeCase({group, 1, dim}, kv_type_, 150, many, rng_);
      for (const auto& pattern : patterns) {
        SCOPED_TRACE(testing::Message() << group << " heads of " << dim);
        c.live = pattern;
        c.runs = {c.kv[0].Runs(pattern)};
        ExpectSame(RunAttention(*table_, c, 1), InChunks(c, 1, 1));
      }
    }
  }
}

TEST_P(AttentionBitsTest, WorkersChangeThePlanButNoBit) {
  const AttentionCase c = MakeCase({6, 2, 64}, kv_type_, 5200, 2, rng_);
  const AttentionResult one = RunAttention(*table_, c, 1);
  bool split = false;
  for (const uint32_t workers : {2U, 3U, 16U}) {
    SCOPED_TRACE(workers);
    ExpectSame(one, RunAttention(*table_, c, workers, [&split](const auto&, AttentionPlan* plan) {
                 split = split || plan->num_partials > 0;
               }));
  }
  EXPECT_TRUE(split);
}

// Replaces the plan by row blocks and span groups cut at random.
void CutAtRandom(std::mt19937& rng, const AttentionArgs& args, AttentionPlan* plan) {
  plan->num_units = 0;
  plan->num_partials = 0;
  for (uint32_t i = 0; i < args.num_items; ++i) {
    const AttentionItem& item = args.items[i];
    const RunSpan runs = VisibleRuns(item, 0, item.num_rows);
    const bool split = rng() % 2 == 0;
    for (uint32_t row = 0; row < item.num_rows;) {
      const uint32_t left = item.num_rows - row;
      const uint32_t rows = split ? left : 1 + static_cast<uint32_t>(rng() % left);
      for (uint32_t begin = runs.begin; begin < runs.end;) {
        uint32_t end = split ? SpanEnd(item, begin, runs.end) : runs.end;
        while (split && end < runs.end && rng() % 2 == 0) {
          end = SpanEnd(item, end, runs.end);
        }
        const int32_t partial = split ? static_cast<int32_t>(plan->num_partials) : -1;
        plan->units[plan->num_units++] = {i, row, row + rows, begin, end, partial};
        plan->num_partials += split ? CountSpans(item, {begin, end}) * rows : 0;
        begin = end;
      }
      row += rows;
    }
  }
  ASSERT_LE(plan->num_units, plan->unit_capacity);
  ASSERT_LE(plan->num_partials, plan->partial_capacity);
}

TEST_P(AttentionBitsTest, AnySplitMergesToTheSameBits) {
  const AttentionCase c = MakeCase({6, 3, 64}, kv_type_, 3300, 3, rng_);
  const AttentionResult plain = RunAttention(*table_, c, 1);
  for (int round = 0; round < 6; ++round) {
    ExpectSame(plain, RunAttention(*table_, c, 1, [this](const auto& args, AttentionPlan* plan) {
                 CutAtRandom(rng_, args, plan);
               }));
  }
}

TEST_P(AttentionBitsTest, PassesGiveTheBitsOfOne) {
  for (const HeadShape shape : {HeadShape{6, 3, 64}, HeadShape{16, 1, 80}, HeadShape{1, 1, 128}}) {
    SCOPED_TRACE(shape.head_dim);
    for (const uint32_t num_rows : {1U, 150U}) {
      AttentionCase c = MakeCase(shape, kv_type_, 3300, num_rows, rng_);
      ExpectSame(RunAttention(*table_, c, 1), RunAttentionInPasses(*table_, c, 2, 1));
      c.window = 1500;  // rows that see nothing of the first passes
      ExpectSame(RunAttention(*table_, c, 2), RunAttentionInPasses(*table_, c, 1, 3));
    }
  }
}

// The last segment holds every row of the case, so that each sees something of both parts.
TEST_P(AttentionBitsTest, ALastSpanFromElsewhereGivesTheBitsOfOne) {
  for (const HeadShape shape : {HeadShape{6, 3, 64}, HeadShape{16, 1, 80}, HeadShape{1, 1, 128}}) {
    SCOPED_TRACE(shape.head_dim);
    for (const uint32_t num_rows : {1U, 150U}) {
      const AttentionCase c = MakeCase(shape, kv_type_, 3300, num_rows, rng_);
      const AttentionResult plain = RunAttention(*table_, c, 1);
      ExpectSame(plain, RunAttentionWithLastSpan(*table_, c));
      ExpectSame(
          plain,
          RunAttentionWithLastSpan(*table_, c, [this](const auto& args, AttentionPlan* plan) {
            CutAtRandom(rng_, args, plan);
          }));
    }
  }
}

// Five KV heads of one sequence side by side, as a KV store keeps them: a unit takes them together.
TEST_P(AttentionBitsTest, HeadsTakenTogetherEqualEachAlone) {
  constexpr uint32_t kHeads = 5;
  constexpr uint32_t kDim = 64;
  constexpr uint32_t kGroup = 3;
  constexpr uint32_t kLength = 1200;  // two spans
  const size_t row_bytes = size_t{kDim} * Describe(kv_type_).block_bytes;
  const size_t head_bytes = size_t{2} * kTileTokens * row_bytes;
  std::vector<uint8_t> kv(size_t{(kLength + kTileTokens - 1) / kTileTokens} * kHeads * head_bytes);
  for (size_t i = 0; i < kv.size(); i += 2) {  // numbers of moderate size in either type
    kv[i] = static_cast<uint8_t>(rng_());
    kv[i + 1] = static_cast<uint8_t>(0x3E | (rng_() & 0x81U));
  }
  std::vector<KvRun> runs;
  for (uint32_t begin = 0; begin < kLength; begin += kTileTokens) {
    const uint8_t* const k = kv.data() + begin / kTileTokens * kHeads * head_bytes;
    const uint32_t count = std::min(kLength - begin, kTileTokens);
    runs.push_back({.k = k,
                    .v = k + head_bytes / 2,
                    .live = UINT64_MAX,
                    .row_stride = kDim,
                    .tile = begin / kTileTokens,
                    .count = static_cast<uint16_t>(count),
                    .first_lane = 0,
                    .last_of_tile = 1});
  }
  std::normal_distribution<float> normal;
  std::vector<float> q(size_t{kHeads} * kGroup * kDim);
  std::generate(q.begin(), q.end(), [&] { return normal(rng_); });
  const auto attend = [&](uint32_t first, uint32_t count, uint32_t most_heads) {
    std::vector<float> out(size_t{count} * kGroup * kDim, kNan);
    std::vector<AttentionItem> items;
    for (uint32_t h = 0; h < count; ++h) {
      items.push_back({.q = q.data() + size_t{first + h} * kGroup * kDim,
                       .out = out.data() + size_t{h} * kGroup * kDim,
                       .lse = nullptr,
                       .runs = runs.data(),
                       .num_runs = static_cast<uint32_t>(runs.size()),
                       .num_rows = 1,
                       .first_position = kLength - 1,
                       .window = 0,
                       .kv_offset = (first + h) * head_bytes});
    }
    const AttentionArgs args{.items = items.data(),
                             .num_items = count,
                             .q_stride = q.size(),
                             .out_stride = out.size(),
                             .head_dim = kDim,
                             .group = kGroup,
                             .scale = 0.125F,
                             .softcap = 0,
                             .kv_type = kv_type_};
    std::vector<AttentionUnit> units(64);
    std::vector<float> partials(size_t{64} * kGroup * (kDim + 2));
    AttentionPlan plan{units.data(), 64, 0, partials.data(), 64, 0};
    EXPECT_EQ(table_->plan_attention(args, 1, &plan), kOk);
    EXPECT_EQ(plan.units[0].num_heads, most_heads);
    std::vector<uint8_t> scratch(kScratchBytes + 64);
    void* aligned = scratch.data();
    size_t space = scratch.size();
    Exec exec{std::align(64, kScratchBytes, aligned, space), kScratchBytes, 0, nullptr};
    EXPECT_EQ(table_->attention(args, plan, {0, plan.num_units}, &exec), kOk);
    return out;
  };
  const std::vector<float> together = attend(0, kHeads, kHeads);
  for (uint32_t h = 0; h < kHeads; ++h) {
    const std::vector<float> alone = attend(h, 1, 1);
    for (size_t i = 0; i < alone.size(); ++i) {
      ASSERT_EQ(alone[i], together[h * alone.size() + i]) << "head " << h;
      ASSERT_TRUE(std::isfinite(alone[i]));
    }
  }
}

// Positions at which `a` and `b` differ must be exactly the NaN rows from `first_bad` on (in token
// rows).
void ExpectOnlyRowsBad(const AttentionCase& c,
                       const AttentionResult& clean,
                       const AttentionResult& bad,
                       uint32_t first_bad_row) {
  const size_t width = size_t{c.shape.num_q_heads} * c.shape.head_dim;
  for (size_t i = 0; i < clean.out.size(); ++i) {
    if (i / width < first_bad_row) {
      ASSERT_EQ(clean.out[i], bad.out[i]) << "row " << i / width;
    }
  }
}

TEST_P(AttentionBitsTest, NanOfALaterTokenDoesNotReachEarlierRows) {
  const HeadShape shape{6, 2, 64};
  const AttentionCase c = MakeCase(shape, kv_type_, 200, 100, rng_);
  const AttentionResult clean = RunAttention(*table_, c, 2);
  for (const bool in_value : {false, true}) {
    AttentionCase bad = c;
    for (uint32_t h = 0; h < 2; ++h) {
      for (uint32_t i = 0; i < shape.head_dim; ++i) {
        if (in_value) {
          bad.kv[h].SetValue(150, i, i % 2 == 0 ? kNan : std::numeric_limits<float>::infinity());
        } else {
          bad.kv[h].SetKey(150, i, kNan);
        }
      }
      bad.runs[h] = bad.kv[h].Runs();
    }
    const AttentionResult result = RunAttention(*table_, bad, 2);
    ExpectOnlyRowsBad(c, clean, result, 50);
    // Rows 50 … 99 sit at positions 150 … 199 and do see it.
    for (size_t i = 50 * 6 * 64; i < result.out.size(); ++i) {
      ASSERT_FALSE(std::isfinite(result.out[i]));
    }
  }
}

TEST_P(AttentionBitsTest, NanInOneQueryStaysInItsHead) {
  const HeadShape shape{6, 2, 64};
  AttentionCase c = MakeCase(shape, kv_type_, 140, 20, rng_);
  const AttentionResult clean = RunAttention(*table_, c, 1);
  c.q[9 * c.q_stride + 4 * 64 + 10] = kNan;
  const AttentionResult bad = RunAttention(*table_, c, 1);
  for (size_t i = 0; i < clean.out.size(); ++i) {
    const bool poisoned = i / 64 == 9 * 6 + 4;
    ASSERT_EQ(std::isnan(bad.out[i]), poisoned) << i;
    ASSERT_TRUE(poisoned || clean.out[i] == bad.out[i]) << i;
  }
}

std::string BitsName(const testing::TestParamInfo<BitsParam>& info) {
  static constexpr const char* kIsaNames[] = {"Reference", "Baseline", "Avx2", "Avx512", "Amx"};
  return std::string(kIsaNames[static_cast<size_t>(std::get<0>(info.param))]) +
         std::string(Describe(std::get<1>(info.param)).name);
}

INSTANTIATE_TEST_SUITE_P(
    Tables,
    AttentionBitsTest,
    testing::Combine(
        testing::Values(Isa::kReference, Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAmx),
        testing::Values(DType::kBF16, DType::kF32)),
    BitsName);

TEST(AttentionPlanTest, RefusesShapesOutsideTheContract) {
  AttentionArgs good{};
  good.head_dim = 64;
  good.group = 3;
  good.scale = 1.0F;
  good.kv_type = DType::kBF16;
  AttentionPlan plan{};
  EXPECT_EQ(PlanAttention(good, 1, &plan), kOk);
  EXPECT_EQ(PlanAttention(good, 0, &plan), kInvalidArgument);
  for (void (*spoil)(AttentionArgs*) :
       {+[](AttentionArgs* args) { args->head_dim = 72; },
        +[](AttentionArgs* args) { args->head_dim = 272; },
        +[](AttentionArgs* args) { args->group = 0; },
        +[](AttentionArgs* args) { args->group = 17; },
        +[](AttentionArgs* args) { args->scale = 0.0F; },
        +[](AttentionArgs* args) { args->scale = kNan; },
        +[](AttentionArgs* args) { args->softcap = -1.0F; },
        +[](AttentionArgs* args) { args->kv_type = DType::kF16; }}) {
    AttentionArgs bad = good;
    spoil(&bad);
    EXPECT_EQ(PlanAttention(bad, 1, &plan), kInvalidArgument);
  }
}

TEST(AttentionPlanTest, CoversEveryRowAndSpanOnceWithinCapacityLargestFirst) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(1)));
  const AttentionCase c = MakeCase({3, 3, 64}, DType::kBF16, 4000, 300, rng);
  for (const uint32_t workers : {1U, 2U, 64U}) {
    RunAttention(
        *FindKernels(Isa::kBaseline), c, workers, [&](const auto& args, AttentionPlan* plan) {
          std::vector<uint32_t> rows(args.num_items * c.num_rows);
          uint64_t previous = UINT64_MAX;
          for (uint32_t u = 0; u < plan->num_units; ++u) {
            const AttentionUnit& unit = plan->units[u];
            const uint64_t cost =
                uint64_t{unit.run_end - unit.run_begin} * (unit.row_end - unit.row_begin);
            for (uint32_t row = unit.row_begin; row < unit.row_end; ++row) {
              ++rows[unit.item * c.num_rows + row];
            }
            if (unit.row_end - unit.row_begin ==
                plan->units[0].row_end - plan->units[0].row_begin) {
              EXPECT_LE(cost, previous);
              previous = cost;
            }
          }
          EXPECT_EQ(std::count(rows.begin(), rows.end(), 1U), std::ssize(rows));
          EXPECT_GE(plan->num_units, 4 * workers < 57 ? 4 * workers : 57);
        });
  }
}

}  // namespace
}  // namespace spindle::kernels
