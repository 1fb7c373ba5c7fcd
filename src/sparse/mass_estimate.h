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

class MassEstimate {
 public:
  // Over workspace.scores [group][candidates] (not scaled; -inf: not a candidate after all).
  // `always`: the tiles that are attended whatever is chosen. Borrows all three. REQUIRES:
  // job.keys.
  MassEstimate(const SelectJob& job,
               uint32_t partition_tokens,
               PartitionRange candidates,
               std::span<const TileLive> always,
               SelectWorkspace& workspace);

  // The share of the whole on `always` and the chosen candidates: the least over the query heads.
  // NaN where scores are no numbers.
  [[nodiscard]] float ShareOf(std::span<const uint64_t> chosen) const;

  // Candidates in the order of workspace.best (equal ones by position) until every query head has
  // at least `share` of its whole, at most `most` of them, into workspace.chosen. Larger shares
  // choose supersets. Returns ShareOf what was chosen.
  [[nodiscard]] float ChooseCovering(double share, uint32_t most) const;

 private:
  using PerHead = std::array<double, kernels::kMaxGroup>;

  // Relative to the head's shift.
  [[nodiscard]] double Weight(uint32_t head, uint32_t candidate) const;
  [[nodiscard]] float LeastShare(const PerHead& covered) const;

  const SelectJob& job_;
  const uint32_t partition_tokens_;
  const PartitionRange candidates_;
  SelectWorkspace& workspace_;
  PerHead shift_{};   // ln of the unit that weights are in
  PerHead always_{};  // weight of what is attended in any case
  PerHead whole_{};
};

// Chooses among the candidates of workspace.best: the `wanted` best, or as few as the settings'
// top_p_mass needs. workspace.always: what is attended in any case; otherwise as MassEstimate and
// its results.
[[nodiscard]] float ChooseWithMass(const SelectJob& job,
                                   uint32_t partition_tokens,
                                   PartitionRange candidates,
                                   uint32_t wanted,
                                   SelectWorkspace& workspace);

}  // namespace spindle::sparse
