// Split of the QKV product, head norm, rotation and append. Loops over a head are plain: the
// compiler vectorises them for each instruction set, and elements are independent.
#include "kernels/codes.h"
#include "kernels/cpu/attention_simd.h"
#include "kernels/functions.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {
namespace {

constexpr uint32_t kMaxRopeHeadDim = 256;

// 1 / sqrt(mean(x²) + eps): 16 partial sums, then the tree of ReduceAdd, then the odd elements.
float InverseRms(const float* x, uint32_t d, float eps) {
  F32x16 squares = Zero();
  uint32_t i = 0;
  for (; i + kLanes <= d; i += kLanes) {
    const F32x16 value = Load(x + i);
    squares = MulAdd(value, value, squares);
  }
  float sum = ReduceAdd(squares);
  for (; i < d; ++i) {
    sum += x[i] * x[i];
  }
  return 1.0F / __builtin_sqrtf(sum / static_cast<float>(d) + eps);
}

// Norm (without weight: none) and rotation of one head; `out` may be `in`.
void RotateHead(
    const RopeAppendArgs& args, const float* in, const float* weight, size_t table, float* out) {
  float x[kMaxRopeHeadDim];
  const uint32_t d = args.head_dim;
  if (weight != nullptr) {
    const float scale = InverseRms(in, d, args.norm_eps);
    for (uint32_t i = 0; i < d; ++i) {
      x[i] = in[i] * scale * weight[i];
    }
  } else {
    __builtin_memcpy(x, in, d * sizeof(float));
  }
  const uint32_t half = args.rope_dim / 2;
  const float* const cosines = args.rope_cos + table;
  const float* const sines = args.rope_sin + table;
  float rotated[kMaxRopeHeadDim];
  if (args.pairing == RopePairing::kHalfSplit) {
    for (uint32_t i = 0; i < half; ++i) {
      rotated[i] = x[i] * cosines[i] - x[i + half] * sines[i];
      rotated[i + half] = x[i] * sines[i] + x[i + half] * cosines[i];
    }
  } else {
    for (uint32_t i = 0; i < half; ++i) {
      rotated[2 * i] = x[2 * i] * cosines[i] - x[2 * i + 1] * sines[i];
      rotated[2 * i + 1] = x[2 * i] * sines[i] + x[2 * i + 1] * cosines[i];
    }
  }
  __builtin_memcpy(out, rotated, args.rope_dim * sizeof(float));
  __builtin_memcpy(out + args.rope_dim, x + args.rope_dim, (d - args.rope_dim) * sizeof(float));
}

void StoreHead(DType type, const float* head, uint32_t d, uint8_t* out) {
  if (type == DType::kF32) {
    __builtin_memcpy(out, head, d * sizeof(float));
    return;
  }
  uint32_t i = 0;
  for (; i + kLanes <= d; i += kLanes) {
    StoreBf16(out + 2 * size_t{i}, Load(head + i));
  }
  for (; i < d; ++i) {
    const uint16_t bits = FloatToBf16(head[i]);
    __builtin_memcpy(out + 2 * size_t{i}, &bits, sizeof(bits));
  }
}

void RunRow(const RopeAppendArgs& args, uint32_t row) {
  const size_t d = args.head_dim;
  const size_t table = static_cast<size_t>(args.positions[row]) * (args.rope_dim / 2);
  for (uint32_t h = 0; h < args.num_q_heads; ++h) {
    RotateHead(args,
               args.q + row * args.q_stride + h * d,
               args.q_norm,
               table,
               args.q_out + row * args.q_out_stride + h * d);
  }
  const KvSlot& slot = args.slots[row];
  for (uint32_t h = 0; h < args.num_kv_heads; ++h) {
    const size_t offset = h * args.head_stride_bytes;
    if (slot.k != nullptr) {
      float key[kMaxRopeHeadDim];
      RotateHead(args, args.k + row * args.k_stride + h * d, args.k_norm, table, key);
      StoreHead(args.kv_type, key, args.head_dim, slot.k + offset);
    }
    if (slot.v != nullptr) {
      StoreHead(args.kv_type, args.v + row * args.v_stride + h * d, args.head_dim, slot.v + offset);
    }
  }
}

}  // namespace

int RopeAppend(const RopeAppendArgs& args, WorkRange rows, Exec* /*exec*/) {
  const bool type_ok = args.kv_type == DType::kBF16 || args.kv_type == DType::kF32;
  if (!type_ok || args.head_dim > kMaxRopeHeadDim || args.rope_dim > args.head_dim ||
      args.rope_dim % 2 != 0) {
    return kInvalidArgument;
  }
  for (uint32_t row = rows.begin; row < rows.end; ++row) {
    RunRow(args, row);
  }
  return kOk;
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
