#include "engine/step_audit.h"

#include <algorithm>
#include <cmath>

#include "base/logit_divergence.h"
#include "base/status_macros.h"

namespace spindle::engine {
namespace {

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
  Divergence result;
  result.kl = KlDivergence(dense, LogSumExp(dense), sparse, LogSumExp(sparse));
  for (size_t i = 0; i < dense.size(); ++i) {
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
    rows.prefill_use = nullptr;
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
