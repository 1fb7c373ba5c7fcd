#include "formats/gguf_parser.h"

#include <memory>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/gguf_builder.h"
#include "support/random_seed.h"

namespace spindle::formats {
namespace {

using test::GgufBuilder;
using testing::HasSubstr;

// Parses a copy that ends exactly where the bytes end, so that a sanitizer sees any read beyond.
absl::StatusOr<GgufContents> Parse(const std::vector<uint8_t>& bytes) {
  const auto copy = std::make_unique<uint8_t[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.get());
  return ParseGguf({copy.get(), bytes.size()}, "file");
}

std::vector<uint8_t> ArrayValue(uint32_t type, uint64_t count) {
  std::vector<uint8_t> value;
  GgufBuilder::Put(&value, type);
  GgufBuilder::Put(&value, count);
  return value;
}

GgufBuilder Small() {
  GgufBuilder builder;
  builder.Text("general.name", "small").Uint("x.layers", 2).Float("x.eps", 0.5F);
  builder.Tensor("a", {8, 3}, 1.5F).Tensor("b", {4});
  return builder;
}

TEST(GgufParser, ReadsMetadataAndTensors) {
  const std::vector<uint8_t> bytes = Small().Build();
  const auto contents = ParseGguf(bytes, "file");
  ASSERT_TRUE(contents.ok()) << contents.status();
  ASSERT_EQ(contents->meta.size(), 3U);
  EXPECT_EQ(contents->meta[0].first, "general.name");
  EXPECT_EQ(std::get<std::string>(contents->meta[0].second), "small");
  EXPECT_EQ(std::get<uint64_t>(contents->meta[1].second), 2U);
  EXPECT_EQ(std::get<double>(contents->meta[2].second), 0.5);
  ASSERT_EQ(contents->tensors.size(), 2U);
  const TensorInfo& a = contents->tensors[0];
  EXPECT_EQ(a.shape, (std::vector<uint64_t>{3, 8}));  // outermost first
  ASSERT_EQ(a.bytes.size(), 8U * 3 * 4);
  EXPECT_EQ(*reinterpret_cast<const float*>(a.bytes.data()), 1.5F);
}

TEST(GgufParser, ReadsVersionTwo) {
  EXPECT_TRUE(Parse(Small().Version(2).Build()).ok());
}

TEST(GgufParser, ReadsArraysOfEveryWidth) {
  GgufBuilder builder;
  std::vector<uint8_t> bytes_array = ArrayValue(1, 2);  // int8
  bytes_array.push_back(0xFF);
  bytes_array.push_back(3);
  builder.Entry("small", GgufBuilder::kTypeArray, bytes_array);
  std::vector<uint8_t> floats = ArrayValue(GgufBuilder::kTypeFloat32, 1);
  GgufBuilder::Put(&floats, 0.25F);
  builder.Entry("floats", GgufBuilder::kTypeArray, floats);
  std::vector<uint8_t> texts = ArrayValue(GgufBuilder::kTypeString, 2);
  GgufBuilder::PutString(&texts, "one");
  GgufBuilder::PutString(&texts, "");
  builder.Entry("texts", GgufBuilder::kTypeArray, texts);
  const auto contents = Parse(builder.Build());
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(std::get<std::vector<int64_t>>(contents->meta[0].second),
            (std::vector<int64_t>{-1, 3}));
  EXPECT_EQ(std::get<std::vector<double>>(contents->meta[1].second), (std::vector<double>{0.25}));
  EXPECT_EQ(std::get<std::vector<std::string>>(contents->meta[2].second),
            (std::vector<std::string>{"one", ""}));
}

struct Refusal {
  const char* name;
  std::vector<uint8_t> bytes;
  absl::StatusCode code;
  const char* message;
};

void PrintTo(const Refusal& refusal, std::ostream* out) {
  *out << refusal.name;
}

class GgufRefusals : public testing::TestWithParam<Refusal> {};

TEST_P(GgufRefusals, NamesTheDamage) {
  const auto contents = Parse(GetParam().bytes);
  EXPECT_EQ(contents.status().code(), GetParam().code) << contents.status();
  EXPECT_THAT(std::string(contents.status().message()), HasSubstr(GetParam().message));
}

constexpr uint64_t kHuge = uint64_t{1} << 62;

std::vector<Refusal> HeadRefusals() {
  using enum absl::StatusCode;
  constexpr uint32_t kArray = GgufBuilder::kTypeArray;
  std::vector<uint8_t> long_key = GgufBuilder().Build();
  long_key[16] = 1;                                          // one entry …
  GgufBuilder::Put<uint64_t>(&long_key, uint64_t{1} << 60);  // … whose key is longer than the file
  long_key.resize(long_key.size() + 16);
  std::vector<uint8_t> bad_bool = {2};
  std::vector<uint8_t> long_element = ArrayValue(GgufBuilder::kTypeString, 1);
  GgufBuilder::Put(&long_element, kHuge);
  return {
      {"Empty", {}, kDataLoss, "magic"},
      {"OtherMagic", {'G', 'G', 'M', 'L', 3, 0, 0, 0}, kDataLoss, "magic"},
      {"VersionOne", Small().Version(1).Build(), kUnimplemented, "version 1"},
      {"VersionFour", Small().Version(4).Build(), kUnimplemented, "version 4"},
      {"BigEndian", Small().Version(0x03000000).Build(), kUnimplemented, "big-endian"},
      {"TensorCount", Small().TensorCount(kHuge).Build(), kDataLoss, "tensor count"},
      {"EntryCount", Small().EntryCount(kHuge).Build(), kDataLoss, "metadata count"},
      {"KeyBeyondFile", long_key, kDataLoss, "key of metadata entry 0"},
      {"TwoKeys", GgufBuilder().Uint("k", 1).Uint("k", 2).Build(), kDataLoss, "'k' appears twice"},
      {"ValueType", GgufBuilder().Entry("k", 77, {}).Build(), kUnimplemented, "'k'"},
      {"Bool", GgufBuilder().Entry("k", 7, bad_bool).Build(), kDataLoss, "not a boolean"},
      {"ArrayCount",
       GgufBuilder().Entry("k", kArray, ArrayValue(0, kHuge)).Build(),
       kDataLoss,
       "'k' of 4611686018427387904"},
      {"ArrayCountTimesEight",
       GgufBuilder().Entry("k", kArray, ArrayValue(10, (uint64_t{1} << 61) + 1)).Build(),
       kDataLoss,
       "does not fit"},
      {"NestedArray",
       GgufBuilder().Entry("k", kArray, ArrayValue(kArray, 1)).Build(),
       kUnimplemented,
       "element type 9"},
      {"StringElement",
       GgufBuilder().Entry("k", kArray, long_element).Data(64).Build(),
       kDataLoss,
       "element 0 of 'k'"},
      {"AlignmentZero", GgufBuilder().Uint("general.alignment", 0).Build(), kDataLoss, "alignment"},
      {"AlignmentOdd", GgufBuilder().Uint("general.alignment", 48).Build(), kDataLoss, "alignment"},
  };
}

std::vector<Refusal> TensorRefusals() {
  using enum absl::StatusCode;
  constexpr uint32_t kF32 = GgufBuilder::kTensorF32;
  return {
      {"NoDimension", GgufBuilder().TensorAt("t", {}, kF32, 0).Data(64).Build(), kDataLoss, "'t'"},
      {"ManyDimensions",
       GgufBuilder().TensorAt("t", {1, 1, 1, 1, 1}, kF32, 0).Data(64).Build(),
       kDataLoss,
       "5 dimensions"},
      {"EmptyDimension",
       GgufBuilder().TensorAt("t", {4, 0}, kF32, 0).Data(64).Build(),
       kDataLoss,
       "empty dimension"},
      {"Overflow",
       GgufBuilder().TensorAt("t", {kHuge, 8}, kF32, 0).Data(64).Build(),
       kDataLoss,
       "overflow"},
      {"PartBlock",
       GgufBuilder().TensorAt("t", {48}, 3, 0).Data(64).Build(),
       kDataLoss,
       "whole Q4_1 blocks"},
      {"KnownType",
       GgufBuilder().TensorAt("t", {256}, 10, 0).Data(512).Build(),
       kUnimplemented,
       "tensor 't' has unsupported type Q2_K"},
      {"UnknownType",
       GgufBuilder().TensorAt("t", {256}, 99, 0).Data(512).Build(),
       kUnimplemented,
       "tensor 't' has unknown type 99"},
      {"Misaligned",
       GgufBuilder().TensorAt("t", {4}, kF32, 4).Data(64).Build(),
       kDataLoss,
       "'t' is not aligned"},
      {"BeyondEnd",
       GgufBuilder().TensorAt("t", {16}, kF32, 32).Data(64).Build(),
       kDataLoss,
       "'t' lies beyond"},
      {"OffsetWraps",
       GgufBuilder().TensorAt("t", {16}, kF32, ~uint64_t{31}).Data(64).Build(),
       kDataLoss,
       "'t' lies beyond"},
      {"Overlap",
       GgufBuilder().TensorAt("t", {16}, kF32, 0).TensorAt("u", {16}, kF32, 32).Data(96).Build(),
       kDataLoss,
       "'t' and 'u' overlap"},
      {"TwoNames",
       GgufBuilder().TensorAt("t", {8}, kF32, 0).TensorAt("t", {8}, kF32, 32).Data(64).Build(),
       kDataLoss,
       "'t' appears twice"},
  };
}

std::vector<Refusal> Refusals() {
  std::vector<Refusal> refusals = HeadRefusals();
  const std::vector<Refusal> tensors = TensorRefusals();
  refusals.insert(refusals.end(), tensors.begin(), tensors.end());
  return refusals;
}

INSTANTIATE_TEST_SUITE_P(Rows, GgufRefusals, testing::ValuesIn(Refusals()), [](const auto& row) {
  return std::string(row.param.name);
});

TEST(GgufParser, RefusesEveryTruncation) {
  const std::vector<uint8_t> whole = Small().Build();
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(Parse({whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length)}).ok())
        << length;
  }
}

TEST(GgufParser, SurvivesRandomDamage) {
  const std::vector<uint8_t> whole = Small().Build();
  std::mt19937_64 random(test::RandomSeed(1303));
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<uint8_t> bytes = whole;
    const uint64_t edits = 1 + random() % 4;
    for (uint64_t i = 0; i < edits; ++i) {
      const size_t place = random() % bytes.size();
      bytes[place] = random() % 2 == 0 ? static_cast<uint8_t>(random()) : 0xFF;
    }
    const auto contents = Parse(bytes);
    if (!contents.ok()) {
      ++refused;
      continue;
    }
    for (const TensorInfo& tensor : contents->tensors) {  // what is accepted is inside the file
      EXPECT_LE(tensor.bytes.size(), bytes.size());
    }
  }
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace spindle::formats
