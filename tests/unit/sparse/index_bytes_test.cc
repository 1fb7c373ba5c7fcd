// What indexes take of memory, by the places that stores give them, and what plans say of it.
#include <cstdint>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/prefix_key.h"
#include "sparse/algorithm_registry.h"
#include "sparse/index_store.h"
#include "sparse/scratch_bytes.h"
#include "sparse/segment_index_store.h"

namespace spindle::sparse {
namespace {

constexpr uint64_t kSlots = 64;  // four segments
constexpr uint64_t kStripesOfSegment = kSegmentTokens / kStripeTokens;

// From the memory of one slot to that of the next.
uint64_t BytesPerStripe(const kv::KvGeometry& geometry, const SparseAlgorithm& algorithm) {
  auto store = IndexStore::Create(geometry, kSlots, algorithm.index_bytes(geometry)).value();
  EXPECT_TRUE(store.Cover(kSlots - 1).ok());
  return static_cast<uint64_t>(store.Data(kSlots - 1) - store.Data(0)) / (kSlots - 1);
}

// … and from that of one segment.
uint64_t BytesPerSegment(const kv::KvGeometry& geometry, const SparseAlgorithm& algorithm) {
  auto store = SegmentIndexStore::Create(geometry, kSlots, algorithm.index_bytes(geometry)).value();
  const std::vector<uint32_t> generations(kSlots, 1);
  std::vector<uint8_t*> blobs;
  for (uint32_t slot = kStripesOfSegment - 1; slot < kSlots; slot += kStripesOfSegment) {
    blobs.push_back(store.Data(store.Find(slot, generations)->blob));
  }
  return static_cast<uint64_t>(blobs.back() - blobs.front()) / (blobs.size() - 1);
}

double ShareOfKv(const kv::KvGeometry& geometry, const SparseAlgorithm& algorithm) {
  const auto stripe = static_cast<double>(geometry.stripe_bytes());
  return algorithm.index_unit() == IndexUnit::kSegment
             ? static_cast<double>(BytesPerSegment(geometry, algorithm)) /
                   (stripe * kStripesOfSegment)
             : static_cast<double>(BytesPerStripe(geometry, algorithm)) / stripe;
}

struct ShareLimit {
  std::string_view algorithm;
  double bf16;
  double int8;
};

constexpr ShareLimit kLimits[] = {
    {"quest", 0.065, 0.035}, {"shadowkv", 0.065, 0.035}, {"retroinfer", 0.075, 0.045}};

TEST(IndexBytesTest, SharesOfKvAreWithinTheirLimits) {
  // SmolLM2-135M, and the heads of larger models.
  for (const kv::KvGeometry& geometry :
       {kv::KvGeometry{30, 3, 64, DType::kBF16}, kv::KvGeometry{32, 8, 128, DType::kBF16}}) {
    for (const ShareLimit& limit : kLimits) {
      const double bf16 = ShareOfKv(geometry, *FindAlgorithm(limit.algorithm));
      const double int8 =
          ShareOfKv(geometry, *FindAlgorithm(limit.algorithm, Algorithms(IndexType::kInt8)));
      EXPECT_LE(bf16, limit.bf16) << limit.algorithm << " " << geometry.head_dim;
      EXPECT_LE(int8, limit.int8) << limit.algorithm << " " << geometry.head_dim;
      // Half the vectors; members of clusters and outliers' deviations stay as they are.
      EXPECT_LT(int8, 0.58 * bf16) << limit.algorithm << " " << geometry.head_dim;
    }
  }
}

TEST(IndexBytesTest, PlansCountWhatStoresTake) {
  const kv::KvGeometry geometry{30, 3, 64, DType::kBF16};
  const auto plan = [&geometry](IndexType type) {
    return AllIndexBytes(geometry, kSlots, AlgorithmSet(type));
  };
  uint64_t saved = 0;
  for (const ShareLimit& limit : kLimits) {
    const SparseAlgorithm& bf16 = *FindAlgorithm(limit.algorithm);
    const SparseAlgorithm& int8 = *FindAlgorithm(limit.algorithm, Algorithms(IndexType::kInt8));
    saved += bf16.index_unit() == IndexUnit::kSegment
                 ? (BytesPerSegment(geometry, bf16) - BytesPerSegment(geometry, int8)) *
                       (kSlots / kStripesOfSegment + 1)
                 : (BytesPerStripe(geometry, bf16) - BytesPerStripe(geometry, int8)) * kSlots;
  }
  EXPECT_EQ(plan(IndexType::kBf16) - plan(IndexType::kInt8), saved);
}

}  // namespace
}  // namespace spindle::sparse
