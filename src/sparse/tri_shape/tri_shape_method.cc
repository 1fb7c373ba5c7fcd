#include "sparse/tri_shape/tri_shape_method.h"

#include <algorithm>

namespace spindle::sparse {
namespace {

constexpr double kMostTokens = 1 << 19;
constexpr Knob kTriShapeKnobs[] = {
    {.name = "start", .min = 0, .max = kMostTokens, .preset = 128},
    {.name = "recent", .min = 1, .max = kMostTokens, .preset = 1920},
    {.name = "last_dense", .min = 1, .max = kMostTokens, .preset = 128},
};

struct TriShape {
  uint32_t start_blocks;   // that begin with one of the first tokens
  uint32_t recent_blocks;  // before the diagonal one that a row of it reaches
};

// The first row of a block reaches farthest back, to the token `recent` - 1 before it.
TriShape ShapeOf(std::span<const double> values) {
  const auto blocks = [](double tokens) {
    return (static_cast<uint32_t>(tokens) + kPrefillBlockTokens - 1) / kPrefillBlockTokens;
  };
  return {blocks(values[0]), blocks(values[1] - 1)};
}

}  // namespace

std::span<const Knob> TriShapeMethod::knobs() const {
  return kTriShapeKnobs;
}

uint32_t TriShapeMethod::FirstSparseBlock(std::span<const double> values) const {
  const TriShape shape = ShapeOf(values);
  return shape.start_blocks + shape.recent_blocks + 1;
}

uint32_t TriShapeMethod::LastDense(std::span<const double> values) const {
  return static_cast<uint32_t>(values[2]);
}

int TriShapeMethod::Select(const PrefillJob& job,
                           SelectWorkspace& /*workspace*/,
                           std::span<uint64_t> chosen) const {
  const TriShape shape = ShapeOf(job.knobs);
  const auto choose = [chosen](uint32_t begin, uint32_t end) {
    for (uint32_t block = begin; block < end; ++block) {
      chosen[block / 64] |= uint64_t{1} << (block % 64);
    }
  };
  choose(0, std::min(shape.start_blocks, job.block));
  choose(job.block - std::min(shape.recent_blocks, job.block), job.block + 1);
  return kernels::kOk;
}

}  // namespace spindle::sparse
