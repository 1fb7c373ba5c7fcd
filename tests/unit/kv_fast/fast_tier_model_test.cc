#include "unit/kv_fast/fast_tier_model.h"

#include <gtest/gtest.h>

#include "support/random_seed.h"

namespace spindle::kv {
namespace {

TEST(FastTierModelTest, EqualsPlainModel) {
  RunFastTierModel(100'000, test::RandomSeed(1));
}

}  // namespace
}  // namespace spindle::kv
