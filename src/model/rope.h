// Rotation frequencies and the cos/sin table of a model.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "model/model_config.h"
#include "platform/compute_pool.h"
#include "tensor/attention_spec.h"

namespace spindle::model {

// [dim / 2] radians per token, scaling and frequency factors of the file included.
[[nodiscard]] std::vector<float> InverseFrequencies(const RopeConfig& rope);

// What cos and sin are multiplied by: 1 except for YaRN.
[[nodiscard]] float AttentionFactor(const RopeConfig& rope);

// angle = float(position) · frequency in fp32, as transformers computes it; cos and sin of it in
// double.
[[nodiscard]] absl::StatusOr<tensor::RopeTable> BuildRopeTable(const RopeConfig& rope,
                                                               uint32_t max_positions,
                                                               platform::ComputePool& pool);

}  // namespace spindle::model
