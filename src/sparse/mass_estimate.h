// How much of a row's attention lies on which candidates, by the estimate of sparse-attention
// methods with mean keys: a partition of n tokens with mean key c weighs n · exp(score(c)), which
// by Jensen's inequality is at most its true weight; what is attended in any case is weighed
// exactly (Twilight, arXiv 2502.02770, at partition level). Thread-safety: one worker.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/api/attention.h"
#include "sparse/fixed_partitions.h"

namespace spindle::sparse {

// How many candidates may be chosen: up to the first one in rank that would exceed it.
struct ChoiceLimit {
  uint64_t most;
  bool of_tokens = false;  // of candidates, not of their number
};

class MassEstimate {
 public:
  // Over workspace.scores [group][candidates] (not scaled; -inf: not a candidate after all) and
  // workspace.sizes [candidates], their tokens. `always`: the tiles that are attended whatever is
  // chosen, with no token of a candidate. Borrows job and workspace. REQUIRES: job.keys.
  MassEstimate(const SelectJob& job, std::span<const TileLive> always, SelectWorkspace& workspace);

  // The share of the whole on `always` and the chosen candidates: the least over the query heads.
  // NaN where scores are no numbers.
  [[nodiscard]] float ShareOf(std::span<const uint64_t> chosen) const;

  // Candidates in the order of workspace.best (equal ones by position; none that is NaN) until
  // every query head has at least `share` of its whole, within the limit, into workspace.chosen.
  // Larger shares choose supersets. Returns ShareOf what was chosen.
  [[nodiscard]] float ChooseCovering(double share, const ChoiceLimit& limit) const;

 private:
  using PerHead = std::array<double, kernels::kMaxGroup>;

  // Relative to the head's shift.
  [[nodiscard]] double Weight(uint32_t head, uint32_t candidate) const;
  [[nodiscard]] float LeastShare(const PerHead& covered) const;

  const SelectJob& job_;
  SelectWorkspace& workspace_;
  PerHead shift_{};   // ln of the unit that weights are in
  PerHead always_{};  // weight of what is attended in any case
  PerHead whole_{};
};

// Chooses among partitions, the candidates of workspace.best: the `wanted` best, or as few as the
// settings' top_p_mass needs. workspace.always: what is attended in any case, which may hold some
// of their tokens; otherwise as MassEstimate and its results.
[[nodiscard]] float ChooseWithMass(const SelectJob& job,
                                   uint32_t partition_tokens,
                                   PartitionRange candidates,
                                   uint32_t wanted,
                                   SelectWorkspace& workspace);

}  // namespace spindle::sparse
