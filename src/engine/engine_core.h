// The step loop: read mail → expire → plan → forward → sample and update → publish. Runs on
// whichever thread calls Step; Engine owns that thread, tests call it directly.
// Thread-safety: engine-thread only, except Load and SinceLastTick. Borrows everything in Parts.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "engine/disk_prefix.h"
#include "engine/engine.h"
#include "engine/engine_metrics.h"
#include "engine/engine_options.h"
#include "engine/fast_budget.h"
#include "engine/inbox.h"
#include "engine/request_lifecycle.h"
#include "engine/step_audit.h"
#include "engine/step_batch.h"
#include "engine/step_planner.h"
#include "engine/step_runner.h"
#include "engine/throughput.h"
#include "kv/kv_store.h"
#include "sampling/sampler.h"

namespace spindle::engine {

class EngineCore {
 public:
  struct Parts {
    const EngineOptions& options;
    StepRunner& runner;
    kv::KvStore& store;
    kv::DiskTier* disk;       // null: none
    sparse::FastMemory fast;  // no tier: attention reads in place
    kv::KvTrace* trace;       // null: none
    const kernels::KernelTable& kernels;
    std::span<const TokenId> end_tokens;
    EngineMetrics& metrics;
    Inbox& inbox;
    Throughput& throughput;
    const Clock& clock;
  };

  explicit EngineCore(const Parts& parts);
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  // Sizes of a step, reserved with the runner. ERRORS: kResourceExhausted.
  [[nodiscard]] absl::Status Reserve();

  struct Outcome {
    bool worked;                       // call again at once
    std::optional<TimePoint> wake_at;  // else: at mail, or at this time
  };

  Outcome Step();

  // Ends every request. Later Steps find nothing.
  void EndAll(EndCause cause);

  [[nodiscard]] absl::Status CheckIntegrity() const;

  // Thread-safe; at most one step old.
  [[nodiscard]] EngineLoad Load() const;

 private:
  void ReadMail(TimePoint now);
  void Attend(StreamState& stream, TimePoint now);
  void EndExpired(TimePoint now);
  // A limit of the request that has passed, if any.
  void EndIfExpired(Request& request, TimePoint now);
  [[nodiscard]] std::optional<TimePoint> NextLimit() const;
  void RunBatch(TimePoint planned_since);
  void FailBatch(const absl::Status& status, TimePoint now);
  void Update(const BatchEntry& entry, std::span<const float> logits, TimePoint now);
  // Of the batch's entry, if it is one of those that were computed densely as well.
  void Audit(size_t entry, std::span<const float> logits);
  void PushPromptLogprobs(const BatchEntry& entry, std::span<const float> logits);
  void PushProgress(Request& request, uint32_t committed);
  void SampleNext(Choice& choice, std::span<const float> row, TimePoint now);
  // `idle`: no step follows soon that would publish again.
  void Publish(TimePoint now, bool idle);
  // What the runner counts. Also before a step's tokens leave, so that whoever has read an answer
  // finds all its pages counted.
  void PublishWork();
  [[nodiscard]] std::span<const float> LogitRow(std::span<const float> logits, uint32_t row) const;

  Parts parts_;
  DiskPrefix disk_;
  FastBudget fast_;
  RequestLifecycle lifecycle_;
  StepPlanner planner_;
  sampling::Sampler sampler_;
  StepBatch batch_;
  StepAudit audit_;
  Inbox::Mail mail_;
  std::vector<std::optional<uint32_t>> stop_after_;  // scratch of Attend
  TimePoint disk_published_;

  struct Snapshot {
    uint32_t running = 0;
    uint32_t preempted = 0;
    std::optional<TimePoint> oldest_waiting;
  };

  mutable Mutex snapshot_mutex_;
  Snapshot snapshot_ SPINDLE_GUARDED_BY(snapshot_mutex_);
  std::optional<FastLoad> fast_load_ SPINDLE_GUARDED_BY(snapshot_mutex_);
};

}  // namespace spindle::engine
