// Vectors of an index by plain loops: what the tests compare stored vectors with. Thread-safety:
// pure functions.
#pragma once

#include <span>
#include <vector>

#include "kernels/api/index_vectors.h"

namespace spindle::kernels::reference {

// Which stored neighbour stands for a value between two: bounds are rounded away from the keys.
enum class Rounding : uint8_t { kNearest, kUp, kDown };

// The elements of vector `idx`.
[[nodiscard]] std::vector<double> ReadVector(const VectorBlock& block,
                                             const uint8_t* data,
                                             uint32_t idx);

// values, roundings: [dim].
void WriteVector(const VectorOut& out,
                 std::span<const float> values,
                 std::span<const Rounding> roundings);

}  // namespace spindle::kernels::reference
