// The statistics of reports. Units are windows of text or samples of tasks, never tokens, because
// neighbouring tokens are not independent. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace spindle::eval {

// 0 for no values.
[[nodiscard]] double Mean(std::span<const double> values);

// Linear interpolation between closest ranks, as numpy's default. `share` in [0, 1]. REQUIRES: at
// least one value.
[[nodiscard]] double Percentile(std::vector<double> values, double share);

struct Interval {
  double low = 0;
  double high = 0;
};

// 95 % percentile interval of the mean of `units` by 2,000 bootstrap resamples. One unit: that
// value twice, which says that nothing is known.
[[nodiscard]] Interval BootstrapMean(std::span<const double> units, uint64_t seed);

// Slope of the least-squares line through (0, values[0]), (1, values[1]) …; 0 for fewer than two.
[[nodiscard]] double Slope(std::span<const double> values);

// Exact two-sided McNemar test: the chance that `first` against `second` discordant pairs, or a
// less even division, come from a fair coin.
[[nodiscard]] double McNemar(uint32_t first, uint32_t second);

}  // namespace spindle::eval
