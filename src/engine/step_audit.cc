#include "engine/step_audit.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"

namespace spindle::engine {
namespace {

struct LogSum {
  double max;
  double log_sum;  // ln Σ exp(logit - max)

  [[nodiscard]] double LogProbability(float logit) const { return logit - max - log_sum; }
};

LogSum LogSumOf(std::span<const float> logits) {
  const double max = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(logit - max);
  }
  return {max, std::log(sum)};
}

bool IsDue(const BatchEntry& entry) {
  const Choice& choice = *entry.choice;
  const EngineRequest& spec = choice.request->spec;
  return spec.audit_every > 0 && spec.decode->policy != nullptr && !choice.in_prefill &&
         !spec.decode->policy->IsDenseAt(choice.committed + 1) && entry.completes &&
         entry.num_rows == 1 && choice.num_generated % spec.audit_every == 0;
}

}  // namespace

Divergence Compare(std::span<const float> dense, std::span<const float> sparse) {
  SPINDLE_CHECK(!dense.empty() && dense.size() == sparse.size());
  const LogSum p = LogSumOf(dense);
  const LogSum q = LogSumOf(sparse);
  Divergence result;
  for (size_t i = 0; i < dense.size(); ++i) {
    const double log_p = p.LogProbability(dense[i]);
    // A token that the standard rules out adds nothing.
    result.kl += std::exp(log_p) == 0 ? 0 : std::exp(log_p) * (log_p - q.LogProbability(sparse[i]));
    result.max_logit_diff =
        std::max(result.max_logit_diff, std::abs(double{dense[i]} - double{sparse[i]}));
  }
  result.same_top = std::ranges::max_element(dense) - dense.begin() ==
                    std::ranges::max_element(sparse) - sparse.begin();
  return result;
}

void StepAudit::Plan(const StepBatch& batch) {
  entries_.clear();
  tokens_.clear();
  sequences_.clear();
  logit_rows_.clear();
  next_ = 0;
  const model::StepInput input = batch.Input();
  for (size_t i = 0; i < batch.entries().size(); ++i) {
    if (!IsDue(batch.entries()[i])) {
      continue;
    }
    sparse::SequenceRows rows = input.sequences[i];
    const auto row = static_cast<uint32_t>(tokens_.size());
    tokens_.push_back(input.tokens[rows.row_begin]);
    rows.row_begin = row;
    rows.policy = nullptr;
    rows.kept = nullptr;
    rows.use = nullptr;
    sequences_.push_back(rows);
    logit_rows_.push_back(row);
    entries_.push_back(i);
  }
}

absl::Status StepAudit::Run(StepRunner& runner) {
  SPINDLE_ASSIGN_OR_RETURN(const std::span<const float> logits,
                           runner.Forward({tokens_, sequences_, logit_rows_}));
  logits_.assign(logits.begin(), logits.end());
  return absl::OkStatus();
}

bool StepAudit::Observe(size_t entry, std::span<const float> logits, Divergence* out) {
  if (next_ == entries_.size() || entries_[next_] != entry) {
    return false;
  }
  *out = Compare(std::span(logits_).subspan(next_ * logits.size(), logits.size()), logits);
  ++next_;
  return true;
}

}  // namespace spindle::engine
