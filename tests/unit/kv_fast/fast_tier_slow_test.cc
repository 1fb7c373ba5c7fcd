// The long versions: 10⁷ directory operations, 10⁶ operations of the model, the large case in full.
#include <random>

#include <gtest/gtest.h>

#include "support/random_seed.h"
#include "unit/kv_fast/directory_traffic.h"
#include "unit/kv_fast/fast_tier_model.h"
#include "unit/kv_fast/metadata_bytes.h"

namespace spindle::kv {
namespace {

TEST(FastTierSlowTest, DirectoryEqualsMapOverTenMillionOperations) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(2)));
  const auto slab = MetadataSlab::Create(uint64_t{16} << 20).value();
  LeafCache leaves(*slab);
  PageDirectory directory;
  RunAgainstMap(*slab, leaves, &directory, 10'000'000, rng);
  directory.Clear(leaves);
  leaves.Flush();
  EXPECT_EQ(slab->item_bytes(), 0U);
  EXPECT_TRUE(slab->CheckIntegrity().ok());
}

TEST(FastTierSlowTest, EqualsPlainModelOverAMillionOperations) {
  RunFastTierModel(1'000'000, test::RandomSeed(3));
}

// 335.5 million logical pages, 31.4 million resident ones; frames are address space only.
TEST(FastTierSlowTest, MetadataOf70BWith32RequestsOf128K) {
  for (const bool refault_maps : {false, true}) {
    const test::MetadataResult result = MeasureAndPrint(
        {"70B, 128K, 32 requests", 80, 8, 8, 32, 131072, 131072, 1534, false}, refault_maps);
    const auto bytes = static_cast<double>(result.bytes.total());
    EXPECT_LE(bytes, 1.05 * result.formula);
    EXPECT_GE(result.flat_worst / bytes, 200);
    EXPECT_GE(result.flat_tight / bytes, 20);
  }
}

}  // namespace
}  // namespace spindle::kv
