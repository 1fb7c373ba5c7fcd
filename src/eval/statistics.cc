#include "eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/status_macros.h"

namespace spindle::eval {
namespace {

constexpr uint32_t kResamples = 2000;

}  // namespace

double Mean(std::span<const double> values) {
  return values.empty() ? 0.0
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

double Percentile(std::vector<double> values, double share) {
  SPINDLE_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const double rank = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (rank - static_cast<double>(below)) * (values[above] - values[below]);
}

Interval BootstrapMean(std::span<const double> units, uint64_t seed) {
  SPINDLE_CHECK(!units.empty());
  std::mt19937_64 random(seed);
  std::vector<double> means(kResamples);
  for (double& mean : means) {
    for (size_t i = 0; i < units.size(); ++i) {
      mean += units[random() % units.size()];
    }
    mean /= static_cast<double>(units.size());
  }
  return {Percentile(means, 0.025), Percentile(means, 0.975)};
}

double Slope(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  const double mean_x = (n - 1) / 2;
  const double mean_y = Mean(values);
  double products = 0;
  double squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = static_cast<double>(i) - mean_x;
    products += x * (values[i] - mean_y);
    squares += x * x;
  }
  return squares > 0 ? products / squares : 0.0;
}

double McNemar(uint32_t first, uint32_t second) {
  const uint32_t n = first + second;
  double tail = 0;
  double log_share = -std::log(2.0) * n;  // of the tosses with i heads
  for (uint32_t i = 0; i <= std::min(first, second); ++i) {
    tail += std::exp(log_share);
    log_share += std::log(static_cast<double>(n - i) / (i + 1.0));
  }
  return std::min(1.0, 2 * tail);
}

}  // namespace spindle::eval
