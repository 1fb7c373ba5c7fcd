// Bytes of metadata against the formula 16 · ⌈pages / 64⌉ + 4 · 1.25 · resident + 5 · frames per
// group, and against flat tables. Flat tables are computed: the largest would take 100 GiB.
#include "unit/kv_fast/metadata_bytes.h"

#include <gtest/gtest.h>

namespace spindle::kv {
namespace {

// One request each: the ratios do not depend on how many there are.
constexpr test::MetadataCase k70B = {"70B, 128K", 80, 8, 8, 1, 131072, 131072, 1534, false};
constexpr test::MetadataCase k70BClustered = {
    "70B, 128K, clusters", 80, 8, 8, 1, 131072, 131072, 1534, true};
constexpr test::MetadataCase k14B = {"14B, 128K", 40, 8, 8, 1, 131072, 131072, 1534, false};
constexpr test::MetadataCase k70BShort = {
    "70B, 60K of 128K", 80, 8, 8, 1, 131072, 60000, 702, false};
constexpr test::MetadataCase kSmolLm2 = {
    "SmolLM2, 8K, 16 requests", 30, 3, 16, 16, 8192, 8192, 192, false};

TEST(MetadataBytesTest, StaysWithinTheFormula) {
  for (const test::MetadataCase& of : {k70B, k70BClustered, k14B, k70BShort, kSmolLm2}) {
    for (const bool refault_maps : {false, true}) {
      const test::MetadataResult result = MeasureAndPrint(of, refault_maps);
      EXPECT_LE(static_cast<double>(result.bytes.total()), 1.05 * result.formula) << of.name;
    }
  }
}

TEST(MetadataBytesTest, IsHundredsOfTimesSmallerThanFlatTables) {
  for (const bool refault_maps : {false, true}) {
    const test::MetadataResult large = MeasureAndPrint(k70B, refault_maps);
    const auto bytes = static_cast<double>(large.bytes.total());
    EXPECT_GE(large.flat_worst / bytes, 200);
    EXPECT_GE(large.flat_tight / bytes, 20);
  }
  const test::MetadataResult small = MeasureAndPrint(kSmolLm2, false);
  EXPECT_GE(small.flat_tight / static_cast<double>(small.bytes.total()), 8);
}

TEST(MetadataBytesTest, ThousandsOfTinySequencesShareChunks) {
  FastTierOptions options;
  options.geometry.num_layers = 1;
  options.geometry.num_kv_heads = 1;
  options.geometry.head_dim = 64;
  options.metadata_bytes = uint64_t{64} << 20;
  options.pass_unit_tokens = 64;
  options.ring_frames = kRunFrames;
  options.fast_bytes = (uint64_t{4096} + 1) * kRunFrames * 4096;
  auto tier = FastTier::Create(options, *kernels::BestKernels());
  ASSERT_TRUE(tier.ok()) << tier.status();
  GroupPlan plan(1);
  const uint32_t page = 0;
  for (uint32_t i = 0; i < 4096; ++i) {
    const CacheSetId set = (*tier)->Open(BudgetGroupId(i), 1).value();
    ASSERT_TRUE((*tier)->Resize(set, kRunFrames).ok());
    (*tier)->BeginStep(set);
    const GroupRef group{set, LayerIdx(0), KvHeadIdx(0)};
    (*tier)->Plan(0, 0, group, {&page, 1}, Caching::kLru, &plan);
    (*tier)->Commit(group, plan);
  }
  const FastMetadataBytes bytes = (*tier)->MetadataBytes();
  // An entry, a refault map and the run table: 16 + 16 + 8 bytes; the only page needs no leaf.
  EXPECT_EQ(bytes.directory + bytes.refault_maps + bytes.run_tables, 4096U * 40);
  EXPECT_EQ(bytes.leaves, 0U);
  EXPECT_LE(bytes.slack, 4096U * 2);
}

}  // namespace
}  // namespace spindle::kv
