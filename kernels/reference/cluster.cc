// Clusters of keys by plain loops in double, the oracle of the tests.
#include "kernels/api/cluster.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/api/attention.h"
#include "kernels/api/exec.h"
#include "kernels/codes.h"
#include "kernels/functions.h"
#include "kernels/reference/index_vectors.h"

namespace spindle::kernels::reference {
namespace {

using Rows = std::vector<std::vector<double>>;

Rows ReadRows(const ClusterArgs& args, const uint8_t* const* from) {
  Rows rows(args.num_tokens, std::vector<double>(args.head_dim));
  for (uint32_t t = 0; t < args.num_tokens; ++t) {
    for (uint32_t d = 0; d < args.head_dim; ++d) {
      if (args.type == DType::kF32) {
        float value;
        std::memcpy(&value, from[t] + d * sizeof(value), sizeof(value));
        rows[t][d] = double{value};
      } else {
        uint16_t half;
        std::memcpy(&half, from[t] + d * sizeof(half), sizeof(half));
        rows[t][d] = double{Bf16ToFloat(half)};
      }
    }
  }
  return rows;
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

std::vector<double> Unit(std::vector<double> x) {
  const double length = std::sqrt(Dot(x, x));
  for (double& value : x) {
    value = length == 0 ? 0 : value / length;
  }
  return x;
}

std::vector<double> MeanOf(const Rows& rows, const std::vector<uint16_t>& members) {
  std::vector<double> mean(rows[0].size());
  for (const uint16_t t : members) {
    for (size_t d = 0; d < mean.size(); ++d) {
      mean[d] += rows[t][d] / static_cast<double>(members.size());
    }
  }
  return mean;
}

std::vector<std::vector<uint16_t>> Assign(const Rows& rows, const Rows& centroids) {
  std::vector<std::vector<uint16_t>> members(centroids.size());
  for (size_t t = 0; t < rows.size(); ++t) {
    size_t best = 0;
    double most = -std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < centroids.size(); ++i) {
      const double product = Dot(rows[t], centroids[i]);
      if (product > most) {
        most = product;
        best = i;
      }
    }
    members[best].push_back(static_cast<uint16_t>(t));
  }
  return members;
}

void WriteMean(const std::vector<double>& mean, const VectorOut& out) {
  std::vector<float> rounded(mean.size());
  std::ranges::transform(mean, rounded.begin(), [](double x) { return static_cast<float>(x); });
  WriteVector(out, rounded, std::vector(mean.size(), Rounding::kNearest));
}

}  // namespace

int ClusterKeys(const ClusterArgs& args) {
  if (args.num_tokens == 0 || args.num_tokens > kMaxSegmentTokens || args.num_clusters == 0 ||
      args.num_clusters > kMaxSegmentClusters || args.num_clusters > args.num_tokens ||
      args.head_dim == 0 || args.head_dim % 16 != 0 || args.head_dim > kMaxHeadDim ||
      args.iterations == 0 || (args.type != DType::kF32 && args.type != DType::kBF16)) {
    return kInvalidArgument;
  }
  const Rows keys = ReadRows(args, args.k);
  const Rows values = ReadRows(args, args.v);
  std::vector<uint16_t> all(args.num_tokens);
  for (uint32_t t = 0; t < args.num_tokens; ++t) {
    all[t] = static_cast<uint16_t>(t);
  }
  const std::vector<double> mean = MeanOf(keys, all);
  Rows centred = keys;
  for (std::vector<double>& row : centred) {
    for (uint32_t d = 0; d < args.head_dim; ++d) {
      row[d] -= mean[d];
    }
  }
  Rows centroids;
  for (uint32_t i = 0; i < args.num_clusters; ++i) {
    centroids.push_back(Unit(centred[(2 * i + 1) * args.num_tokens / (2 * args.num_clusters)]));
  }
  std::vector<std::vector<uint16_t>> members = Assign(centred, centroids);
  for (uint32_t step = 1; step < args.iterations; ++step) {
    for (uint32_t i = 0; i < args.num_clusters; ++i) {
      if (!members[i].empty()) {
        centroids[i] = Unit(MeanOf(centred, members[i]));
      }
    }
    members = Assign(centred, centroids);
  }
  std::erase_if(members, [](const std::vector<uint16_t>& of) { return of.empty(); });
  uint16_t end = 0;
  for (uint32_t i = 0; i <= args.num_clusters; ++i) {
    args.begins[i] = end;
    if (i < members.size()) {
      const VectorBlock block = ClusterVectors(args.index_type, args.head_dim);
      WriteMean(MeanOf(keys, members[i]), {block, args.key_means, i});
      WriteMean(MeanOf(values, members[i]), {block, args.value_means, i});
      std::ranges::copy(members[i], args.tokens + end);
      end = static_cast<uint16_t>(end + members[i].size());
    }
  }
  *args.num_non_empty = static_cast<uint32_t>(members.size());
  return kOk;
}

void EstimateClusters(const EstimateArgs& args) {
  for (uint32_t query = 0; query < args.num_queries; ++query) {
    const float* const scores =
        args.scores + size_t{query} * args.num_segments * kMaxSegmentClusters;
    float* const state = args.states + size_t{query} * (args.head_dim + 2);
    const auto logit = [&](size_t i) {
      const double s = double{scores[i]} * args.scale;
      return args.softcap == 0 ? s : args.softcap * std::tanh(s / args.softcap);
    };
    const auto is_chosen = [&](size_t i) { return (args.chosen[i / 64] >> (i % 64) & 1U) != 0; };
    const size_t n = size_t{args.num_segments} * kMaxSegmentClusters;
    double m = -std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < n; ++i) {
      m = is_chosen(i) ? std::max(m, logit(i)) : m;
    }
    double l = 0;
    std::vector<double> acc(args.head_dim);
    for (size_t i = 0; i < n; ++i) {
      if (!is_chosen(i)) {
        continue;
      }
      const uint8_t* const blob = args.blobs[i / 64];
      uint16_t ends[2];
      std::memcpy(ends, blob + args.begins_offset + i % 64 * sizeof(uint16_t), sizeof(ends));
      const double weight = (ends[1] - ends[0]) * std::exp(logit(i) - m);
      l += weight;
      const std::vector<double> value = ReadVector(ClusterVectors(args.index_type, args.head_dim),
                                                   blob + args.value_offset,
                                                   static_cast<uint32_t>(i % 64));
      for (uint32_t d = 0; d < args.head_dim; ++d) {
        acc[d] += weight * value[d];
      }
    }
    std::ranges::transform(acc, state, [](double x) { return static_cast<float>(x); });
    state[args.head_dim] = static_cast<float>(m);
    state[args.head_dim + 1] = static_cast<float>(l);
  }
}

}  // namespace spindle::kernels::reference
