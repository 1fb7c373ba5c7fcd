// What algorithms choose, written from their definitions with sets of positions and doubles: the
// reference of the selection tests. Thread-safety: pure functions.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <set>
#include <span>
#include <vector>

#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

// Positions that rows attend to whatever the algorithm: sink, recent, and those behind the last
// complete partition.
inline std::set<uint32_t> AlwaysAttended(const SparseSettings& settings,
                                         uint32_t num_tokens,
                                         uint32_t partition_tokens) {
  std::set<uint32_t> positions = {num_tokens - 1};
  for (uint32_t p = 0; p < num_tokens; ++p) {
    if (p < settings.sink_tokens || p + settings.recent_tokens >= num_tokens ||
        p >= num_tokens / partition_tokens * partition_tokens) {
      positions.insert(p);
    }
  }
  return positions;
}

// Adds the positions of the best partitions. `score`: of a partition, larger is better. Partitions
// that are always attended anyway are no candidates.
inline std::set<uint32_t> NaiveChoice(const SparseSettings& settings,
                                      uint32_t num_tokens,
                                      uint32_t budget_tokens,
                                      uint32_t partition_tokens,
                                      const std::function<double(uint32_t)>& score) {
  std::set<uint32_t> positions = AlwaysAttended(settings, num_tokens, partition_tokens);
  std::vector<std::pair<double, uint32_t>> ranking;
  for (uint32_t partition = 0; (partition + 1) * partition_tokens <= num_tokens; ++partition) {
    bool adds = false;
    for (uint32_t i = 0; i < partition_tokens; ++i) {
      adds = adds || !positions.contains(partition * partition_tokens + i);
    }
    if (adds) {
      ranking.emplace_back(-score(partition), partition);
    }
  }
  std::sort(ranking.begin(), ranking.end());
  const size_t wanted = (budget_tokens + partition_tokens - 1) / partition_tokens;
  ranking.resize(std::min(ranking.size(), wanted));
  for (const auto& [negative, partition] : ranking) {
    for (uint32_t i = 0; i < partition_tokens; ++i) {
      positions.insert(partition * partition_tokens + i);
    }
  }
  return positions;
}

inline std::set<uint32_t> PositionsOf(std::span<const TileLive> tiles) {
  std::set<uint32_t> positions;
  for (const TileLive& tile : tiles) {
    for (uint32_t lane = 0; lane < 64; ++lane) {
      if ((tile.live >> lane & 1) != 0) {
        positions.insert(tile.tile * 64 + lane);
      }
    }
  }
  return positions;
}

}  // namespace spindle::sparse
