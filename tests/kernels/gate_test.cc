// Kernels of learned gates, of every table, against plain definitions.
#include "kernels/api/gate.h"

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

constexpr double kUnit = 0x1p-24;

class GateKernelsTest : public testing::TestWithParam<Isa> {};

// Tables of `positions` positions, with a factor as YaRN has it.
struct Rotation {
  Rotation(uint32_t positions, uint32_t dim, RopePairing pair, float attention_factor)
      : rope_dim(dim), pairing(pair), factor(attention_factor) {
    for (uint32_t position = 0; position < positions; ++position) {
      for (uint32_t i = 0; i < dim / 2; ++i) {
        const double angle = (position + 700) * std::pow(500.0, -2.0 * i / dim);
        cos.push_back(static_cast<float>(std::cos(angle) * double{factor}));
        sin.push_back(static_cast<float>(std::sin(angle) * double{factor}));
      }
    }
  }

  [[nodiscard]] HeadRotation From(uint32_t position) const {
    const size_t at = position * size_t{rope_dim / 2};
    return {cos.data() + at, sin.data() + at, rope_dim, pairing, factor};
  }

  // What rope_append makes of a head at a position.
  [[nodiscard]] std::vector<float> Apply(uint32_t position, const std::vector<float>& head) const {
    std::vector<float> out = head;
    for (uint32_t i = 0; i < rope_dim / 2; ++i) {
      const bool is_split = pairing == RopePairing::kHalfSplit;
      const uint32_t a = is_split ? i : 2 * i;
      const uint32_t b = is_split ? i + rope_dim / 2 : 2 * i + 1;
      const size_t at = position * size_t{rope_dim / 2} + i;
      out[a] = head[a] * cos[at] - head[b] * sin[at];
      out[b] = head[a] * sin[at] + head[b] * cos[at];
    }
    return out;
  }

  uint32_t rope_dim;
  RopePairing pairing;
  float factor;
  std::vector<float> cos;
  std::vector<float> sin;
};

struct Shape {
  uint32_t head_dim;
  uint32_t rope_dim;
  RopePairing pairing;
  float factor;
};

const Shape kShapes[] = {{64, 64, RopePairing::kHalfSplit, 1.0F},
                         {64, 64, RopePairing::kAdjacent, 1.0F},
                         {80, 80, RopePairing::kHalfSplit, 1.25F},
                         {128, 32, RopePairing::kAdjacent, 1.25F},
                         {128, 128, RopePairing::kHalfSplit, 1.0F}};

// Keys [num_lanes][head_dim] in pages of 16 tokens, K half then V half.
struct Keys {
  Keys(const std::vector<std::vector<float>>& rows, DType kv_type)
      : head_dim(static_cast<uint32_t>(rows[0].size())), type(kv_type) {
    const size_t row_bytes = RowBytes(type, head_dim);
    bytes.assign((rows.size() + 15) / 16 * 32 * row_bytes, uint8_t{0xFF});
    for (uint32_t lane = 0; lane < rows.size(); ++lane) {
      uint8_t* const to = bytes.data() + (KeyOf(View(), lane) - bytes.data());
      for (uint32_t d = 0; d < head_dim; ++d) {
        if (type == DType::kF32) {
          std::memcpy(to + 4 * size_t{d}, &rows[lane][d], 4);
        } else {
          const uint16_t half = FloatToBf16(rows[lane][d]);
          std::memcpy(to + 2 * size_t{d}, &half, 2);
        }
      }
    }
  }

  [[nodiscard]] StripeKeys View() const {
    return {bytes.data(), 16, 32 * RowBytes(type, head_dim), head_dim, type};
  }

  uint32_t head_dim;
  DType type;
  std::vector<uint8_t> bytes;
};

TEST_P(GateKernelsTest, PoolingHandExample) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  std::vector<std::vector<float>> rows(2, std::vector<float>(16, 0.0F));
  rows[0][0] = 1.0F;
  rows[0][1] = -2.0F;
  rows[1][0] = 3.0F;
  rows[1][1] = 4.0F;
  const Keys keys(rows, DType::kBF16);
  const float none = 0.0F;
  std::vector<float> out(48);
  ASSERT_EQ(table->pool_keys({.keys = keys.View(),
                              .num_lanes = 2,
                              .rotation = {&none, &none, 0, RopePairing::kHalfSplit, 1.0F},
                              .out = out.data()}),
            kOk);
  EXPECT_EQ((std::vector<float>{out[0], out[1], out[16], out[17], out[32], out[33]}),
            (std::vector<float>{3, 4, 1, -2, 2, 1}));
}

TEST_P(GateKernelsTest, PoolsKeysAsTheyWereBeforeTheRotation) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(41)));
  for (const Shape& shape : kShapes) {
    for (const DType type : {DType::kBF16, DType::kF32}) {
      for (const uint32_t num_lanes : {1U, 2U, 17U, 64U}) {
        const Rotation rotation(70, shape.rope_dim, shape.pairing, shape.factor);
        std::vector<std::vector<float>> before;
        std::vector<std::vector<float>> after;
        for (uint32_t lane = 0; lane < num_lanes; ++lane) {
          before.push_back(RandomFloats(shape.head_dim, rng));
          after.push_back(rotation.Apply(5 + lane, before.back()));
        }
        const Keys keys(after, type);
        const uint32_t d = shape.head_dim;
        std::vector<float> out(3 * size_t{d} + 1, 77.0F);
        ASSERT_EQ(table->pool_keys({keys.View(), num_lanes, rotation.From(5), out.data()}), kOk);
        // Half a step of the stored type in both of a pair, and a few roundings.
        const double step = (type == DType::kF32 ? 0.0 : 0x1p-8) + 16 * kUnit;
        for (uint32_t i = 0; i < d; ++i) {
          double max = -1e9;
          double min = 1e9;
          double sum = 0;
          double largest = 0;
          for (uint32_t lane = 0; lane < num_lanes; ++lane) {
            max = std::max(max, double{before[lane][i]});
            min = std::min(min, double{before[lane][i]});
            sum += double{before[lane][i]};
            for (const float x : after[lane]) {
              largest = std::max(largest, std::abs(double{x}));
            }
          }
          const double bound = step * 2 * largest + num_lanes * kUnit * largest;
          ASSERT_NEAR(out[i], max, bound);
          ASSERT_NEAR(out[d + i], min, bound);
          ASSERT_NEAR(out[2 * size_t{d} + i], sum / num_lanes, bound);
        }
        ASSERT_EQ(out.back(), 77.0F);
      }
    }
  }
}

TEST_P(GateKernelsTest, QueriesAsTheyWereBeforeTheRotation) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(42)));
  for (const Shape& shape : kShapes) {
    const Rotation rotation(9, shape.rope_dim, shape.pairing, shape.factor);
    std::vector<float> before;
    std::vector<float> after;
    for (uint32_t head = 0; head < 3; ++head) {
      const std::vector<float> one = RandomFloats(shape.head_dim, rng);
      const std::vector<float> rotated = rotation.Apply(8, one);
      before.insert(before.end(), one.begin(), one.end());
      after.insert(after.end(), rotated.begin(), rotated.end());
    }
    std::vector<float> out(before.size() + 1, 77.0F);
    ASSERT_EQ(table->unrotate({.heads = after.data(),
                               .num_heads = 3,
                               .head_dim = shape.head_dim,
                               .rotation = rotation.From(8),
                               .out = out.data()}),
              kOk);
    for (size_t i = 0; i < before.size(); ++i) {
      ASSERT_NEAR(out[i], before[i], 64 * kUnit);
    }
    ASSERT_EQ(out.back(), 77.0F);
  }
}

TEST_P(GateKernelsTest, ProjectionsAreProductsWithTheMatrix) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(43)));
  for (const uint32_t num_inputs : {1U, 48U, 192U, 640U}) {
    for (const uint32_t num_outputs : {16U, 64U, 80U, 128U, 256U}) {
      const std::vector<float> x = RandomFloats(num_inputs, rng);
      std::vector<uint16_t> weights;
      for (const float weight : RandomFloats(size_t{num_inputs} * num_outputs, rng)) {
        weights.push_back(FloatToBf16(weight));
      }
      std::vector<float> out(num_outputs + 1, 77.0F);
      ASSERT_EQ(table->project({x.data(), weights.data(), num_inputs, num_outputs, out.data()}),
                kOk);
      for (uint32_t j = 0; j < num_outputs; ++j) {
        double sum = 0;
        double magnitude = 0;
        for (uint32_t i = 0; i < num_inputs; ++i) {
          const double product =
              double{x[i]} * double{Bf16ToFloat(weights[i * size_t{num_outputs} + j])};
          sum += product;
          magnitude += std::abs(product);
        }
        ASSERT_NEAR(out[j], sum, (num_inputs + 1) * kUnit * magnitude);
      }
      ASSERT_EQ(out.back(), 77.0F);
    }
  }
}

TEST_P(GateKernelsTest, RefusesShapesItCannotRead) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  const float none = 0.0F;
  float out[64];
  EXPECT_EQ(table->unrotate({&none, 0, 24, {&none, &none, 16, RopePairing::kAdjacent, 1.0F}, out}),
            kInvalidArgument);
  EXPECT_EQ(table->unrotate({&none, 0, 64, {&none, &none, 65, RopePairing::kAdjacent, 1.0F}, out}),
            kInvalidArgument);
  EXPECT_EQ(table->project({&none, nullptr, 0, 24, out}), kInvalidArgument);
  const std::vector<uint8_t> bytes(4096);
  EXPECT_EQ(table->pool_keys({{bytes.data(), 16, 4096, 64, DType::kBF16},
                              0,
                              {&none, &none, 0, RopePairing::kAdjacent, 1.0F},
                              out}),
            kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Tables, GateKernelsTest, testing::ValuesIn(kAllIsas), IsaParamName);

}  // namespace
}  // namespace spindle::kernels
