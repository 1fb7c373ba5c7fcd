// Partitions of a fixed number of consecutive tokens (pages of Quest, chunks, blocks): which of
// them a row may choose among, and the positions that its choice makes live. Thread-safety: pure
// functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/api/select.h"
#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

// Half-open, of partitions.
struct PartitionRange {
  uint32_t begin;
  uint32_t end;

  [[nodiscard]] uint32_t size() const { return end - begin; }
};

// Complete partitions that are not wholly inside what is always attended.
// REQUIRES: partition_tokens divides 64.
[[nodiscard]] PartitionRange CandidatesOf(const SelectJob& job, uint32_t partition_tokens);

// Of a partition's tokens: those that are not attended in any case.
[[nodiscard]] uint32_t TokensBesideAlways(const SelectJob& job,
                                          uint32_t partition_tokens,
                                          uint32_t partition);

// min(⌈budget / partition_tokens⌉, candidates).
[[nodiscard]] uint32_t BudgetPartitions(const SelectJob& job,
                                        uint32_t partition_tokens,
                                        PartitionRange candidates);

// Scores the candidates by their index vectors against workspace.query [group][dim], into
// workspace.scores [group][candidates].
// REQUIRES: candidates is not empty; `vectors` are at the beginning of the index of a stripe.
void ScoreCandidates(const SelectJob& job,
                     PartitionRange candidates,
                     const kernels::VectorBlock& vectors,
                     SelectWorkspace& workspace);

// A softmax per query head over workspace.scores, reduced over the group (kernels/api/select.h),
// into workspace.best. REQUIRES: workspace.scores is [job.group][candidates].
void ReduceOverGroup(const SelectJob& job,
                     kernels::GroupReduction reduction,
                     SelectWorkspace& workspace);

// The `wanted` best of workspace.best into workspace.chosen; equal ones by position.
// REQUIRES: wanted ≤ workspace.best.size().
void ChooseBest(uint32_t wanted, SelectWorkspace& workspace);

// Tiles of the sink, the recent tokens, those behind the last complete partition, and the chosen
// candidates: bit i mod 64 of chosen[i div 64] stands for candidate i. Empty: all of them.
void WriteTiles(const SelectJob& job,
                uint32_t partition_tokens,
                PartitionRange candidates,
                std::span<const uint64_t> chosen,
                std::vector<TileLive>* out);

// Tiles of those tokens of some candidates (from candidates.begin, ascending) that are not attended
// in any case.
void WriteCandidateTiles(const SelectJob& job,
                         uint32_t partition_tokens,
                         PartitionRange candidates,
                         std::span<const uint32_t> some,
                         std::vector<TileLive>* out);

// Tiles of the positions [0, sink) and [window, num_tokens).
void WriteSinkAndWindow(uint32_t sink,
                        uint32_t window,
                        uint32_t num_tokens,
                        std::vector<TileLive>* out);

}  // namespace spindle::sparse
