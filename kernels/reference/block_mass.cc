// The estimate of XAttention by plain loops in double, the oracle of the tests.
#include "kernels/api/block_mass.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/api/attention.h"
#include "kernels/api/exec.h"
#include "kernels/codes.h"
#include "kernels/functions.h"

namespace spindle::kernels::reference {
namespace {

double KeyElement(const BlockMassArgs& args, size_t position, uint32_t d) {
  StripeKeys keys = args.layout;
  keys.k = args.stripes[position / kTileTokens] + args.offset;
  const uint8_t* const key = KeyOf(keys, static_cast<uint32_t>(position % kTileTokens));
  if (keys.type == DType::kF32) {
    float value;
    std::memcpy(&value, key + 4 * size_t{d}, sizeof(value));
    return double{value};
  }
  uint16_t half;
  std::memcpy(&half, key + 2 * size_t{d}, sizeof(half));
  return double{Bf16ToFloat(half)};
}

double QueryElement(const BlockMassArgs& args, uint32_t head, uint32_t row, uint32_t d) {
  const float value = args.q[row * args.q_stride + size_t{head} * args.layout.head_dim + d];
  return double{args.layout.type == DType::kF32 ? value : Bf16ToFloat(FloatToBf16(value))};
}

// x of a row of tiles of the query block.
double Score(const BlockMassArgs& args, uint32_t head, uint32_t row, size_t column) {
  double sum = 0;
  for (uint32_t i = 0; i < args.stride; ++i) {
    for (uint32_t d = 0; d < args.layout.head_dim; ++d) {
      sum += QueryElement(args, head, args.stride * row + args.stride - 1 - i, d) *
             KeyElement(args, args.stride * column + i, d);
    }
  }
  const double x = sum * double{args.scale} / args.stride;
  const double cap = double{args.softcap};
  return cap == 0 ? x : cap * std::tanh(x / cap);
}

}  // namespace

int BlockMass(const BlockMassArgs& args, Exec* /*exec*/) {
  const StripeKeys& keys = args.layout;
  if ((args.stride != 8 && args.stride != 16) || args.group == 0 || args.group > kMaxGroup ||
      keys.head_dim == 0 || keys.head_dim % 16 != 0 || keys.head_dim > kMaxHeadDim ||
      (keys.type != DType::kF32 && keys.type != DType::kBF16)) {
    return kInvalidArgument;
  }
  const uint32_t rows = kMassBlockTokens / args.stride;
  const uint32_t num_blocks = args.block + 1;
  for (uint32_t head = 0; head < args.group; ++head) {
    std::vector<double> mass(num_blocks);
    for (uint32_t row = 0; row < rows; ++row) {
      std::vector<double> x(size_t{args.block} * rows + row + 1);
      double max = -INFINITY;
      for (size_t column = 0; column < x.size(); ++column) {
        x[column] = Score(args, head, row, column);
        max = std::max(max, x[column]);
      }
      double sum = 0;
      for (const double each : x) {
        sum += std::exp(each - max);
      }
      for (size_t column = 0; column < x.size(); ++column) {
        mass[column / rows] += std::exp(x[column] - max) / sum;
      }
    }
    for (uint32_t j = 0; j < num_blocks; ++j) {
      args.mass[size_t{head} * num_blocks + j] = static_cast<float>(mass[j]);
    }
  }
  return kOk;
}

}  // namespace spindle::kernels::reference
