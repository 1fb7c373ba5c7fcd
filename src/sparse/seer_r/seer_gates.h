// The weights of SeerAttention-R's gates for one model, in the model's own order of channels.
// Thread-safety: value type.
#pragma once

#include <cstdint>
#include <vector>

#include "base/hash.h"

namespace spindle::sparse {

struct SeerGates {
  struct Layer {
    std::vector<uint16_t> q;    // [KV heads][group · head_dim][width] bf16
    std::vector<uint16_t> k;    // [KV heads][3 · head_dim: max, min, mean][width] bf16
    std::vector<float> q_norm;  // [width] of the RMS norm; empty: none
    std::vector<float> k_norm;
  };

  uint32_t num_kv_heads = 0;
  uint32_t group = 0;  // query heads of a KV head
  uint32_t head_dim = 0;
  uint32_t width = 0;      // multiple of 16
  float rope_base = 0.0F;  // of the rotation of gate vectors; 0: none
  std::vector<Layer> layers;
  Digest digest{};  // of the file: whatever decides choices

  [[nodiscard]] uint64_t bytes() const {
    const uint64_t inputs = uint64_t{num_kv_heads} * (group + 3) * head_dim;
    return layers.size() * inputs * width * sizeof(uint16_t);
  }

  [[nodiscard]] const uint16_t* QueryWeights(uint32_t layer, uint32_t head) const {
    return layers[layer].q.data() + size_t{head} * group * head_dim * width;
  }

  [[nodiscard]] const uint16_t* KeyWeights(uint32_t layer, uint32_t head) const {
    return layers[layer].k.data() + size_t{head} * 3 * head_dim * width;
  }
};

}  // namespace spindle::sparse
