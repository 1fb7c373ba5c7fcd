// An algorithm that chooses differently for every layer, head and step, as a function of the job.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "sparse/sparse_policy.h"

namespace spindle::sparse {

// About one page of 16 tokens in `one_in`, drawn per (position, layer, head) with neighbours in
// time mostly agreeing, and the row's own tile.
class DrawnPages final : public SparseAlgorithm {
 public:
  explicit DrawnPages(uint32_t one_in) : one_in_(one_in) {}

  [[nodiscard]] std::string_view name() const override { return "drawn"; }

  [[nodiscard]] uint32_t index_bytes(const kv::KvGeometry& /*geometry*/) const override {
    return 0;
  }

  void Select(const SelectJob& job, SelectWorkspace& /*workspace*/, Selection* out) const override {
    const uint32_t last = (job.num_tokens() - 1) / kStripeTokens;
    for (uint32_t tile = 0; tile <= last; ++tile) {
      uint64_t live = 0;
      for (uint32_t page = 0; page < 4; ++page) {
        const uint32_t epoch = (job.decode_step + page) / 8;
        uint64_t x = (uint64_t{tile} * 4 + page) * 0x9e3779b97f4a7c15U + epoch * 77 +
                     job.layer.value() * 1009U + job.head.value() * 31U;
        x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9U;
        if ((x >> 40) % one_in_ == 0) {
          live |= uint64_t{0xFFFF} << (16 * page);
        }
      }
      if (tile == last) {
        live = ~uint64_t{0} >> (63 - (job.num_tokens() - 1) % kStripeTokens);
      }
      if (live != 0) {
        out->tiles.push_back({tile, live});
      }
    }
  }

 private:
  const uint32_t one_in_;
};

inline SparsePolicy Drawn(uint32_t one_in) {
  return {std::make_shared<const DrawnPages>(one_in), {.min_context = 0}};
}

}  // namespace spindle::sparse
