// The estimate of XAttention, of every table, against plain definitions.
#include "kernels/api/block_mass.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernel_cases.h"
#include "kernels/codes.h"
#include "support/random_seed.h"

namespace spindle::kernels {
namespace {

// Keys of one head in stripes, pages of K then V, and the queries of one block.
class MassRig {
 public:
  MassRig(uint32_t head_dim, uint32_t page_tokens, DType type, uint32_t group, uint32_t block)
      : head_dim_(head_dim), group_(group), block_(block) {
    const size_t page_bytes = 2 * page_tokens * RowBytes(type, head_dim);
    layout_ = {nullptr, page_tokens, page_bytes, head_dim, type};
    stripes_.assign(2 * size_t{block} + 2,
                    std::vector<uint8_t>(64 / page_tokens * page_bytes, uint8_t{0xFF}));
    q_.assign(kMassBlockTokens * QStride(), 0.0F);
  }

  [[nodiscard]] size_t QStride() const { return size_t{group_} * head_dim_ + 3; }

  void SetKey(uint32_t position, uint32_t d, float value) {
    std::vector<uint8_t>& stripe = stripes_[position / 64];
    StripeKeys keys = layout_;
    keys.k = stripe.data();
    uint8_t* const at = stripe.data() + (KeyOf(keys, position % 64) - stripe.data());
    if (layout_.type == DType::kF32) {
      std::memcpy(at + 4 * size_t{d}, &value, 4);
    } else {
      const uint16_t half = FloatToBf16(value);
      std::memcpy(at + 2 * size_t{d}, &half, 2);
    }
  }

  void SetQuery(uint32_t row, uint32_t head, uint32_t d, float value) {
    q_[row * QStride() + size_t{head} * head_dim_ + d] = value;
  }

  void Randomise(std::mt19937& rng) {
    std::normal_distribution<float> normal;
    for (uint32_t position = 0; position < 128 * (block_ + 1); ++position) {
      for (uint32_t d = 0; d < head_dim_; ++d) {
        SetKey(position, d, normal(rng));
      }
    }
    for (uint32_t row = 0; row < 128; ++row) {
      for (uint32_t i = 0; i < group_ * head_dim_; ++i) {
        SetQuery(row, i / head_dim_, i % head_dim_, 2 * normal(rng));
      }
    }
  }

  [[nodiscard]] std::vector<float> Mass(const KernelTable& table,
                                        uint32_t stride,
                                        float scale,
                                        float softcap = 0) const {
    std::vector<const uint8_t*> stripes;
    for (const std::vector<uint8_t>& stripe : stripes_) {
      stripes.push_back(stripe.data());
    }
    std::vector<float> mass(size_t{group_} * (block_ + 1), NAN);
    TestExec exec;
    EXPECT_EQ(table.block_mass({.q = q_.data(),
                                .q_stride = QStride(),
                                .group = group_,
                                .stripes = stripes.data(),
                                .offset = 0,
                                .layout = layout_,
                                .block = block_,
                                .stride = stride,
                                .scale = scale,
                                .softcap = softcap,
                                .mass = mass.data()},
                               exec.get()),
              kOk);
    return mass;
  }

 private:
  uint32_t head_dim_;
  uint32_t group_;
  uint32_t block_;
  StripeKeys layout_{};
  std::vector<std::vector<uint8_t>> stripes_;
  std::vector<float> q_;
};

struct MassShape {
  uint32_t head_dim;
  uint32_t page_tokens;
  DType type;
  uint32_t group;
  uint32_t block;
  float softcap;
};

const MassShape kMassShapes[] = {{64, 16, DType::kBF16, 3, 0, 0},
                                 {64, 16, DType::kBF16, 3, 4, 0},
                                 {128, 8, DType::kBF16, 4, 3, 0},
                                 {80, 16, DType::kBF16, 1, 2, 0},
                                 {16, 32, DType::kBF16, 16, 2, 0},
                                 {256, 8, DType::kBF16, 8, 1, 0},
                                 {64, 8, DType::kF32, 3, 3, 0},
                                 {64, 16, DType::kBF16, 7, 2, 5}};

class BlockMassTest : public testing::TestWithParam<Isa> {};

// Every score moves by at most a few roundings of its terms, a mass by that share of itself and by
// the error of exponentials; and the rows of a head sum to one each.
TEST_P(BlockMassTest, EqualsTheDefinition) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(41)));
  for (const MassShape& shape : kMassShapes) {
    MassRig rig(shape.head_dim, shape.page_tokens, shape.type, shape.group, shape.block);
    rig.Randomise(rng);
    for (const uint32_t stride : {8U, 16U}) {
      const float scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
      const std::vector<float> mass = rig.Mass(*table, stride, scale, shape.softcap);
      const std::vector<float> expected =
          rig.Mass(*FindKernels(Isa::kReference), stride, scale, shape.softcap);
      // stride · head_dim terms of size ~2, divided by stride and by √head_dim.
      const double terms = static_cast<double>(shape.head_dim) * stride;
      const double score_error =
          terms * 0x1p-24 * 2 * std::sqrt(terms) / stride / std::sqrt(shape.head_dim);
      const double tolerance = 4 * score_error + 16 * 0x1p-20;
      for (size_t i = 0; i < mass.size(); ++i) {
        EXPECT_NEAR(mass[i], expected[i], tolerance * double{expected[i]} + 1e-30)
            << "d " << shape.head_dim << " stride " << stride << " at " << i;
      }
      for (uint32_t head = 0; head < shape.group; ++head) {
        double sum = 0;
        for (uint32_t j = 0; j <= shape.block; ++j) {
          sum += double{mass[head * size_t{shape.block + 1} + j]};
        }
        EXPECT_NEAR(sum, 128.0 / stride, 128.0 / stride * 0x1p-18);
      }
    }
  }
}

// Worked by hand: keys (1, 0) and (2, 1) in two tiles, queries (3, 4), D = 1 and stride 2. Here a
// tile has eight rows and sixteen channels, all zero but these; scale 4 makes up for it. Other
// tiles get scores far below by a channel of their own.
TEST_P(BlockMassTest, HandExample) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  MassRig rig(16, 16, DType::kBF16, 1, 1);
  for (uint32_t position = 0; position < 256; ++position) {
    for (uint32_t d = 0; d < 16; ++d) {
      rig.SetKey(position, d, 0);
    }
  }
  for (uint32_t tile = 0; tile < 32; ++tile) {
    rig.SetKey(8 * tile, 1, tile == 0 || tile == 16 ? 0.0F : -1000.0F);
  }
  rig.SetKey(0, 0, 1);
  rig.SetKey(128, 0, 2);
  rig.SetKey(129, 0, 1);
  for (uint32_t tile = 0; tile < 16; ++tile) {
    rig.SetQuery(8 * tile + 6, 0, 0, 3);
    rig.SetQuery(8 * tile + 7, 0, 0, 4);
    rig.SetQuery(8 * tile + 7, 0, 1, 1);
  }
  const std::vector<float> mass = rig.Mass(*table, 8, 4);
  EXPECT_NEAR(mass[0] / 16, 0.0293, 5e-5);
  EXPECT_NEAR(mass[1] / 16, 0.9707, 5e-5);
}

// What lies behind a block, and who shares a panel with a head, does not reach its bits.
TEST_P(BlockMassTest, HeadsAreIslands) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(41)));
  MassRig all(64, 16, DType::kBF16, 5, 3);
  all.Randomise(rng);
  const std::vector<float> before = all.Mass(*table, 8, 0.125F);
  for (uint32_t row = 0; row < 128; ++row) {
    all.SetQuery(row, 4, 7, NAN);
  }
  const std::vector<float> after = all.Mass(*table, 8, 0.125F);
  EXPECT_EQ(std::memcmp(before.data(), after.data(), 16 * sizeof(float)), 0);
  EXPECT_TRUE(
      std::all_of(after.begin() + 16, after.end(), [](float mass) { return mass != mass; }));
}

TEST_P(BlockMassTest, RefusesOtherShapes) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  TestExec exec;
  BlockMassArgs args{};
  args.group = 1;
  args.stride = 8;
  args.layout = {nullptr, 16, 4096, 64, DType::kBF16};
  for (const auto& change : {+[](BlockMassArgs* wrong) { wrong->stride = 12; },
                             +[](BlockMassArgs* wrong) { wrong->group = 0; },
                             +[](BlockMassArgs* wrong) { wrong->group = 17; },
                             +[](BlockMassArgs* wrong) { wrong->layout.head_dim = 24; },
                             +[](BlockMassArgs* wrong) { wrong->layout.head_dim = 272; },
                             +[](BlockMassArgs* wrong) { wrong->layout.type = DType::kF16; }}) {
    BlockMassArgs wrong = args;
    change(&wrong);
    EXPECT_EQ(table->block_mass(wrong, exec.get()), kInvalidArgument);
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, BlockMassTest, testing::ValuesIn(kAllIsas), IsaParamName);

}  // namespace
}  // namespace spindle::kernels
