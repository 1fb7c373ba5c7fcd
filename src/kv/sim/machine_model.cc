#include "kv/sim/machine_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

namespace spindle::kv::sim {
namespace {

constexpr std::array<double, 5> kReadBytes = {4096, 16384, 32768, 65536, 262144};
constexpr std::array<double, 4> kQueueDepths = {1, 4, 16, 64};

// MB/s, by read size and queue depth.
constexpr std::array<std::array<double, 4>, 5> kMegabytesPerSecond = {{{53, 150, 211, 274},
                                                                       {191, 388, 553, 738},
                                                                       {372, 587, 778, 969},
                                                                       {541, 856, 1114, 1057},
                                                                       {1036, 1259, 1208, 1201}}};

// Where a value lies among ascending points: index of the lower one, and how far from it towards
// the next in logarithms, 0 … 1.
template <size_t kCount>
std::pair<size_t, double> Locate(const std::array<double, kCount>& points, double value) {
  const double clamped = std::clamp(value, points.front(), points.back());
  size_t low = 0;
  while (low + 2 < kCount && points[low + 1] <= clamped) {
    ++low;
  }
  return {low, std::log(clamped / points[low]) / std::log(points[low + 1] / points[low])};
}

double Between(double low, double high, double part) {
  return std::exp((1 - part) * std::log(low) + part * std::log(high));
}

}  // namespace

Duration PipelinedStepTime(Duration compute,
                           Duration copy,
                           uint32_t num_layers,
                           uint32_t prefetch_depth) {
  if (prefetch_depth == 0) {
    return compute + copy;
  }
  const double layer_compute = static_cast<double>(compute.count()) / num_layers;
  const double layer_copy = static_cast<double>(copy.count()) / num_layers;
  std::vector<double> compute_start(num_layers);
  double copy_end = 0;
  double compute_end = 0;
  for (uint32_t layer = 0; layer < num_layers; ++layer) {
    const double foretold = layer < prefetch_depth ? 0 : compute_start[layer - prefetch_depth];
    copy_end = std::max(copy_end, foretold) + layer_copy;
    compute_start[layer] = std::max(compute_end, copy_end);
    compute_end = compute_start[layer] + layer_compute;
  }
  return Duration(static_cast<int64_t>(std::llround(compute_end)));
}

double DiskBytesPerSecond(uint64_t read_bytes, uint32_t queue_depth) {
  const auto [size, size_part] = Locate(kReadBytes, static_cast<double>(read_bytes));
  const auto [depth, depth_part] = Locate(kQueueDepths, queue_depth);
  const auto at_size = [depth = depth, part = depth_part](size_t row) {
    return Between(kMegabytesPerSecond[row][depth], kMegabytesPerSecond[row][depth + 1], part);
  };
  return 1e6 * Between(at_size(size), at_size(size + 1), size_part);
}

}  // namespace spindle::kv::sim
