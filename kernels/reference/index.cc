// Index stage by plain loops, the oracle of the tests.
#include "kernels/api/index.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/api/attention.h"
#include "kernels/api/exec.h"
#include "kernels/codes.h"
#include "kernels/functions.h"
#include "kernels/reference/index_vectors.h"

namespace spindle::kernels::reference {
namespace {

float KeyElement(const StripeKeys& keys, uint32_t lane, uint32_t d) {
  const uint8_t* const key = KeyOf(keys, lane);
  if (keys.type == DType::kF32) {
    float value;
    std::memcpy(&value, key + d * sizeof(float), sizeof(value));
    return value;
  }
  uint16_t half;
  std::memcpy(&half, key + d * sizeof(half), sizeof(half));
  return Bf16ToFloat(half);
}

}  // namespace

int KeyBounds(const KeyBoundsArgs& args) {
  const StripeKeys& keys = args.keys;
  if (args.num_lanes == 0 || !IsReadable(args.out.block) ||
      args.out.block.dim != 2 * keys.head_dim ||
      (keys.type != DType::kF32 && keys.type != DType::kBF16)) {
    return kInvalidArgument;
  }
  std::vector<float> bounds(args.out.block.dim);
  std::vector<Rounding> roundings(keys.head_dim, Rounding::kUp);
  roundings.resize(bounds.size(), Rounding::kDown);
  for (uint32_t d = 0; d < keys.head_dim; ++d) {
    float max = KeyElement(keys, args.first_lane, d);
    float min = max;
    bool is_finite = std::isfinite(max);
    for (uint32_t lane = args.first_lane + 1; lane < args.first_lane + args.num_lanes; ++lane) {
      const float x = KeyElement(keys, lane, d);
      is_finite = is_finite && std::isfinite(x);
      max = std::max(max, x);
      min = std::min(min, x);
    }
    bounds[d] = is_finite ? max : std::nanf("");
    bounds[keys.head_dim + d] = is_finite ? min : std::nanf("");
  }
  WriteVector(args.out, bounds, roundings);
  return kOk;
}

int KeyMean(const KeyMeanArgs& args) {
  const StripeKeys& keys = args.keys;
  if (args.num_lanes == 0 || !IsReadable(args.mean.block) || args.mean.block.dim != keys.head_dim ||
      keys.head_dim > kMaxHeadDim || (keys.type != DType::kF32 && keys.type != DType::kBF16)) {
    return kInvalidArgument;
  }
  std::vector<double> mean(keys.head_dim, 0.0);
  std::vector<float> rounded(keys.head_dim);
  double mean_square = 0;
  for (uint32_t d = 0; d < keys.head_dim; ++d) {
    for (uint32_t i = 0; i < args.num_lanes; ++i) {
      mean[d] += double{KeyElement(keys, args.first_lane + i, d)} / args.num_lanes;
    }
    rounded[d] = static_cast<float>(mean[d]);
    mean_square += mean[d] * mean[d];
  }
  WriteVector(args.mean, rounded, std::vector(keys.head_dim, Rounding::kNearest));
  double least = 1;
  for (uint32_t i = 0; i < args.num_lanes; ++i) {
    double dot = 0;
    double square = 0;
    for (uint32_t d = 0; d < keys.head_dim; ++d) {
      const double x = double{KeyElement(keys, args.first_lane + i, d)};
      dot += x * mean[d];
      square += x * x;
    }
    const double lengths = std::sqrt(mean_square) * std::sqrt(square);
    const double cosine = lengths == 0 ? 0 : dot / lengths;
    least = std::isnan(cosine) || std::isnan(least) ? std::nan("") : std::min(least, cosine);
  }
  *args.least_cosine = static_cast<float>(least);
  return kOk;
}

}  // namespace spindle::kernels::reference
