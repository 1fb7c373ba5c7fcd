// How much of a row's attention lies on which candidates, by the estimate of sparse-attention
// methods with mean keys: a partition of n tokens with mean key c weighs n · exp(score(c)), which
// by Jensen's inequality is at most its true weight; what is attended in any case is weighed
// exactly (Twilight, arXiv 2502.02770, at partition level). Shares that follow from that are too
// large, the more the fewer candidates are chosen: so a sample of candidates may be weighed exactly
// too, and all others are taken to be too light by as much as the sample is (a ratio estimator).
// Thread-safety: one worker.
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

// Candidates that are weighed exactly too, and the tiles of their tokens; none: no correction.
struct MassSample {
  std::span<const uint32_t> candidates;
  std::span<const TileLive> tiles;
};

class MassEstimate {
 public:
  // Over workspace.scores [group][candidates] (not scaled; -inf: not a candidate after all) and
  // workspace.sizes [candidates], their tokens. `always`: the tiles that are attended whatever is
  // chosen, with no token of a candidate. Borrows job and workspace. REQUIRES: job.keys.
  MassEstimate(const SelectJob& job,
               std::span<const TileLive> always,
               const MassSample& sample,
               SelectWorkspace& workspace);

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
  void Correct(const MassSample& sample);

  const SelectJob& job_;
  SelectWorkspace& workspace_;
  PerHead shift_{};   // ln of the unit that weights are in
  PerHead factor_{};  // of the candidates' weights
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
