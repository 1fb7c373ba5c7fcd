#include "eval/summary.h"

#include <algorithm>
#include <cmath>

namespace spindle::eval {
namespace {

constexpr double kSolved = 1 - 1e-9;

// A mean per window of something per step.
template <typename Field>
std::vector<double> WindowMeans(const ForcedScores& scores, const Field& field) {
  std::vector<double> means;
  for (const std::vector<StepScores>& window : scores.windows) {
    double sum = 0;
    for (const StepScores& step : window) {
      sum += field(step);
    }
    means.push_back(sum / static_cast<double>(window.size()));
  }
  return means;
}

std::vector<double> BlockMeans(const ForcedScores& scores, uint32_t num_steps) {
  std::vector<double> means;
  for (uint32_t begin = 0; begin + kDriftBlock <= num_steps; begin += kDriftBlock) {
    double sum = 0;
    for (const std::vector<StepScores>& window : scores.windows) {
      for (uint32_t i = begin; i < begin + kDriftBlock; ++i) {
        sum += window[i].kl;
      }
    }
    means.push_back(sum / (static_cast<double>(scores.windows.size()) * kDriftBlock));
  }
  return means;
}

void AddLogits(const ForcedScores& scores, uint32_t num_steps, uint64_t seed, PolicySummary* out) {
  std::vector<double> kls;
  double squares = 0;
  for (const std::vector<StepScores>& window : scores.windows) {
    for (const StepScores& step : window) {
      kls.push_back(step.kl);
      squares += step.probability_change * step.probability_change;
    }
  }
  out->window_kl = WindowMeans(scores, [](const StepScores& step) { return step.kl; });
  out->kl = Mean(out->window_kl);
  out->kl_interval = BootstrapMean(out->window_kl, seed);
  out->kl_median = Percentile(kls, 0.5);
  out->kl_p99 = Percentile(kls, 0.99);
  out->kl_max = Percentile(kls, 1);
  out->block_kl = BlockMeans(scores, num_steps);
  const std::vector<double> same =
      WindowMeans(scores, [](const StepScores& step) { return step.same_top ? 1.0 : 0.0; });
  out->top1 = Mean(same);
  out->top1_interval = BootstrapMean(same, seed);
  out->top5_overlap =
      Mean(WindowMeans(scores, [](const StepScores& step) { return step.top_overlap; }));
  out->nll = Mean(WindowMeans(scores, [](const StepScores& step) { return step.nll; }));
  const std::vector<double> change =
      WindowMeans(scores, [](const StepScores& step) { return step.nll - step.dense_nll; });
  const Interval interval = BootstrapMean(change, seed);
  out->ppl_change = std::expm1(Mean(change));
  out->ppl_interval = {std::expm1(interval.low), std::expm1(interval.high)};
  out->rms_probability_change = std::sqrt(squares / static_cast<double>(kls.size()));
}

void AddSelections(const SelectionRecord& record, PolicySummary* out) {
  std::vector<double> mass;
  std::vector<double> selected_mass;
  HeadRecord sum;
  for (uint32_t layer = 0; layer < record.num_layers(); ++layer) {
    std::vector<double>& row = out->head_mass.emplace_back();
    for (uint32_t head = 0; head < record.num_heads(); ++head) {
      const HeadRecord& of = record.Of(layer, head);
      sum += of;
      const auto measured = static_cast<double>(of.measured_rows);
      row.push_back(of.measured_rows > 0 ? of.mass / measured : -1);
      if (of.measured_rows > 0) {
        mass.push_back(of.mass / measured);
        selected_mass.push_back(of.selected_mass / measured);
      }
    }
  }
  if (sum.rows == 0) {
    return;
  }
  out->attended_share = sum.attended_share / static_cast<double>(sum.rows);
  out->attended_tokens = sum.attended_tokens / static_cast<double>(sum.rows);
  out->overlap = sum.overlap_rows > 0 ? sum.overlap / static_cast<double>(sum.overlap_rows) : 0;
  if (sum.estimated_rows > 0) {
    out->overestimate = sum.overestimate / static_cast<double>(sum.estimated_rows);
  }
  if (mass.empty()) {
    return;
  }
  out->mass_median = Percentile(mass, 0.5);
  out->mass_p5 = Percentile(mass, 0.05);
  out->selected_mass_median = Percentile(selected_mass, 0.5);
}

}  // namespace

const PolicySummary* ForcedSummary::Find(PolicyRole role,
                                         const std::string& algorithm,
                                         double budget) const {
  for (const PolicySummary& policy : policies) {
    if (policy.role == role && policy.algorithm == algorithm &&
        std::abs(policy.budget - budget) < 1e-9) {
      return &policy;
    }
  }
  return nullptr;
}

std::optional<double> ForcedSummary::KlOfText(const PolicySummary& policy,
                                              const std::string& text) const {
  std::vector<double> kls;
  for (size_t i = 0; i < window_texts.size(); ++i) {
    if (window_texts[i] == text) {
      kls.push_back(policy.window_kl[i]);
    }
  }
  return kls.empty() ? std::nullopt : std::optional<double>(Mean(kls));
}

ForcedSummary Summarise(const ForcedResult& result,
                        std::span<const EvalPolicy> policies,
                        std::span<const TextWindow> windows,
                        uint64_t seed) {
  ForcedSummary summary{
      .context_tokens = result.context_tokens,
      .num_windows = static_cast<uint32_t>(result.policies.front().windows.size()),
      .num_steps = result.num_steps};
  for (size_t i = 0; i < policies.size(); ++i) {
    PolicySummary& policy = summary.policies.emplace_back();
    policy.name = policies[i].Name();
    policy.role = policies[i].role;
    policy.algorithm = policies[i].algorithm;
    policy.budget = policies[i].budget;
    AddLogits(result.policies[i], result.num_steps, seed, &policy);
    AddSelections(result.policies[i].selections, &policy);
    if (const sparse::PrefillUse& use = result.policies[i].prefill; use.sparse_blocks > 0) {
      policy.attended_share = use.MeanShare();
    }
  }
  summary.dense_nll = summary.policies.front().nll;
  for (const TextWindow& window : windows) {
    summary.window_texts.push_back(window.source);
  }
  return summary;
}

TaskSummary Summarise(const TaskCell& cell, std::span<const EvalPolicy* const> policies) {
  TaskSummary summary{.family = cell.family,
                      .context_tokens = cell.context_tokens,
                      .num_samples = static_cast<uint32_t>(cell.control_nll.size()),
                      .control_nll = cell.MeanControlNll(),
                      .is_admissible = cell.IsAdmissible()};
  for (size_t i = 0; i < policies.size(); ++i) {
    TaskRow& row = summary.rows.emplace_back();
    row.policy = policies[i]->Name();
    row.role = policies[i]->role;
    row.algorithm = policies[i]->algorithm;
    row.budget = policies[i]->budget;
    row.nll = cell.MeanNll(i);
    row.string_score = cell.MeanString(i);
    row.retention = cell.Retention(i);
    uint32_t lost = 0;
    uint32_t won = 0;
    for (size_t s = 0; s < cell.control_nll.size(); ++s) {
      const SampleScore& dense = cell.policies.front()[s];
      const SampleScore& here = cell.policies[i][s];
      row.token_accuracy += here.token_accuracy / static_cast<double>(cell.control_nll.size());
      const bool dense_solved = dense.string_score >= kSolved;
      const bool solved = here.string_score >= kSolved;
      lost += dense_solved && !solved ? 1 : 0;
      won += solved && !dense_solved ? 1 : 0;
    }
    row.mcnemar_p = McNemar(lost, won);
  }
  return summary;
}

FreeSummary Summarise(const FreeResult& result, std::span<const EvalPolicy* const> policies) {
  FreeSummary summary{
      .context_tokens = result.context_tokens,
      .num_steps = result.num_steps,
      .num_windows = static_cast<uint32_t>(result.policies.front().divergence.size())};
  for (size_t i = 0; i < policies.size(); ++i) {
    const FreeScores& scores = result.policies[i];
    summary.rows.push_back({.policy = policies[i]->Name(),
                            .role = policies[i]->role,
                            .divergence_median = Percentile(scores.divergence, 0.5),
                            .distinct_3grams = Mean(scores.distinct_3grams),
                            .longest_repeat = Mean(scores.longest_repeat)});
  }
  return summary;
}

}  // namespace spindle::eval
