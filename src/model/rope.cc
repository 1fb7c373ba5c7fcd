#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "base/status_macros.h"

namespace spindle::model {
namespace {

constexpr float kTwoPi = 2.0F * std::numbers::pi_v<float>;

float Llama3Frequency(const RopeConfig& rope, float frequency) {
  const auto context = static_cast<float>(rope.original_context);
  const float wavelength = kTwoPi / frequency;
  if (wavelength < context / rope.high_freq_factor) {
    return frequency;
  }
  if (wavelength > context / rope.low_freq_factor) {
    return frequency / rope.factor;
  }
  const float smooth = (context / wavelength - rope.low_freq_factor) /
                       (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0F - smooth) * frequency / rope.factor + smooth * frequency;
}

// Pair index whose wave turns `rotations` times in the original context.
double YarnPair(const RopeConfig& rope, double rotations) {
  return rope.dim * std::log(rope.original_context / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(static_cast<double>(rope.base)));
}

// Pairs below `low` keep their frequency, those above `high` are interpolated, with a ramp in
// between.
float YarnFrequency(const RopeConfig& rope, uint32_t pair, float frequency) {
  const double low = std::max(std::floor(YarnPair(rope, rope.beta_fast)), 0.0);
  const double high = std::min(std::ceil(YarnPair(rope, rope.beta_slow)), rope.dim - 1.0);
  const auto ramp =
      static_cast<float>(std::clamp((pair - low) / std::max(high - low, 0.001), 0.0, 1.0));
  return frequency / rope.factor * ramp + frequency * (1.0F - ramp);
}

}  // namespace

std::vector<float> InverseFrequencies(const RopeConfig& rope) {
  std::vector<float> frequencies(rope.dim / 2);
  for (uint32_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope.dim);
    float frequency = 1.0F / std::pow(rope.base, exponent);
    if (!rope.frequency_factors.empty()) {
      frequency /= rope.frequency_factors[i];
    }
    switch (rope.scaling) {
      case RopeScaling::kNone:
        break;
      case RopeScaling::kLinear:
        frequency /= rope.factor;
        break;
      case RopeScaling::kLlama3:
        frequency = Llama3Frequency(rope, frequency);
        break;
      case RopeScaling::kYarn:
        frequency = YarnFrequency(rope, i, frequency);
        break;
    }
    frequencies[i] = frequency;
  }
  return frequencies;
}

float AttentionFactor(const RopeConfig& rope) {
  if (rope.scaling != RopeScaling::kYarn) {
    return 1.0F;
  }
  if (rope.attention_factor != 0.0F) {
    return rope.attention_factor;
  }
  return rope.factor <= 1.0F ? 1.0F : 0.1F * std::log(rope.factor) + 1.0F;
}

absl::StatusOr<tensor::RopeTable> BuildRopeTable(const RopeConfig& rope,
                                                 uint32_t max_positions,
                                                 platform::ComputePool& pool) {
  const std::vector<float> frequencies = InverseFrequencies(rope);
  const size_t pairs = frequencies.size();
  const uint64_t bytes = uint64_t{2} * sizeof(float) * max_positions * pairs;
  if (bytes > platform::AvailableMemoryBytes()) {
    return absl::ResourceExhaustedError("the rotation table of " + std::to_string(max_positions) +
                                        " positions needs " + std::to_string(bytes) +
                                        " bytes: lower --max-model-len");
  }
  tensor::RopeTable table;
  table.max_positions = max_positions;
  table.rope_dim = rope.dim;
  table.attention_factor = AttentionFactor(rope);
  table.cos.resize(max_positions * pairs);
  table.sin.resize(max_positions * pairs);
  constexpr uint32_t kPositionsPerPiece = 256;
  SPINDLE_RETURN_IF_ERROR(pool.Run(
      max_positions, kPositionsPerPiece, [&](kernels::WorkRange range, kernels::Exec*) -> int {
        for (size_t position = range.begin; position < range.end; ++position) {
          for (size_t i = 0; i < pairs; ++i) {
            const double angle = static_cast<float>(position) * frequencies[i];
            const double factor = table.attention_factor;
            table.cos[position * pairs + i] = static_cast<float>(std::cos(angle) * factor);
            table.sin[position * pairs + i] = static_cast<float>(std::sin(angle) * factor);
          }
        }
        return kernels::kOk;
      }));
  return table;
}

}  // namespace spindle::model
