// Rotation and append in plain loops and double precision, the oracle of the tests.
#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels/codes.h"
#include "kernels/functions.h"

namespace spindle::kernels::reference {
namespace {

constexpr uint32_t kMaxRopeHeadDim = 256;

void Store(DType type, const double* head, uint32_t d, uint8_t* out) {
  for (uint32_t i = 0; i < d; ++i) {
    const float value = static_cast<float>(head[i]);
    if (type == DType::kF32) {
      std::memcpy(out + 4 * size_t{i}, &value, sizeof(value));
    } else {
      const uint16_t bits = FloatToBf16(value);
      std::memcpy(out + 2 * size_t{i}, &bits, sizeof(bits));
    }
  }
}

// Norm (weight may be null) and rotation of one head.
void Rotate(const RopeAppendArgs& args,
            const float* in,
            const float* weight,
            int32_t position,
            double* out) {
  double scale = 1.0;
  if (weight != nullptr) {
    double sum = 0;
    for (uint32_t i = 0; i < args.head_dim; ++i) {
      sum += double{in[i]} * double{in[i]};
    }
    scale = 1.0 / std::sqrt(sum / args.head_dim + double{args.norm_eps});
  }
  for (uint32_t i = 0; i < args.head_dim; ++i) {
    out[i] = weight == nullptr ? double{in[i]} : double{in[i]} * scale * double{weight[i]};
  }
  const uint32_t half = args.rope_dim / 2;
  const size_t table = static_cast<size_t>(position) * half;
  for (uint32_t i = 0; i < half; ++i) {
    const bool split = args.pairing == RopePairing::kHalfSplit;
    double& a = out[split ? i : 2 * i];
    double& b = out[split ? i + half : 2 * i + 1];
    const double c = args.rope_cos[table + i];
    const double s = args.rope_sin[table + i];
    const double rotated = a * c - b * s;
    b = a * s + b * c;
    a = rotated;
  }
}

void RunRow(const RopeAppendArgs& args, uint32_t row) {
  double head[kMaxRopeHeadDim];
  const uint32_t d = args.head_dim;
  const int32_t position = args.positions[row];
  for (uint32_t h = 0; h < args.num_q_heads; ++h) {
    Rotate(args, args.q + row * args.q_stride + size_t{h} * d, args.q_norm, position, head);
    float* const out = args.q_out + row * args.q_out_stride + size_t{h} * d;
    for (uint32_t i = 0; i < d; ++i) {
      out[i] = static_cast<float>(head[i]);
    }
  }
  const KvSlot& slot = args.slots[row];
  for (uint32_t h = 0; h < args.num_kv_heads; ++h) {
    const size_t offset = h * args.head_stride_bytes;
    if (slot.k != nullptr) {
      Rotate(args, args.k + row * args.k_stride + size_t{h} * d, args.k_norm, position, head);
      Store(args.kv_type, head, d, slot.k + offset);
    }
    if (slot.v != nullptr) {
      const float* const v = args.v + row * args.v_stride + size_t{h} * d;
      for (uint32_t i = 0; i < d; ++i) {
        head[i] = v[i];
      }
      Store(args.kv_type, head, d, slot.v + offset);
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

}  // namespace spindle::kernels::reference
