#include "sparse/fixed_partitions.h"

#include <algorithm>

#include "base/prefix_key.h"
#include "base/status_macros.h"

namespace spindle::sparse {
namespace {

constexpr uint32_t kLanes = kStripeTokens;

// Bits [begin, end) of a word.
uint64_t Lanes(uint32_t begin, uint32_t end) {
  if (begin >= end) {
    return 0;
  }
  return (~uint64_t{0} >> (kLanes - (end - begin))) << begin;
}

// Lanes of tile `tile` at positions [begin, end).
uint64_t LanesOfTile(uint32_t tile, uint32_t begin, uint32_t end) {
  const uint32_t first = tile * kLanes;
  const auto lane = [first](uint32_t position) {
    return std::clamp(position, first, first + kLanes) - first;
  };
  return Lanes(lane(begin), lane(end));
}

// Where the tokens that are always attended begin again, behind the sink.
uint32_t AlwaysFrom(const SelectJob& job, uint32_t partition_tokens) {
  const uint32_t num_tokens = job.num_tokens();
  const uint32_t recent = std::min(num_tokens, std::max(1U, job.settings->recent_tokens));
  return std::min(num_tokens - recent, num_tokens / partition_tokens * partition_tokens);
}

// Half-open; begin ≥ end: none.
struct Positions {
  uint32_t begin;
  uint32_t end;
};

// Of a partition, without what is always attended.
Positions PositionsBesideAlways(const SelectJob& job,
                                uint32_t partition_tokens,
                                uint32_t partition) {
  return {std::max(partition * partition_tokens, job.settings->sink_tokens),
          std::min((partition + 1) * partition_tokens, AlwaysFrom(job, partition_tokens))};
}

}  // namespace

PartitionRange CandidatesOf(const SelectJob& job, uint32_t partition_tokens) {
  const uint32_t complete = job.num_tokens() / partition_tokens;
  const uint32_t always_from = AlwaysFrom(job, partition_tokens);
  const uint32_t end = std::min(complete, (always_from + partition_tokens - 1) / partition_tokens);
  return {std::min(end, job.settings->sink_tokens / partition_tokens), end};
}

uint32_t TokensBesideAlways(const SelectJob& job, uint32_t partition_tokens, uint32_t partition) {
  const Positions positions = PositionsBesideAlways(job, partition_tokens, partition);
  return positions.begin < positions.end ? positions.end - positions.begin : 0;
}

uint32_t BudgetPartitions(const SelectJob& job,
                          uint32_t partition_tokens,
                          PartitionRange candidates) {
  return std::min((job.budget_tokens + partition_tokens - 1) / partition_tokens, candidates.size());
}

void ScoreCandidates(const SelectJob& job,
                     PartitionRange candidates,
                     const kernels::VectorBlock& vectors,
                     SelectWorkspace& workspace) {
  workspace.scores.resize(size_t{job.group} * candidates.size());
  const kernels::ScorePartitionsArgs args{.blobs = job.index.stripes.data(),
                                          .offset = job.index.offset,
                                          .vectors = vectors,
                                          .first_partition = candidates.begin,
                                          .num_partitions = candidates.size(),
                                          .q = workspace.query.data(),
                                          .num_queries = job.group,
                                          .scores = workspace.scores.data()};
  SPINDLE_CHECK(workspace.kernels.score_partitions(args) == kernels::kOk);
}

void ReduceOverGroup(const SelectJob& job,
                     kernels::GroupReduction reduction,
                     SelectWorkspace& workspace) {
  const auto num_candidates = static_cast<uint32_t>(workspace.scores.size() / job.group);
  workspace.best.resize(num_candidates);
  workspace.kernels.reduce_scores({.scores = workspace.scores.data(),
                                   .num_queries = job.group,
                                   .num_partitions = num_candidates,
                                   .scale = job.scale,
                                   .reduction = reduction,
                                   .out = workspace.best.data()});
}

void ChooseBest(uint32_t wanted, SelectWorkspace& workspace) {
  const auto count = static_cast<uint32_t>(workspace.best.size());
  workspace.chosen.resize((count + 63) / 64);
  workspace.kernels.select_best({.scores = workspace.best.data(),
                                 .n = count,
                                 .k = wanted,
                                 .chosen = workspace.chosen.data()});
}

void WriteTiles(const SelectJob& job,
                uint32_t partition_tokens,
                PartitionRange candidates,
                std::span<const uint64_t> chosen,
                std::vector<TileLive>* out) {
  const uint32_t num_tokens = job.num_tokens();
  const uint32_t per_tile = kLanes / partition_tokens;
  const uint32_t always_from = AlwaysFrom(job, partition_tokens);
  const uint32_t num_tiles = (num_tokens + kLanes - 1) / kLanes;
  for (uint32_t tile = 0; tile < num_tiles; ++tile) {
    uint64_t live = LanesOfTile(tile, 0, std::min(job.settings->sink_tokens, num_tokens)) |
                    LanesOfTile(tile, always_from, num_tokens);
    const uint32_t begin = std::max(candidates.begin, tile * per_tile);
    const uint32_t end = std::min(candidates.end, (tile + 1) * per_tile);
    for (uint32_t partition = begin; partition < end; ++partition) {
      const uint32_t i = partition - candidates.begin;
      if (chosen.empty() || (chosen[i / 64] >> (i % 64) & 1U) != 0) {
        const uint32_t lane = partition * partition_tokens - tile * kLanes;
        live |= Lanes(lane, lane + partition_tokens);
      }
    }
    if (live != 0) {
      out->push_back({.tile = tile, .live = live});
    }
  }
}

void WriteCandidateTiles(const SelectJob& job,
                         uint32_t partition_tokens,
                         PartitionRange candidates,
                         std::span<const uint32_t> some,
                         std::vector<TileLive>* out) {
  for (const uint32_t candidate : some) {
    const uint32_t partition = candidates.begin + candidate;
    const uint32_t tile = partition * partition_tokens / kLanes;
    const Positions positions = PositionsBesideAlways(job, partition_tokens, partition);
    const uint64_t live = LanesOfTile(tile, positions.begin, positions.end);
    if (live == 0) {
      continue;
    }
    if (!out->empty() && out->back().tile == tile) {
      out->back().live |= live;
    } else {
      out->push_back({.tile = tile, .live = live});
    }
  }
}

void WriteSinkAndWindow(uint32_t sink,
                        uint32_t window,
                        uint32_t num_tokens,
                        std::vector<TileLive>* out) {
  for (uint32_t tile = 0; tile * kLanes < num_tokens; ++tile) {
    const uint64_t live = LanesOfTile(tile, 0, std::min(sink, num_tokens)) |
                          LanesOfTile(tile, std::min(window, num_tokens), num_tokens);
    if (live != 0) {
      out->push_back({.tile = tile, .live = live});
    }
  }
}

}  // namespace spindle::sparse
