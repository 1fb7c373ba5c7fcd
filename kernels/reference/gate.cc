// Learned gates by plain loops in double, the oracle of the tests.
#include "kernels/api/gate.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/api/attention.h"
#include "kernels/api/exec.h"
#include "kernels/codes.h"
#include "kernels/functions.h"

namespace spindle::kernels::reference {
namespace {

bool IsValid(const HeadRotation& rotation, uint32_t head_dim) {
  return head_dim % 16 == 0 && head_dim <= kMaxHeadDim && rotation.rope_dim <= head_dim &&
         rotation.rope_dim % 2 == 0;
}

// The head at position `row` of the tables before its rotation.
std::vector<double> Unrotated(const HeadRotation& rotation,
                              uint32_t row,
                              const std::vector<double>& head) {
  const uint32_t half = rotation.rope_dim / 2;
  const double square = double{rotation.attention_factor} * double{rotation.attention_factor};
  std::vector<double> out = head;
  for (uint32_t i = 0; i < half; ++i) {
    const bool is_split = rotation.pairing == RopePairing::kHalfSplit;
    const uint32_t a = is_split ? i : 2 * i;
    const uint32_t b = is_split ? i + half : 2 * i + 1;
    const double cosine = double{rotation.cos[row * size_t{half} + i]};
    const double sine = double{rotation.sin[row * size_t{half} + i]};
    out[a] = (head[a] * cosine + head[b] * sine) / square;
    out[b] = (head[b] * cosine - head[a] * sine) / square;
  }
  return out;
}

std::vector<double> KeyOfLane(const StripeKeys& keys, uint32_t lane) {
  const uint8_t* const key = KeyOf(keys, lane);
  std::vector<double> values(keys.head_dim);
  for (uint32_t d = 0; d < keys.head_dim; ++d) {
    if (keys.type == DType::kF32) {
      float value;
      std::memcpy(&value, key + d * sizeof(value), sizeof(value));
      values[d] = double{value};
    } else {
      uint16_t half;
      std::memcpy(&half, key + d * sizeof(half), sizeof(half));
      values[d] = double{Bf16ToFloat(half)};
    }
  }
  return values;
}

}  // namespace

int PoolKeys(const PoolKeysArgs& args) {
  const StripeKeys& keys = args.keys;
  if (args.num_lanes == 0 || !IsValid(args.rotation, keys.head_dim) ||
      (keys.type != DType::kF32 && keys.type != DType::kBF16)) {
    return kInvalidArgument;
  }
  const uint32_t d = keys.head_dim;
  std::vector<double> max = Unrotated(args.rotation, 0, KeyOfLane(keys, 0));
  std::vector<double> min = max;
  std::vector<double> sum = max;
  for (uint32_t lane = 1; lane < args.num_lanes; ++lane) {
    const std::vector<double> key = Unrotated(args.rotation, lane, KeyOfLane(keys, lane));
    for (uint32_t i = 0; i < d; ++i) {
      max[i] = std::max(max[i], key[i]);
      min[i] = std::min(min[i], key[i]);
      sum[i] += key[i];
    }
  }
  for (uint32_t i = 0; i < d; ++i) {
    args.out[i] = static_cast<float>(max[i]);
    args.out[d + i] = static_cast<float>(min[i]);
    args.out[2 * size_t{d} + i] = static_cast<float>(sum[i] / args.num_lanes);
  }
  return kOk;
}

int Unrotate(const UnrotateArgs& args) {
  if (!IsValid(args.rotation, args.head_dim)) {
    return kInvalidArgument;
  }
  for (uint32_t head = 0; head < args.num_heads; ++head) {
    const float* const in = args.heads + head * size_t{args.head_dim};
    const std::vector<double> out =
        Unrotated(args.rotation, 0, std::vector<double>(in, in + args.head_dim));
    for (uint32_t d = 0; d < args.head_dim; ++d) {
      args.out[head * size_t{args.head_dim} + d] = static_cast<float>(out[d]);
    }
  }
  return kOk;
}

int Project(const ProjectArgs& args) {
  if (args.num_outputs % 16 != 0) {
    return kInvalidArgument;
  }
  for (uint32_t j = 0; j < args.num_outputs; ++j) {
    double sum = 0;
    for (uint32_t i = 0; i < args.num_inputs; ++i) {
      sum +=
          double{args.x[i]} * double{Bf16ToFloat(args.weights[i * size_t{args.num_outputs} + j])};
    }
    args.out[j] = static_cast<float>(sum);
  }
  return kOk;
}

}  // namespace spindle::kernels::reference
