#include "kv/kv_geometry.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/random_seed.h"

namespace spindle::kv {
namespace {

using ::testing::HasSubstr;

struct PageRow {
  DType type;
  uint32_t head_dim;
  uint32_t page_tokens;
  size_t page_bytes;
};

TEST(KvGeometryTest, PageTokensAreTheSmallestChoiceWithFourKibibytes) {
  const std::vector<PageRow> rows = {
      {DType::kBF16, 16, 32, 2048},
      {DType::kBF16, 32, 32, 4096},
      {DType::kBF16, 64, 16, 4096},
      {DType::kBF16, 80, 16, 5120},
      {DType::kBF16, 96, 16, 6144},
      {DType::kBF16, 112, 16, 7168},
      {DType::kBF16, 128, 8, 4096},
      {DType::kBF16, 160, 8, 5120},
      {DType::kBF16, 256, 8, 8192},
      {DType::kF32, 32, 16, 4096},
      {DType::kF32, 64, 8, 4096},
      {DType::kF32, 128, 8, 8192},
  };
  for (const PageRow& row : rows) {
    const KvGeometry geometry{2, 3, row.head_dim, row.type};
    SCOPED_TRACE(row.head_dim);
    EXPECT_EQ(geometry.page_tokens(), row.page_tokens);
    EXPECT_EQ(geometry.page_bytes(), row.page_bytes);
  }
}

TEST(KvGeometryTest, SizesOfKnownModels) {
  const KvGeometry smollm2{30, 3, 64, DType::kBF16};
  EXPECT_EQ(smollm2.bytes_per_token(), 23040U);
  EXPECT_EQ(smollm2.extent_bytes(), 49152U);
  EXPECT_EQ(smollm2.stripe_bytes(), 1474560U);
  const KvGeometry llama70b{80, 8, 128, DType::kBF16};
  EXPECT_EQ(llama70b.bytes_per_token(), 327680U);
  EXPECT_EQ(llama70b.extent_bytes(), 262144U);
}

// Marks every byte of a stripe that some row of some layer and head occupies.
void ExpectRowsTileTheStripe(const KvGeometry& geometry) {
  std::vector<uint8_t> owners(geometry.stripe_bytes(), 0);
  for (uint32_t layer = 0; layer < geometry.num_layers; ++layer) {
    for (uint32_t head = 0; head < geometry.num_kv_heads; ++head) {
      for (uint32_t lane = 0; lane < kStripeTokens; ++lane) {
        const size_t k = geometry.row_offset(layer, lane) + head * geometry.head_bytes();
        for (const size_t begin : {k, k + geometry.v_offset()}) {
          ASSERT_LE(begin + geometry.row_bytes(), owners.size());
          for (size_t i = 0; i < geometry.row_bytes(); ++i) {
            ++owners[begin + i];
          }
        }
      }
    }
  }
  // In range, disjoint and without a hole: every byte has exactly one owner.
  EXPECT_TRUE(std::all_of(owners.begin(), owners.end(), [](uint8_t n) { return n == 1; }));
}

TEST(KvGeometryTest, RandomShapesTileTheStripeWithAlignedDisjointRows) {
  const uint64_t seed = test::RandomSeed(20261);
  std::mt19937_64 random(seed);
  const std::vector<uint32_t> heads = {1, 2, 3, 4, 5, 8, 14};
  const std::vector<uint32_t> dims = {16, 32, 64, 80, 96, 112, 128, 160, 192, 256};
  for (int round = 0; round < 60; ++round) {
    const KvGeometry geometry{static_cast<uint32_t>(1 + random() % 6),
                              heads[random() % heads.size()],
                              dims[random() % dims.size()],
                              random() % 2 == 0 ? DType::kBF16 : DType::kF32};
    SCOPED_TRACE(::testing::Message()
                 << geometry.num_layers << " layers, " << geometry.num_kv_heads << " heads of "
                 << geometry.head_dim << " " << Describe(geometry.type).name);
    ASSERT_TRUE(ValidateGeometry(geometry).ok());
    EXPECT_EQ(kStripeTokens % geometry.page_tokens(), 0U);
    EXPECT_EQ(geometry.v_offset() % 64, 0U);
    EXPECT_EQ(geometry.page_bytes() % 64, 0U);
    EXPECT_EQ(geometry.stripe_bytes() % 4096, 0U);
    EXPECT_EQ(geometry.bytes_per_token() * kStripeTokens, geometry.stripe_bytes());
    EXPECT_EQ(geometry.bytes_per_token(),
              2 * geometry.num_layers * geometry.num_kv_heads * geometry.row_bytes());
    ExpectRowsTileTheStripe(geometry);
  }
}

TEST(KvGeometryTest, PageSizesThatDoNotDivideAStripeAreRefused) {
  for (const uint32_t tokens : {1U, 2U, 8U, 16U, 32U, 64U}) {
    EXPECT_TRUE(ValidatePageTokens(tokens).ok()) << tokens;
  }
  for (const uint32_t tokens : {0U, 3U, 12U, 24U, 48U, 65U, 128U}) {
    const absl::Status status = ValidatePageTokens(tokens);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << tokens;
    EXPECT_THAT(std::string(status.message()), HasSubstr("must divide 64"));
  }
}

TEST(KvGeometryTest, RefusalsNameTheFieldAndItsRange) {
  struct Row {
    KvGeometry geometry;
    const char* message;
  };

  const std::vector<Row> rows = {
      {{0, 3, 64, DType::kBF16}, "num_layers must be in 1..4096, got 0"},
      {{4097, 3, 64, DType::kBF16}, "num_layers must be in 1..4096, got 4097"},
      {{2, 0, 64, DType::kBF16}, "num_kv_heads must be in 1..4096, got 0"},
      {{2, 3, 0, DType::kBF16}, "head_dim must be a multiple of 16 in 16..1024, got 0"},
      {{2, 3, 72, DType::kBF16}, "head_dim must be a multiple of 16 in 16..1024, got 72"},
      {{2, 3, 1040, DType::kBF16}, "head_dim must be a multiple of 16 in 16..1024, got 1040"},
      {{2, 3, 64, DType::kF16}, "type must be BF16 or F32, got F16"},
      {{2, 3, 64, DType::kQ8_0}, "type must be BF16 or F32, got Q8_0"},
  };
  for (const Row& row : rows) {
    const absl::Status status = ValidateGeometry(row.geometry);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.message));
  }
}

}  // namespace
}  // namespace spindle::kv
