// Select stage by plain loops in double, the oracle of the tests.
#include "kernels/api/select.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/api/attention.h"
#include "kernels/api/exec.h"
#include "kernels/functions.h"
#include "kernels/reference/index_vectors.h"

namespace spindle::kernels::reference {

int ScorePartitions(const ScorePartitionsArgs& args) {
  const VectorBlock& block = args.vectors;
  if (!IsReadable(block) || args.num_queries == 0 || args.num_queries > kMaxGroup) {
    return kInvalidArgument;
  }
  for (uint32_t j = 0; j < args.num_partitions; ++j) {
    const uint32_t partition = args.first_partition + j;
    const std::vector<double> vector = ReadVector(
        block, args.blobs[partition / block.count] + args.offset, partition % block.count);
    for (uint32_t i = 0; i < args.num_queries; ++i) {
      double sum = 0;
      for (uint32_t d = 0; d < block.dim; ++d) {
        sum += double{args.q[i * size_t{block.dim} + d]} * vector[d];
      }
      args.scores[i * size_t{args.num_partitions} + j] = static_cast<float>(sum);
    }
  }
  return kOk;
}

void ReduceScores(const ReduceScoresArgs& args) {
  const uint32_t n = args.num_partitions;
  const bool is_sum = args.reduction == GroupReduction::kSum;
  const float nothing = -std::numeric_limits<float>::infinity();
  std::fill_n(args.out, n, is_sum ? 0.0F : nothing);
  for (uint32_t i = 0; i < args.num_queries; ++i) {
    const float* const row = args.scores + i * size_t{n};
    float max = nothing;
    for (uint32_t j = 0; j < n; ++j) {
      max = row[j] > max ? row[j] : max;
    }
    if (max == nothing) {
      continue;
    }
    double sum = 0;
    for (uint32_t j = 0; j < n; ++j) {
      sum += std::exp(double{args.scale} * (double{row[j]} - double{max}));
    }
    for (uint32_t j = 0; j < n; ++j) {
      const double log_p = double{args.scale} * (double{row[j]} - double{max}) - std::log(sum);
      args.out[j] = is_sum ? args.out[j] + static_cast<float>(std::exp(log_p))
                           : std::max(args.out[j], static_cast<float>(log_p));
    }
  }
}

namespace {

// Ids of the scores that are numbers: score descending, id ascending.
std::vector<uint32_t> Ranking(const float* scores, uint32_t n) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0U);
  std::erase_if(order, [&](uint32_t j) { return std::isnan(scores[j]); });
  std::stable_sort(
      order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  return order;
}

}  // namespace

uint32_t SelectWithin(const SelectWithinArgs& args) {
  std::fill_n(args.chosen, (args.n + 63) / 64, uint64_t{0});
  uint64_t weight = 0;
  uint32_t count = 0;
  for (const uint32_t j : Ranking(args.scores, args.n)) {
    weight += args.weights[j];
    if (weight > args.budget) {
      break;
    }
    args.chosen[j / 64] |= uint64_t{1} << (j % 64);
    ++count;
  }
  return count;
}

uint32_t SelectBest(const SelectBestArgs& args) {
  std::vector<uint32_t> order = Ranking(args.scores, args.n);
  order.resize(std::min<size_t>(args.k, order.size()));
  std::fill_n(args.chosen, (args.n + 63) / 64, uint64_t{0});
  for (const uint32_t j : order) {
    args.chosen[j / 64] |= uint64_t{1} << (j % 64);
  }
  return static_cast<uint32_t>(order.size());
}

}  // namespace spindle::kernels::reference
