// Records what a server's fast tier does: which pages its groups select, which of them are
// resident, and how many frames each sequence has. Workers gather encoded records in buffers of
// their own; between steps the engine thread passes them on to a trace. A sequence's number in the
// trace is that of its cache set.
//
//   recorder.BeginStep();                         // engine thread
//   recorder.Append(set, first_page, end_page);   // for every sequence of the step
//   recorder.Select(worker, group, …);            // the worker that has the group, after its
//   Commit recorder.Resize(set, frames);                 // engine thread, between steps
//
// What a buffer, the trace's limit or its sink cannot take is dropped and counted, and the trace
// ends there. Nothing here blocks, and workers do not allocate.
// Thread-safety: Select by the worker of the number; all else on the engine thread between layers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/fast/fast_tier.h"
#include "kv/fast/group_plan.h"
#include "kv/trace/access_trace.h"

namespace spindle::kv {

class AccessRecorder {
 public:
  // `buffer_bytes`: of all workers together, for the records of one step; touched as needed.
  AccessRecorder(std::unique_ptr<AccessTraceWriter> writer,
                 uint32_t num_workers,
                 uint64_t buffer_bytes);
  ~AccessRecorder();
  AccessRecorder(const AccessRecorder&) = delete;
  AccessRecorder& operator=(const AccessRecorder&) = delete;

  // Selections from now on are those of the next step.
  void BeginStep();

  // Pages [page_begin, page_end) get the tokens of a decode step, or of a prefill chunk.
  void Append(CacheSetId set, uint32_t page_begin, uint32_t page_end);
  void Prefill(CacheSetId set, uint32_t page_begin, uint32_t page_end);

  // What FastTier was asked for: Resize, Adopt, Drop, Close.
  void Resize(CacheSetId set, uint32_t frames_per_group);
  void Fork(CacheSetId child, CacheSetId parent);
  void Pause(CacheSetId set);
  void End(CacheSetId set);

  // A plan of FastTier for `pages`, of which those without a load were resident.
  //   REQUIRES: at most kMaxRecordIds pages.
  void Select(uint32_t worker,
              const GroupRef& group,
              Caching caching,
              std::span<const uint32_t> pages,
              const GroupPlan& plan);

  // Passes on what is left and ends the trace. Call once, at the end.
  void Finish();

  // As of the last call on the engine thread.
  [[nodiscard]] uint64_t num_kept_records() const { return writer_->num_kept_records(); }

  [[nodiscard]] uint64_t num_dropped_records() const { return writer_->num_dropped_records(); }

 private:
  struct Worker;

  // Passes on what the workers have gathered.
  void Collect();
  void Record(CacheSetId set, AccessKind kind, std::span<const uint32_t> ids);

  const std::unique_ptr<AccessTraceWriter> writer_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<uint32_t> page_ids_;
  uint32_t step_ = 0;
  bool is_recording_ = true;  // workers read it during a layer
};

}  // namespace spindle::kv
