#include "formats/safetensors_parser.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/random_seed.h"

namespace spindle::formats {
namespace {

using testing::HasSubstr;

// Header length, header, `data_bytes` zeros.
std::vector<uint8_t> File(const std::string& header, size_t data_bytes) {
  std::vector<uint8_t> bytes(8 + header.size() + data_bytes);
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof(length));
  std::copy(header.begin(), header.end(), bytes.begin() + 8);
  return bytes;
}

absl::StatusOr<std::vector<TensorInfo>> Parse(const std::vector<uint8_t>& bytes) {
  const auto copy = std::make_unique<uint8_t[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.get());
  return ParseSafetensors({copy.get(), bytes.size()}, "file");
}

std::string Tensor(const std::string& name,
                   const std::string& type,
                   const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + R"(": {"dtype": ")" + type + R"(", "shape": )" + shape +
         R"(, "data_offsets": )" + offsets + "}";
}

const std::string kTwo = "{" + Tensor("b", "BF16", "[2, 4]", "[16, 32]") + "," +
                         R"("__metadata__": {"format": "pt"},)" +
                         Tensor("a", "F32", "[4]", "[0, 16]") + "}";

TEST(Safetensors, ReadsTensorsInByteOrder) {
  const auto tensors = Parse(File(kTwo, 32));
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 2U);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[0].type, DType::kF32);
  EXPECT_EQ((*tensors)[1].shape, (std::vector<uint64_t>{2, 4}));
  EXPECT_EQ((*tensors)[1].bytes.size(), 16U);
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

class SafetensorsRefusals : public testing::TestWithParam<Refusal> {};

TEST_P(SafetensorsRefusals, NamesTheDamage) {
  const auto tensors = Parse(GetParam().bytes);
  EXPECT_EQ(tensors.status().code(), GetParam().code) << tensors.status();
  EXPECT_THAT(std::string(tensors.status().message()), HasSubstr(GetParam().message));
}

Refusal Header(const char* name, const std::string& header, const char* message) {
  return {name, File(header, 32), absl::StatusCode::kDataLoss, message};
}

std::vector<Refusal> Refusals() {
  std::vector<uint8_t> long_header = File(kTwo, 32);
  long_header[5] = 1;  // header length of more than 2^40 bytes
  const std::string deep = "{" + std::string(200000, '[');
  return {
      {"Empty", {}, absl::StatusCode::kDataLoss, "header"},
      {"HeaderBeyondFile", long_header, absl::StatusCode::kDataLoss, "does not fit"},
      {"ElementType",
       File("{" + Tensor("t", "I64", "[4]", "[0, 32]") + "}", 32),
       absl::StatusCode::kUnimplemented,
       "tensor 't' has unsupported type I64"},
      Header("NotJson", "{]", "not valid JSON"),
      Header("Deep", deep, "not valid JSON"),
      Header("DeepInTensor", R"({"t": {"shape": [[[)", "array where none belongs"),
      Header("TopLevelArray", "[]", "array where none belongs"),
      Header("NoOffsets", R"({"t": {"dtype": "F32", "shape": [8]}})", "'t' lacks"),
      Header("ExtraKey", R"({"t": {"stride": [8]}})", "unexpected key 'stride'"),
      Header("TwoTypes", R"({"t": {"dtype": "F32", "dtype": "F32"}})", "unexpected key 'dtype'"),
      Header("Negative", R"({"t": {"shape": [-1]}})", "negative"),
      Header("Fraction", R"({"t": {"shape": [1.5]}})", "not an integer"),
      Header("NumberAsType", R"({"t": {"dtype": 3}})", "number where none belongs"),
      Header("TensorIsText", R"({"t": "x"})", "text where none belongs"),
      Header("ManyDimensions", R"({"t": {"shape": [1,1,1,1,1,1,1,1,1]}})", "too many"),
      Header("TwoNames",
             "{" + Tensor("t", "F32", "[4]", "[0, 16]") + "," +
                 Tensor("t", "F32", "[4]", "[16, 32]") + "}",
             "'t' appears twice"),
      Header("SizeMismatch", "{" + Tensor("t", "F32", "[4]", "[0, 32]") + "}", "do not match"),
      Header("Backwards", "{" + Tensor("t", "F32", "[4]", "[32, 16]") + "}", "do not match"),
      Header("BeyondEnd", "{" + Tensor("t", "F32", "[8]", "[16, 48]") + "}", "beyond the end"),
      Header("Overflow",
             "{" + Tensor("t", "F32", "[4611686018427387904, 16]", "[0, 0]") + "}",
             "overflow"),
      Header("Hole", "{" + Tensor("t", "F32", "[4]", "[16, 32]") + "}", "leaves a hole"),
      Header("Overlap",
             "{" + Tensor("t", "F32", "[6]", "[0, 24]") + "," +
                 Tensor("u", "F32", "[4]", "[16, 32]") + "}",
             "overlaps"),
      Header("Rest", "{" + Tensor("t", "F32", "[4]", "[0, 16]") + "}", "behind the last tensor"),
  };
}

INSTANTIATE_TEST_SUITE_P(Rows,
                         SafetensorsRefusals,
                         testing::ValuesIn(Refusals()),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(Safetensors, SurvivesRandomDamage) {
  const std::vector<uint8_t> whole = File(kTwo, 32);
  std::mt19937_64 random(test::RandomSeed(77));
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<uint8_t> bytes = whole;
    for (uint64_t i = 0; i <= random() % 3; ++i) {
      bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    }
    bytes.resize(bytes.size() - random() % 2);
    refused += Parse(bytes).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace spindle::formats
