#include "eval/step_times.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "eval/statistics.h"

namespace spindle::eval {
namespace {

constexpr double kMedian = 0.5;

// Seconds of a step on forks of the contexts; `policy` null: dense. The first steps, which build
// indexes and warm caches, do not count.
absl::StatusOr<double> TimeRound(EvalModel& model,
                                 std::span<const SequenceId> contexts,
                                 const sparse::SparsePolicy* policy,
                                 std::span<const TextWindow> windows,
                                 uint32_t num_steps,
                                 const Clock& clock) {
  SPINDLE_ASSIGN_OR_RETURN(const ForkGroup group, ForkGroup::Create(model, contexts));
  std::vector<Continuation> step;
  for (const SequenceId fork : group.forks()) {
    step.push_back({.sequence = fork, .tokens = {}, .policy = policy});
  }
  TimePoint start;
  for (uint32_t i = 0; i < kWarmUpSteps + num_steps; ++i) {
    if (i == kWarmUpSteps) {
      start = clock.Now();
    }
    for (size_t s = 0; s < step.size(); ++s) {
      step[s].tokens = std::span(windows[s].tokens).subspan(model.NumTokens(step[s].sequence), 1);
    }
    SPINDLE_RETURN_IF_ERROR(model.Append(step).status());
  }
  return ToSeconds(clock.Now() - start) / num_steps;
}

absl::StatusOr<StepTimes> TimeContext(EvalModel& model,
                                      const sparse::SparsePolicy& policy,
                                      std::span<const SequenceId> contexts,
                                      std::span<const TextWindow> windows,
                                      const StepTimesOptions& options,
                                      const Clock& clock) {
  std::vector<double> dense;
  std::vector<double> sparse;
  std::vector<double> ratios;
  for (uint32_t round = 0; round < options.num_rounds; ++round) {
    // Whoever is first may find other caches, so they take turns at that, too.
    for (const bool is_dense : {round % 2 == 0, round % 2 != 0}) {
      SPINDLE_ASSIGN_OR_RETURN(
          const double seconds,
          TimeRound(
              model, contexts, is_dense ? nullptr : &policy, windows, options.num_steps, clock));
      (is_dense ? dense : sparse).push_back(seconds);
    }
    ratios.push_back(dense.back() / sparse.back());
  }
  return StepTimes{.context_tokens = model.NumTokens(contexts.front()),
                   .dense_seconds = Percentile(dense, kMedian),
                   .policy_seconds = Percentile(sparse, kMedian),
                   .speedup = Percentile(ratios, kMedian)};
}

}  // namespace

absl::StatusOr<std::vector<StepTimes>> TimeSteps(EvalModel& model,
                                                 const sparse::SparsePolicy& policy,
                                                 std::span<const TextWindow> windows,
                                                 const StepTimesOptions& options,
                                                 const Clock& clock,
                                                 const std::function<void(double)>& progress) {
  std::vector<StepTimes> times;
  for (const uint32_t context : options.contexts) {
    progress(static_cast<double>(times.size()) / static_cast<double>(options.contexts.size()));
    ContextGroup parents(model);
    for (const TextWindow& window : windows) {
      SPINDLE_RETURN_IF_ERROR(parents.Add(std::span(window.tokens).first(context)).status());
    }
    SPINDLE_ASSIGN_OR_RETURN(
        const StepTimes measured,
        TimeContext(model, policy, parents.sequences(), windows, options, clock));
    times.push_back(measured);
  }
  return times;
}

std::optional<uint32_t> Crossover(std::span<const StepTimes> times) {
  const auto slower =
      std::find_if(times.rbegin(), times.rend(), [](const StepTimes& t) { return t.speedup < 1; });
  if (slower == times.rbegin()) {
    return std::nullopt;
  }
  if (slower == times.rend()) {
    return times.front().context_tokens;
  }
  const StepTimes& below = *slower;
  const StepTimes& above = *std::prev(slower);
  const double share = (1 - below.speedup) / (above.speedup - below.speedup);
  return below.context_tokens +
         static_cast<uint32_t>(std::ceil(share * (above.context_tokens - below.context_tokens)));
}

}  // namespace spindle::eval
