// Index stage by plain loops, the oracle of the tests.
#include "kernels/api/index.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/api/exec.h"
#include "kernels/codes.h"
#include "kernels/functions.h"

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

// The first bf16 that is at least (at most) `value`, searched upwards from the truncated one.
uint16_t Bound(float value, bool is_upper) {
  if (std::isnan(value)) {
    return FloatToBf16(value);
  }
  const uint16_t truncated = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  const float towards_zero = Bf16ToFloat(truncated);
  const bool holds = is_upper ? towards_zero >= value : towards_zero <= value;
  return holds ? truncated : static_cast<uint16_t>(truncated + 1);  // one step away from zero
}

}  // namespace

int KeyBounds(const KeyBoundsArgs& args) {
  const StripeKeys& keys = args.keys;
  if (args.num_lanes == 0 || keys.head_dim % 16 != 0 ||
      (keys.type != DType::kF32 && keys.type != DType::kBF16)) {
    return kInvalidArgument;
  }
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
    args.out[d] = Bound(is_finite ? max : std::nanf(""), true);
    args.out[keys.head_dim + d] = Bound(is_finite ? min : std::nanf(""), false);
  }
  return kOk;
}

}  // namespace spindle::kernels::reference
