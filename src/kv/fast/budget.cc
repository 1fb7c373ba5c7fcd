#include "kv/fast/budget.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "base/status_macros.h"
#include "kv/fast/frame_pool.h"

namespace spindle::kv {
namespace {

constexpr double kDeadBand = 0.10;
constexpr double kMaxGrowth = 1.5;
constexpr double kMaxShrink = 0.25;
constexpr uint32_t kGainSteps = 16;       // pass 2 gives a sixteenth of the spare at a time
constexpr uint32_t kBisectionSteps = 60;  // beyond the precision of a double's fraction

uint32_t RoundDown(double frames) {
  return static_cast<uint32_t>(frames) / kRunFrames * kRunFrames;
}

uint32_t RoundUp(double frames) {
  return (static_cast<uint32_t>(std::ceil(frames)) + kRunFrames - 1) / kRunFrames * kRunFrames;
}

// Order of indices by a key, descending; equal keys by index.
template <typename Key>
std::vector<size_t> Descending(size_t count, Key key) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return key(a) != key(b) ? key(a) > key(b) : a < b;
  });
  return order;
}

// Size at water level `level`, 0 … 1.
uint32_t SizeAt(const BudgetRequest& request, double level) {
  const double distance = request.bounds.target - request.bounds.floor;
  return request.bounds.floor + RoundDown(level * distance);
}

uint64_t TotalAt(std::span<const BudgetRequest> requests, double level) {
  uint64_t total = 0;
  for (const BudgetRequest& request : requests) {
    total += uint64_t{SizeAt(request, level)} * request.num_groups;
  }
  return total;
}

// The highest level that fits: pass 1.
double LevelFor(std::span<const BudgetRequest> requests, uint64_t capacity_frames) {
  double high = 1;
  if (TotalAt(requests, high) <= capacity_frames) {
    return high;
  }
  double low = 0;
  for (uint32_t step = 0; step < kBisectionSteps; ++step) {
    const double middle = (low + high) / 2;
    (TotalAt(requests, middle) <= capacity_frames ? low : high) = middle;
  }
  return low;
}

// Raises one size towards `limit` with at most `frames`; returns what it took.
uint64_t Raise(const BudgetRequest& request, uint32_t limit, uint64_t frames, uint32_t* size) {
  if (*size >= limit) {
    return 0;
  }
  const uint64_t affordable = frames / request.num_groups / kRunFrames * kRunFrames;
  const auto added = static_cast<uint32_t>(std::min<uint64_t>(affordable, limit - *size));
  *size += added;
  return uint64_t{added} * request.num_groups;
}

}  // namespace

BudgetBounds BoundsOf(const BudgetNeed& need) {
  const uint32_t all = RoundUp(need.total_pages);
  const uint32_t cap = std::min(all, RoundDown(need.max_frames));
  const auto size = [&](double ratio) {
    return std::min(cap, RoundUp(need.mandatory_pages * (1 + ratio)));
  };
  return {.floor = size(std::min(kFloorBufferRatio, need.buffer_ratio)),
          .target = size(need.buffer_ratio),
          .ceiling = size(std::max(kCeilingBufferRatio, need.buffer_ratio))};
}

uint32_t FramesForBytes(uint64_t max_bytes,
                        uint64_t index_bytes,
                        uint64_t frame_bytes,
                        uint32_t num_groups) {
  if (max_bytes <= index_bytes) {
    return 0;
  }
  const uint64_t frames = (max_bytes - index_bytes) / frame_bytes / num_groups;
  return static_cast<uint32_t>(std::min<uint64_t>(frames, UINT32_MAX)) / kRunFrames * kRunFrames;
}

double MarginalGain(double refaults_per_step, double remembered_pages, double miss_cost_us) {
  return remembered_pages > 0 ? refaults_per_step * miss_cost_us / remembered_pages : 0;
}

absl::Status Distribute(std::span<const BudgetRequest> requests,
                        uint64_t capacity_frames,
                        double min_gain_us,
                        std::span<uint32_t> out) {
  const uint64_t floors = TotalAt(requests, 0);
  if (floors > capacity_frames) {
    return absl::ResourceExhaustedError("floors of running requests need " +
                                        std::to_string(floors) + " fast frames, there are " +
                                        std::to_string(capacity_frames));
  }
  const double level = LevelFor(requests, capacity_frames);
  uint64_t spare = capacity_frames;
  for (size_t i = 0; i < requests.size(); ++i) {
    out[i] = SizeAt(requests[i], level);
    spare -= uint64_t{out[i]} * requests[i].num_groups;
  }
  // What rounding left over: a run each, while the targets ask for more.
  for (size_t i = 0; i < requests.size(); ++i) {
    const uint32_t limit = std::min(requests[i].bounds.target, out[i] + kRunFrames);
    spare -= Raise(requests[i], limit, spare, &out[i]);
  }
  const std::vector<size_t> by_gain =
      Descending(requests.size(), [&](size_t i) { return requests[i].gain; });
  for (const size_t i : by_gain) {
    if (requests[i].gain < min_gain_us) {
      break;
    }
    const uint64_t portion =
        std::max<uint64_t>(spare / kGainSteps, uint64_t{requests[i].num_groups} * kRunFrames);
    uint64_t taken = 1;
    while (taken > 0) {
      taken = Raise(requests[i], requests[i].bounds.ceiling, std::min(spare, portion), &out[i]);
      spare -= taken;
    }
  }
  return absl::OkStatus();
}

uint32_t NextSize(const BudgetRequest& request, uint32_t wanted, bool is_short) {
  const uint32_t current = request.current;
  if (current < request.bounds.floor) {
    return request.bounds.floor;  // a guarantee is not subject to limits of growth
  }
  const double change = std::abs(static_cast<double>(wanted) - static_cast<double>(current));
  if (change < kDeadBand * current && !is_short) {
    return current;
  }
  if (wanted > current) {
    return std::min(wanted, std::max(current + kRunFrames, RoundDown(kMaxGrowth * current)));
  }
  const double buffering = std::max(0.0, current - request.mandatory_pages);
  const uint32_t step = std::max(kRunFrames, RoundDown(kMaxShrink * buffering));
  const uint32_t lowest = std::max(wanted, request.bounds.floor);
  return std::max(lowest, current - std::min(current, step));
}

void NextSizes(std::span<const BudgetRequest> requests,
               std::span<const uint32_t> wanted,
               uint64_t capacity_frames,
               std::span<uint32_t> out) {
  uint64_t in_use = 0;
  bool is_short = false;
  for (const BudgetRequest& request : requests) {
    in_use += uint64_t{request.current} * request.num_groups;
    is_short = is_short || request.current < request.bounds.floor;
  }
  is_short = is_short || in_use > capacity_frames;
  uint64_t used = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    out[i] = std::min(requests[i].current, NextSize(requests[i], wanted[i], is_short));
    used += uint64_t{out[i]} * requests[i].num_groups;
  }
  uint64_t spare = capacity_frames > used ? capacity_frames - used : 0;
  const std::vector<size_t> order = Descending(requests.size(), [&](size_t i) {
    return std::pair(requests[i].current < requests[i].bounds.floor, requests[i].gain);
  });
  for (const size_t i : order) {
    spare -= Raise(requests[i], NextSize(requests[i], wanted[i], is_short), spare, &out[i]);
  }
}

}  // namespace spindle::kv
