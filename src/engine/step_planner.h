// Decides what a step computes: makes room for the decoding sequences (preempting if it must),
// admits waiting ones, divides the rows. Rules are those of scheduler_policy.h; transitions are
// carried out by RequestLifecycle. Thread-safety: engine-thread only. Borrows both.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/engine_metrics.h"
#include "engine/engine_options.h"
#include "engine/request_lifecycle.h"
#include "engine/scheduler_policy.h"
#include "engine/step_batch.h"
#include "kv/kv_store.h"

namespace spindle::engine {

class StepPlanner {
 public:
  StepPlanner(const EngineOptions& options,
              const EngineMetrics& metrics,
              kv::KvStore& store,
              FastBudget& fast,
              RequestLifecycle& lifecycle);

  // Fills the batch for the next step.
  void Plan(TimePoint now, StepBatch* batch);

  // After a plan without rows: if memory is the reason, frees some by preempting one sequence, or
  // fails exactly one request. True when something changed, so that planning again makes sense.
  [[nodiscard]] bool BreakDeadlock(TimePoint now);

  // Of the last plan: waiting choices held back on purpose (a twin computes their prefix, or their
  // reader is slow).
  [[nodiscard]] uint32_t num_deferred() const { return num_deferred_; }

 private:
  struct Candidate {
    Choice* choice;
    WaitingRank rank;
  };

  // The stream has room for what a step may produce; else the request pauses.
  [[nodiscard]] bool HasReader(Request& request, TimePoint now);
  // Rows from position `first` on that may run now: bounded when prompt tokens are scored, and
  // where rows choose what they attend to. REQUIRES: HasReader.
  [[nodiscard]] uint32_t MaxChunk(const Request& request, uint32_t first) const;
  void Place(Choice& choice, uint32_t pending, uint32_t max_chunk, RowBudget* rows);
  void FindRunnable(TimePoint now);
  void MakeRoom();
  // False when the choice itself lost its memory.
  bool GrowOrPreempt(Choice& choice);
  bool ReclaimFromDisk();
  void PlacePrefills(RowBudget* rows);
  void Admit(TimePoint now, RowBudget* rows);
  void SortCandidates(TimePoint now);
  // True when the choice was admitted; `*fits` tells whether memory was the obstacle.
  bool TryAdmit(Choice& choice, TimePoint now, RowBudget* rows, bool* fits);
  [[nodiscard]] bool HasTwinInPrefill(const Choice& choice, uint32_t num_cached) const;
  [[nodiscard]] MemoryView Memory() const;
  [[nodiscard]] bool FinishesEarlier(const Choice& choice, const Choice& head) const;
  void Compose(const RowBudget& rows, StepBatch* batch);
  void AddPrefill(Choice& choice, uint32_t num_rows, StepBatch* batch);

  struct Placed {
    Choice* choice;
    std::optional<uint32_t> num_rows;  // nothing: the long one
  };

  const EngineOptions& options_;
  const EngineMetrics& metrics_;
  kv::KvStore& store_;
  FastBudget& fast_;
  RequestLifecycle& lifecycle_;

  std::vector<Choice*> decodes_;
  std::vector<Choice*> prefills_;
  std::vector<Choice*> starved_;  // want memory that is not there
  std::vector<Placed> placed_;
  std::vector<Candidate> candidates_;
  std::vector<VictimView> victims_;
  Choice* refused_ = nullptr;  // cannot start although nothing runs
  uint32_t replay_rows_ = 0;
  uint32_t prompt_logit_rows_ = 0;
  uint32_t num_deferred_ = 0;
};

}  // namespace spindle::engine
