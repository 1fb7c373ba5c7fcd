#include "sparse/mass_estimate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sparse/exact_lse.h"

namespace spindle::sparse {
namespace {

constexpr float kNoScore = -std::numeric_limits<float>::infinity();

double ScoreOf(const SelectJob& job, float product) {
  const float score = product * job.scale;
  // -inf stands for "no candidate", which no cap brings back.
  return job.softcap == 0 || product == kNoScore ? score
                                                 : job.softcap * std::tanh(score / job.softcap);
}

void Choose(uint32_t i, std::vector<uint64_t>* chosen) {
  (*chosen)[i / 64] |= uint64_t{1} << (i % 64);
}

// About kSampled candidates, equally far apart: a function of the row's position alone, and the
// same whatever is chosen, so that larger shares choose supersets.
void TakeSample(const SelectJob& job,
                uint32_t partition_tokens,
                PartitionRange candidates,
                SelectWorkspace& workspace) {
  constexpr uint32_t kSampled = 32;
  workspace.sampled.clear();
  workspace.sampled_tiles.clear();
  const uint32_t stride = (candidates.size() + kSampled - 1) / kSampled;
  for (uint32_t i = 0; i < candidates.size(); i += stride) {
    if (workspace.best[i] > kNoScore) {
      workspace.sampled.push_back(i);
    }
  }
  WriteCandidateTiles(
      job, partition_tokens, candidates, workspace.sampled, &workspace.sampled_tiles);
}

}  // namespace

MassEstimate::MassEstimate(const SelectJob& job,
                           std::span<const TileLive> always,
                           const MassSample& sample,
                           SelectWorkspace& workspace)
    : job_(job), workspace_(workspace) {
  const size_t num_candidates = workspace.sizes.size();
  std::array<float, kernels::kMaxGroup> lse{};
  ExactLse(job, always, workspace, std::span(lse).first(job.group));
  for (uint32_t head = 0; head < job.group; ++head) {
    const std::span<const float> scores =
        std::span(workspace.scores).subspan(head * num_candidates, num_candidates);
    const float largest = *std::max_element(scores.begin(), scores.end());
    shift_[head] = std::max({double{lse[head]}, ScoreOf(job, largest)});
    always_[head] = std::exp(double{lse[head]} - shift_[head]);
    factor_[head] = 1;
  }
  Correct(sample);
  for (uint32_t head = 0; head < job.group; ++head) {
    whole_[head] = always_[head];
    for (uint32_t i = 0; i < num_candidates; ++i) {
      whole_[head] += Weight(head, i);
    }
  }
}

void MassEstimate::Correct(const MassSample& sample) {
  if (sample.candidates.empty()) {
    return;
  }
  std::array<float, kernels::kMaxGroup> lse{};
  ExactLse(job_, sample.tiles, workspace_, std::span(lse).first(job_.group));
  for (uint32_t head = 0; head < job_.group; ++head) {
    double estimated = 0;
    for (const uint32_t i : sample.candidates) {
      estimated += Weight(head, i);
    }
    const double factor = std::exp(double{lse[head]} - shift_[head]) / estimated;
    // Weights too small to be told from 0 say nothing.
    factor_[head] = std::isfinite(factor) && factor > 0 ? factor : 1;
  }
}

double MassEstimate::Weight(uint32_t head, uint32_t candidate) const {
  const std::vector<uint16_t>& sizes = workspace_.sizes;
  const float product = workspace_.scores[head * sizes.size() + candidate];
  return factor_[head] * sizes[candidate] * std::exp(ScoreOf(job_, product) - shift_[head]);
}

float MassEstimate::LeastShare(const PerHead& covered) const {
  double least = 1;
  for (uint32_t head = 0; head < job_.group; ++head) {
    const double share = covered[head] / whole_[head];
    // A share that is no number stays one.
    least = std::isnan(share) || share < least ? share : least;
  }
  return static_cast<float>(least);
}

float MassEstimate::ShareOf(std::span<const uint64_t> chosen) const {
  PerHead covered = always_;
  for (uint32_t i = 0; i < workspace_.sizes.size(); ++i) {
    if ((chosen[i / 64] >> (i % 64) & 1U) != 0) {
      for (uint32_t head = 0; head < job_.group; ++head) {
        covered[head] += Weight(head, i);
      }
    }
  }
  return LeastShare(covered);
}

float MassEstimate::ChooseCovering(double share, const ChoiceLimit& limit) const {
  const std::vector<float>& best = workspace_.best;
  std::vector<uint32_t>& order = workspace_.order;
  order.clear();
  for (uint32_t i = 0; i < best.size(); ++i) {
    if (best[i] > kNoScore) {
      order.push_back(i);
    }
  }
  // A heap, since few of many are wanted.
  const auto is_after = [&best](uint32_t a, uint32_t b) {
    return best[a] != best[b] ? best[a] < best[b] : a > b;
  };
  std::make_heap(order.begin(), order.end(), is_after);

  PerHead covered = always_;
  const auto is_covered = [&] {
    for (uint32_t head = 0; head < job_.group; ++head) {
      if (!(covered[head] >= share * whole_[head])) {
        return false;
      }
    }
    return true;
  };
  workspace_.chosen.assign((best.size() + 63) / 64, 0);
  uint64_t taken = 0;
  while (!order.empty() && !is_covered()) {
    std::pop_heap(order.begin(), order.end(), is_after);
    const uint32_t i = order.back();
    order.pop_back();
    taken += limit.of_tokens ? workspace_.sizes[i] : 1U;
    if (taken > limit.most) {
      break;
    }
    Choose(i, &workspace_.chosen);
    for (uint32_t head = 0; head < job_.group; ++head) {
      covered[head] += Weight(head, i);
    }
  }
  return LeastShare(covered);
}

float ChooseWithMass(const SelectJob& job,
                     uint32_t partition_tokens,
                     PartitionRange candidates,
                     uint32_t wanted,
                     SelectWorkspace& workspace) {
  workspace.sizes.resize(candidates.size());
  for (uint32_t i = 0; i < candidates.size(); ++i) {
    workspace.sizes[i] =
        static_cast<uint16_t>(TokensBesideAlways(job, partition_tokens, candidates.begin + i));
  }
  TakeSample(job, partition_tokens, candidates, workspace);
  const MassEstimate estimate(
      job, workspace.always, {workspace.sampled, workspace.sampled_tiles}, workspace);
  if (job.settings->top_p_mass > 0) {
    return estimate.ChooseCovering(job.settings->top_p_mass, {.most = wanted});
  }
  ChooseBest(wanted, workspace);
  return estimate.ShareOf(workspace.chosen);
}

}  // namespace spindle::sparse
