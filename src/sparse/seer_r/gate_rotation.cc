#include "sparse/seer_r/gate_rotation.h"

#include <cmath>

#include "base/prefix_key.h"

namespace spindle::sparse {
namespace {

constexpr uint32_t kLanesPerStripe = kStripeTokens;
constexpr float kNormEps = 1e-6F;

}  // namespace

GateRotation::GateRotation(float base, uint32_t width, uint32_t max_positions)
    : num_pairs_(base > 0 ? width / 2 : 0) {
  const auto append = [&](Table& table, uint32_t position) {
    for (uint32_t i = 0; i < num_pairs_; ++i) {
      const double angle = position * std::pow(double{base}, -static_cast<double>(i) / num_pairs_);
      table.cos.push_back(static_cast<float>(std::cos(angle)));
      table.sin.push_back(static_cast<float>(std::sin(angle)));
    }
  };
  for (uint32_t position = 0; position < max_positions; position += kLanesPerStripe) {
    append(stripes_, position);
  }
  for (uint32_t lane = 0; lane < kLanesPerStripe; ++lane) {
    append(lanes_, lane);
  }
}

void GateRotation::Apply(uint32_t position, std::span<float> vector) const {
  const size_t stripe = size_t{position / kLanesPerStripe} * num_pairs_;
  const size_t lane = size_t{position % kLanesPerStripe} * num_pairs_;
  for (uint32_t i = 0; i < num_pairs_; ++i) {
    const float a = stripes_.cos[stripe + i];
    const float b = stripes_.sin[stripe + i];
    const float cosine = a * lanes_.cos[lane + i] - b * lanes_.sin[lane + i];
    const float sine = a * lanes_.sin[lane + i] + b * lanes_.cos[lane + i];
    const float x = vector[i];
    const float y = vector[i + num_pairs_];
    vector[i] = x * cosine - y * sine;
    vector[i + num_pairs_] = x * sine + y * cosine;
  }
}

void NormGateVector(std::span<const float> weight, std::span<float> vector) {
  if (weight.empty()) {
    return;
  }
  float squares = 0;
  for (const float x : vector) {
    squares += x * x;
  }
  const float scale = 1.0F / std::sqrt(squares / static_cast<float>(vector.size()) + kNormEps);
  for (size_t i = 0; i < vector.size(); ++i) {
    vector[i] *= scale * weight[i];
  }
}

}  // namespace spindle::sparse
