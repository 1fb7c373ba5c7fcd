// Learned gates. The rotation's loops are plain: the compiler vectorises them for each instruction
// set, and elements are independent.
#include "kernels/api/gate.h"

#include "kernels/api/attention.h"
#include "kernels/api/exec.h"
#include "kernels/cpu/attention_simd.h"
#include "kernels/functions.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {
namespace {

constexpr uint32_t kOutputBlock = 4;  // vectors of sums that stay in registers

bool IsValid(const HeadRotation& rotation, uint32_t head_dim) {
  return head_dim % kLanes == 0 && head_dim <= kMaxHeadDim && rotation.rope_dim <= head_dim &&
         rotation.rope_dim % 2 == 0;
}

// Rᵀ y / factor² of the head at position `row` of the tables.
void UndoRotation(
    const HeadRotation& rotation, uint32_t row, const float* in, uint32_t head_dim, float* out) {
  const uint32_t half = rotation.rope_dim / 2;
  const float* const cosines = rotation.cos + row * size_t{half};
  const float* const sines = rotation.sin + row * size_t{half};
  const float share = 1.0F / (rotation.attention_factor * rotation.attention_factor);
  if (rotation.pairing == RopePairing::kHalfSplit) {
    for (uint32_t i = 0; i < half; ++i) {
      out[i] = (in[i] * cosines[i] + in[i + half] * sines[i]) * share;
    }
    for (uint32_t i = 0; i < half; ++i) {
      out[i + half] = (in[i + half] * cosines[i] - in[i] * sines[i]) * share;
    }
  } else {
    for (uint32_t i = 0; i < half; ++i) {
      out[2 * i] = (in[2 * i] * cosines[i] + in[2 * i + 1] * sines[i]) * share;
      out[2 * i + 1] = (in[2 * i + 1] * cosines[i] - in[2 * i] * sines[i]) * share;
    }
  }
  for (uint32_t i = rotation.rope_dim; i < head_dim; ++i) {
    out[i] = in[i];
  }
}

void LoadFloats(const StripeKeys& keys, uint32_t lane, float* out) {
  const uint8_t* const key = KeyOf(keys, lane);
  for (uint32_t d = 0; d < keys.head_dim; d += kLanes) {
    Store(out + d, LoadElements(keys.type, key, d));
  }
}

// Sums of outputs [first, first + 16 · kVectors).
template <uint32_t kVectors>
SPINDLE_INLINE void ProjectBlock(const ProjectArgs& args, uint32_t first) {
  F32x16 sums[kVectors];
  SPINDLE_UNROLL
  for (uint32_t v = 0; v < kVectors; ++v) {
    sums[v] = Zero();
  }
  for (uint32_t i = 0; i < args.num_inputs; ++i) {
    const F32x16 x = Splat(args.x[i]);
    const auto* const row =
        reinterpret_cast<const uint8_t*>(args.weights + i * size_t{args.num_outputs} + first);
    SPINDLE_UNROLL
    for (uint32_t v = 0; v < kVectors; ++v) {
      sums[v] = MulAdd(x, LoadBf16(row + 2 * size_t{v} * kLanes), sums[v]);
    }
  }
  SPINDLE_UNROLL
  for (uint32_t v = 0; v < kVectors; ++v) {
    Store(args.out + first + v * kLanes, sums[v]);
  }
}

}  // namespace

int PoolKeys(const PoolKeysArgs& args) {
  const StripeKeys& keys = args.keys;
  if (args.num_lanes == 0 || !IsValid(args.rotation, keys.head_dim) ||
      (keys.type != DType::kF32 && keys.type != DType::kBF16)) {
    return kInvalidArgument;
  }
  const uint32_t d = keys.head_dim;
  float rotated[kMaxHeadDim];
  float key[kMaxHeadDim];
  for (uint32_t lane = 0; lane < args.num_lanes; ++lane) {
    LoadFloats(keys, lane, rotated);
    float* const to = lane == 0 ? args.out : key;
    UndoRotation(args.rotation, lane, rotated, d, to);
    if (lane == 0) {
      __builtin_memcpy(args.out + d, args.out, d * sizeof(float));
      __builtin_memcpy(args.out + 2 * size_t{d}, args.out, d * sizeof(float));
      continue;
    }
    for (uint32_t i = 0; i < d; i += kLanes) {
      const F32x16 x = Load(key + i);
      float* const mean = args.out + 2 * size_t{d} + i;
      Store(args.out + i, Max(x, Load(args.out + i)));
      Store(args.out + d + i, Min(x, Load(args.out + d + i)));
      Store(mean, Add(Load(mean), x));
    }
  }
  const F32x16 share = Splat(1.0F / static_cast<float>(args.num_lanes));
  for (uint32_t i = 2 * d; i < 3 * d; i += kLanes) {
    Store(args.out + i, Mul(Load(args.out + i), share));
  }
  return kOk;
}

int Unrotate(const UnrotateArgs& args) {
  if (!IsValid(args.rotation, args.head_dim)) {
    return kInvalidArgument;
  }
  for (uint32_t head = 0; head < args.num_heads; ++head) {
    const size_t at = head * size_t{args.head_dim};
    UndoRotation(args.rotation, 0, args.heads + at, args.head_dim, args.out + at);
  }
  return kOk;
}

int Project(const ProjectArgs& args) {
  if (args.num_outputs % kLanes != 0) {
    return kInvalidArgument;
  }
  uint32_t first = 0;
  for (; first + kOutputBlock * kLanes <= args.num_outputs; first += kOutputBlock * kLanes) {
    ProjectBlock<kOutputBlock>(args, first);
  }
  for (; first < args.num_outputs; first += kLanes) {
    ProjectBlock<1>(args, first);
  }
  return kOk;
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
