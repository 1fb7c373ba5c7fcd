// Frames of the fast tier for the running choices: who may start, how many frames each has, and who
// takes part in a step (kv/fast/budget.h, step_composer.h, thrash_controller.h). Sizes follow
// measured needs, gradually; pages beyond a choice's frames are streamed, so nothing here changes a
// result.
//
// Dense choices need no frames to run: more frames save them copies, one page per frame and step.
// Choices with an algorithm keep at least their floor: mandatory pages, and as many again (or
// fewer, where the request asks for a smaller buffer or has a cap). Their indexes are part of what
// they need of the fast tier, in full for each request, whoever shares them: so many frames stay
// unused. Thread-safety: engine-thread only, between steps. Borrows the tier and its recorder;
// without a tier every call does nothing and everything fits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/fast_metrics.h"
#include "engine/request.h"
#include "kv/fast/budget.h"
#include "kv/fast/fast_tier.h"
#include "kv/fast/step_composer.h"
#include "kv/fast/thrash_controller.h"
#include "kv/kv_geometry.h"
#include "sparse/attention_runtime.h"
#include "sparse/selected_pages.h"

namespace spindle::engine {

class FastBudget {
 public:
  FastBudget(const sparse::FastMemory& fast,
             const kv::KvGeometry& geometry,
             const FastMetrics& metrics);

  // The floors of `running` and of `choice`, which waits, fit together.
  [[nodiscard]] bool Fits(const Choice& choice, std::span<Choice* const> running) const;

  // The choice begins to run, with what is free up to its target. ERRORS: kResourceExhausted
  // (metadata; nothing changed).
  [[nodiscard]] absl::Status Open(Choice& choice);

  // A fork begins with its parent's pages. REQUIRES: both are open.
  void Adopt(const Choice& child, const Choice& parent);

  // The choice has stopped running.
  void Close(Choice& choice);

  // Takes out of `decodes` (most urgent first) those that are paused and those whose pages would
  // not fit beside the others'; they keep their state and come first after a while.
  void Compose(std::vector<Choice*>* decodes);

  // Before a step: contexts may have grown, and sizes move towards what they should be.
  void BeginStep(std::span<Choice* const> running);

  // After a step: when pages only go back and forth over a busy link, a sequence is paused for a
  // while (at most one decision per step). `counters`: of all steps.
  void EndStep(std::span<Choice* const> running,
               const sparse::MirrorCounters& counters,
               TimePoint now);

  // Of the fast tier, that the indexes of running choices take.
  [[nodiscard]] uint64_t index_bytes() const { return index_frames_ * geometry_.page_bytes(); }

 private:
  void Pause(Choice& choice);
  void Resume(Choice& choice);
  // Tokens that count as indexed: a stripe ahead, so that an index that grows finds its place
  // empty.
  [[nodiscard]] static uint64_t IndexedTokens(const Choice& choice);
  // Index that the choice is charged for, or would be if it started now.
  [[nodiscard]] uint64_t IndexFrames(const Choice& choice) const;
  // The choice's index takes so many frames from now on.
  void ChargeIndex(Choice& choice, uint64_t frames);
  // The choice has nothing any more; the prompt's index passes to another of its request.
  void Release(Choice& choice);
  // For pages, beside the indexes of all that run.
  [[nodiscard]] uint64_t PageFrames() const;
  // The tier has given each group of the choice so many frames.
  void HasResized(Choice& choice, uint32_t frames);
  [[nodiscard]] sparse::FastPageIds PageIds(const Choice& choice) const;
  // Of the sequence as it is, or of the prompt.
  [[nodiscard]] static uint64_t NumTokens(const Choice& choice);
  [[nodiscard]] uint32_t NumPages(const Choice& choice) const;
  // Per group and step: as measured, or as the algorithm and its settings promise before that.
  [[nodiscard]] double MandatoryPages(const Choice& choice) const;
  [[nodiscard]] kv::BudgetBounds BoundsOf(const Choice& choice) const;
  [[nodiscard]] kv::BudgetRequest RequestOf(const Choice& choice) const;
  void Measure(Choice& choice) const;
  void Rebalance(std::span<Choice* const> running);
  // Lowers what `requests_` ask for until it fits: floors have grown beyond what there is.
  void ScaleDown();

  kv::FastTier* const tier_;
  const kv::EmulatedLink* const link_;
  kv::AccessRecorder* const recorder_;  // null: nothing is recorded
  const kv::KvGeometry geometry_;
  const FastMetrics& metrics_;
  const uint32_t num_groups_;
  const uint64_t capacity_frames_;  // without rings
  uint64_t index_frames_ = 0;       // of all that run
  uint32_t steps_to_rebalance_ = 0;
  kv::ThrashController thrash_{kv::ThrashOptions()};
  sparse::MirrorCounters seen_;  // at the last step's end
  Duration link_busy_{};
  TimePoint step_end_{};
  std::vector<Choice*> decoding_;
  std::vector<Choice*> sharing_;  // not paused
  std::vector<kv::ThrashRequest> thrash_requests_;
  std::vector<kv::BudgetRequest> requests_;
  std::vector<uint32_t> wanted_;
  std::vector<uint32_t> sizes_;
  std::vector<kv::StepCandidate> candidates_;
  std::vector<uint32_t> order_;
  std::vector<uint8_t> takes_part_;
};

}  // namespace spindle::engine
