// Keys of one layer and KV head in stripes of a store's layout, their index, and the choice of an
// algorithm over them. Thread-safety: none needed; single-threaded tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/codes.h"
#include "kernels/registry.h"
#include "naive_selection.h"
#include "platform/memory.h"
#include "sparse/sparse_policy.h"

namespace spindle::sparse {

class SelectionRig {
 public:
  SelectionRig(const SparseAlgorithm& algorithm,
               const kernels::KernelTable& kernels,
               uint32_t head_dim,
               DType type,
               const tensor::AttentionSpec* spec = nullptr)
      : algorithm_(algorithm),
        workspace_(kernels),
        geometry_{1, 1, head_dim, type},
        spec_(spec),
        scratch_(platform::AlignedBuffer::Allocate(kernels::kScratchBytes).value()) {
    workspace_.exec = &exec_;
  }

  // Appends keys [count][head_dim] and indexes them, as a step does.
  void Append(std::span<const float> keys) {
    const uint32_t d = geometry_.head_dim;
    const auto count = static_cast<uint32_t>(keys.size() / d);
    const uint32_t begin = num_tokens_;
    num_tokens_ += count;
    while (stripes_.size() * 64 < num_tokens_) {
      stripes_.emplace_back(geometry_.stripe_bytes(), uint8_t{0xFF});
      const size_t bytes = algorithm_.index_bytes(geometry_);
      index_.emplace_back((bytes + 63) / 64 * 8, ~uint64_t{0});
    }
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t e = 0; e < d; ++e) {
        Store(begin + i, e, keys[size_t{i} * d + e]);
      }
    }
    for (uint32_t stripe = begin / 64; stripe * 64 < num_tokens_; ++stripe) {
      const uint32_t first = stripe * 64;
      const IndexJob job{.keys = KeysOf(stripe),
                         .lane_begin = std::max(begin, first) - first,
                         .lane_end = std::min(num_tokens_ - first, 64U),
                         .index = reinterpret_cast<uint8_t*>(index_[stripe].data()),
                         .first_position = first,
                         .spec = spec_};
      ASSERT_EQ(algorithm_.BuildIndex(job, workspace_.kernels), kernels::kOk);
    }
  }

  // What the row at the last position attends to.
  [[nodiscard]] std::set<uint32_t> Choose(const SparseSettings& settings,
                                          uint32_t budget_tokens,
                                          const std::vector<float>& q,
                                          float scale) {
    return PositionsOf(Select(settings, budget_tokens, q, scale).tiles);
  }

  [[nodiscard]] Selection Select(const SparseSettings& settings,
                                 uint32_t budget_tokens,
                                 const std::vector<float>& q,
                                 float scale) {
    std::vector<uint8_t*> stripes;
    for (std::vector<uint8_t>& stripe : stripes_) {
      stripes.push_back(stripe.data());
    }
    const StoredKeys keys{.geometry = &geometry_, .stripes = stripes, .kv_offset = 0};
    std::vector<const uint8_t*> blobs;
    for (const std::vector<uint64_t>& blob : index_) {
      blobs.push_back(reinterpret_cast<const uint8_t*>(blob.data()));
    }
    Selection selection;
    algorithm_.Select({.position = num_tokens_ - 1,
                       .settings = &settings,
                       .budget_tokens = budget_tokens,
                       .q = q.data(),
                       .group = static_cast<uint32_t>(q.size() / geometry_.head_dim),
                       .head_dim = geometry_.head_dim,
                       .scale = scale,
                       .index = {.stripes = blobs, .offset = 0},
                       .spec = spec_,
                       .keys = settings.NeedsMass() ? &keys : nullptr},
                      workspace_,
                      &selection);
    const std::vector<TileLive>& tiles = selection.tiles;
    for (uint32_t i = 0; i < tiles.size(); ++i) {
      EXPECT_NE(tiles[i].live, 0U);
      EXPECT_TRUE(i == 0 || tiles[i - 1].tile < tiles[i].tile);
    }
    return selection;
  }

  // A key element as it is stored.
  [[nodiscard]] float Key(uint32_t position, uint32_t e) const {
    const uint8_t* const key = kernels::KeyOf(KeysOf(position / 64), position % 64);
    if (geometry_.type == DType::kF32) {
      float value;
      std::memcpy(&value, key + 4 * size_t{e}, sizeof(value));
      return value;
    }
    uint16_t half;
    std::memcpy(&half, key + 2 * size_t{e}, sizeof(half));
    return kernels::Bf16ToFloat(half);
  }

  [[nodiscard]] uint32_t num_tokens() const { return num_tokens_; }

  [[nodiscard]] const std::vector<std::vector<uint64_t>>& index() const { return index_; }

 private:
  [[nodiscard]] kernels::StripeKeys KeysOf(uint32_t stripe) const {
    return {.k = stripes_[stripe].data(),
            .page_tokens = geometry_.page_tokens(),
            .page_bytes = geometry_.page_bytes(),
            .head_dim = geometry_.head_dim,
            .type = geometry_.type};
  }

  void Store(uint32_t position, uint32_t e, float value) {
    uint8_t* const key =
        stripes_[position / 64].data() +
        (kernels::KeyOf(KeysOf(position / 64), position % 64) - stripes_[position / 64].data());
    if (geometry_.type == DType::kF32) {
      std::memcpy(key + 4 * size_t{e}, &value, sizeof(value));
    } else {
      const uint16_t half = kernels::FloatToBf16(value);
      std::memcpy(key + 2 * size_t{e}, &half, sizeof(half));
    }
  }

  const SparseAlgorithm& algorithm_;
  SelectWorkspace workspace_;
  const kv::KvGeometry geometry_;
  const tensor::AttentionSpec* const spec_;
  platform::AlignedBuffer scratch_;
  kernels::Exec exec_{scratch_.data(), kernels::kScratchBytes, 0, nullptr};
  uint32_t num_tokens_ = 0;
  std::vector<std::vector<uint8_t>> stripes_;
  std::vector<std::vector<uint64_t>> index_;
};

}  // namespace spindle::sparse
