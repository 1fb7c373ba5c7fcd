// Index stage: reads keys where attention has just written them.
#include "kernels/api/index.h"

#include "kernels/api/exec.h"
#include "kernels/cpu/attention_simd.h"
#include "kernels/functions.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {
namespace {

// The bf16 nearest to a float from above (direction 1) or below (-1); NaN stays NaN.
SPINDLE_INLINE uint16_t RoundAway(float value, float direction) {
  uint16_t half = FloatToBf16(value);
  const float rounded = Bf16ToFloat(half);
  if (rounded * direction < value * direction) {
    // One step away from zero or towards it, whichever is the wanted direction.
    const bool grows = (value > 0) == (direction > 0);
    half = static_cast<uint16_t>(grows ? half + 1 : half - 1);
  }
  return half;
}

SPINDLE_INLINE F32x16 LoadKey(const StripeKeys& keys, const uint8_t* key, uint32_t d) {
  return keys.type == DType::kF32 ? Load(reinterpret_cast<const float*>(key) + d)
                                  : LoadBf16(key + 2 * size_t{d});
}

}  // namespace

int KeyBounds(const KeyBoundsArgs& args) {
  const StripeKeys& keys = args.keys;
  if (args.num_lanes == 0 || keys.head_dim % kLanes != 0 ||
      (keys.type != DType::kF32 && keys.type != DType::kBF16)) {
    return kInvalidArgument;
  }
  for (uint32_t d = 0; d < keys.head_dim; d += kLanes) {
    F32x16 max = LoadKey(keys, KeyOf(keys, args.first_lane), d);
    F32x16 min = max;
    F32x16 poison = Sub(max, max);  // NaN where a key is no finite number
    for (uint32_t lane = args.first_lane + 1; lane < args.first_lane + args.num_lanes; ++lane) {
      const F32x16 x = LoadKey(keys, KeyOf(keys, lane), d);
      max = Max(x, max);
      min = Min(x, min);
      poison = Add(poison, Sub(x, x));
    }
    float highest[kLanes];
    float lowest[kLanes];
    Store(highest, Add(max, poison));
    Store(lowest, Add(min, poison));
    for (uint32_t i = 0; i < kLanes; ++i) {
      args.out[d + i] = RoundAway(highest[i], 1.0F);
      args.out[keys.head_dim + d + i] = RoundAway(lowest[i], -1.0F);
    }
  }
  return kOk;
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
