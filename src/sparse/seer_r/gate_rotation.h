// Norm and rotation of gate vectors: pairs (i, i + width / 2), plain frequencies over the width.
// Thread-safety: immutable after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace spindle::sparse {

class GateRotation {
 public:
  // `base` 0: no rotation. Memory: 8 bytes per pair for every 64 positions.
  GateRotation(float base, uint32_t width, uint32_t max_positions);

  // REQUIRES: vector.size() = width; position < max_positions.
  void Apply(uint32_t position, std::span<float> vector) const;

 private:
  // e^(i · angle) per pair.
  struct Table {
    std::vector<float> cos;
    std::vector<float> sin;
  };

  uint32_t num_pairs_;  // 0: no rotation
  Table stripes_;       // of every 64th position: [⌈max_positions / 64⌉][pairs]
  Table lanes_;         // of 0 … 63
};

// x · weight / sqrt(mean(x²) + 1e-6). Empty weight: nothing.
void NormGateVector(std::span<const float> weight, std::span<float> vector);

}  // namespace spindle::sparse
