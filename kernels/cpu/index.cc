// Index stage: reads keys where attention has just written them.
#include "kernels/api/index.h"

#include "kernels/api/attention.h"
#include "kernels/api/exec.h"
#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/index_vectors.h"
#include "kernels/functions.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

int KeyBounds(const KeyBoundsArgs& args) {
  const StripeKeys& keys = args.keys;
  if (args.num_lanes == 0 || !IsReadable(args.out.block) ||
      args.out.block.dim != 2 * keys.head_dim ||
      (keys.type != DType::kF32 && keys.type != DType::kBF16)) {
    return kInvalidArgument;
  }
  float bounds[kMaxIndexDim];
  for (uint32_t d = 0; d < keys.head_dim; d += kLanes) {
    F32x16 max = LoadElements(keys.type, KeyOf(keys, args.first_lane), d);
    F32x16 min = max;
    F32x16 poison = Sub(max, max);  // NaN where a key is no finite number
    for (uint32_t lane = args.first_lane + 1; lane < args.first_lane + args.num_lanes; ++lane) {
      const F32x16 x = LoadElements(keys.type, KeyOf(keys, lane), d);
      max = Max(x, max);
      min = Min(x, min);
      poison = Add(poison, Sub(x, x));
    }
    Store(bounds + d, Add(max, poison));
    Store(bounds + keys.head_dim + d, Add(min, poison));
  }
  WriteBounds(args.out, bounds);
  return kOk;
}

int KeyMean(const KeyMeanArgs& args) {
  const StripeKeys& keys = args.keys;
  if (args.num_lanes == 0 || !IsReadable(args.mean.block) || args.mean.block.dim != keys.head_dim ||
      keys.head_dim > kMaxHeadDim || (keys.type != DType::kF32 && keys.type != DType::kBF16)) {
    return kInvalidArgument;
  }
  float mean[kMaxHeadDim];
  const F32x16 share = Splat(1.0F / static_cast<float>(args.num_lanes));
  F32x16 squares = Zero();
  for (uint32_t d = 0; d < keys.head_dim; d += kLanes) {
    F32x16 sum = Zero();
    for (uint32_t i = 0; i < args.num_lanes; ++i) {
      sum = Add(sum, LoadElements(keys.type, KeyOf(keys, args.first_lane + i), d));
    }
    sum = Mul(sum, share);
    Store(mean + d, sum);
    squares = MulAdd(sum, sum, squares);
  }
  WriteVector(args.mean, mean);
  const float mean_square = ReduceAdd(squares);
  float least = 1.0F;
  for (uint32_t i = 0; i < args.num_lanes; ++i) {
    const uint8_t* const key = KeyOf(keys, args.first_lane + i);
    F32x16 dots = Zero();
    F32x16 key_squares = Zero();
    for (uint32_t d = 0; d < keys.head_dim; d += kLanes) {
      const F32x16 x = LoadElements(keys.type, key, d);
      dots = MulAdd(x, Load(mean + d), dots);
      key_squares = MulAdd(x, x, key_squares);
    }
    const float lengths = __builtin_sqrtf(mean_square) * __builtin_sqrtf(ReduceAdd(key_squares));
    const float cosine = lengths == 0 ? 0.0F : ReduceAdd(dots) / lengths;
    least = cosine >= least ? least : cosine;  // a NaN passes, and stays
  }
  *args.least_cosine = least;
  return kOk;
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
