// What a compute worker lends to Select: kernels, and buffers that grow to the longest context and
// stay. Thread-safety: one worker at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/registry.h"
#include "sparse/selection.h"

namespace spindle::sparse {

struct SelectWorkspace {
  explicit SelectWorkspace(const kernels::KernelTable& table) : kernels(table) {}

  const kernels::KernelTable& kernels;
  std::vector<float> query;      // [group][dim]
  std::vector<float> scores;     // [group][partitions]
  std::vector<float> best;       // [partitions] reduced over the group
  std::vector<uint64_t> chosen;  // [⌈partitions / 64⌉]
  std::vector<uint64_t> kept;    // the same, of an earlier choice
  std::vector<uint16_t> sizes;   // [partitions] tokens, where they differ
  std::vector<uint32_t> order;   // of candidates
  // For the exact share of some positions:
  kernels::Exec* exec = nullptr;  // of the worker
  std::vector<TileLive> always;
  std::vector<uint32_t> sampled;  // candidates
  std::vector<TileLive> sampled_tiles;
  std::vector<kernels::KvRun> runs;
  std::vector<float> attended;  // [group][head_dim], then a state
};

}  // namespace spindle::sparse
