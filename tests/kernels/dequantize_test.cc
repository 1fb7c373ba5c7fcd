// Dequantised rows of every table against values computed by the Python package gguf
// (tools/golden/kernels.py). Each product of a scale and a code is exact in fp32, so there is one
// right result: bits are compared.
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include <gtest/gtest.h>

#include "kernels/codes.h"
#include "kernels/kernel_cases.h"

namespace spindle::kernels {
namespace {

struct Golden {
  DType type;
  std::vector<uint8_t> bytes;
  std::vector<float> values;
};

std::vector<uint8_t> FromHex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<Golden> LoadGoldens() {
  std::ifstream file(std::string(SPINDLE_TEST_GOLDEN_DIR) + "/kernels/dequantize.txt");
  std::vector<Golden> goldens;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    std::string hex;
    size_t count = 0;
    fields >> name >> hex >> count;
    Golden golden{.type = DType::kF32, .bytes = FromHex(hex), .values = {}};
    for (const DType type : kAllTypes) {
      if (Describe(type).name == name) {
        golden.type = type;
      }
    }
    EXPECT_EQ(Describe(golden.type).name, name);
    for (std::string bits; fields >> bits;) {
      golden.values.push_back(
          std::bit_cast<float>(static_cast<uint32_t>(std::stoul(bits, nullptr, 16))));
    }
    EXPECT_EQ(golden.values.size(), count);
    goldens.push_back(std::move(golden));
  }
  return goldens;
}

class DequantizeTest : public testing::TestWithParam<Isa> {};

TEST_P(DequantizeTest, GivesTheBitsOfGguf) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  const std::vector<Golden> goldens = LoadGoldens();
  ASSERT_EQ(goldens.size(), kAllTypes.size());
  for (const Golden& golden : goldens) {
    const auto k = static_cast<uint32_t>(golden.values.size());
    ASSERT_EQ(golden.bytes.size(), RowBytes(golden.type, k));
    std::vector<float> values(k);
    ASSERT_EQ(table->dequantize_row(golden.type, golden.bytes.data(), k, values.data()), kOk);
    for (uint32_t i = 0; i < k; ++i) {
      ASSERT_EQ(values[i], golden.values[i]) << Describe(golden.type).name << " element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DequantizeTest, testing::ValuesIn(kAllIsas), IsaParamName);

// IEEE 754 binary16 by its definition; every value is exact in fp32.
float HalfByDefinition(uint32_t bits) {
  const auto exponent = static_cast<int>(bits >> 10 & 31);
  const auto mantissa = static_cast<float>(bits & 1023);
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) {
    return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN()
                         : sign * std::numeric_limits<float>::infinity();
  }
  return sign *
         (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

// All 65536 patterns.
TEST(SmallFloatsTest, HalfToFloatIsExact) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = HalfToFloat(half);
    const float reference = HalfByDefinition(bits);
    if (reference != reference) {
      ASSERT_NE(value, value) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(reference)) << bits;
    }
  }
}

TEST(SmallFloatsTest, Bf16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(FloatToBf16(1.0F), 0x3F80);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3F808000U)), 0x3F80);  // tie, even below
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3F818000U)), 0x3F82);  // tie, even above
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3F808001U)), 0x3F81);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x7F7FFFFFU)), 0x7F80);  // rounds to infinity
  const float nan = Bf16ToFloat(FloatToBf16(std::bit_cast<float>(0x7F800001U)));
  EXPECT_NE(nan, nan);
}

}  // namespace
}  // namespace spindle::kernels
