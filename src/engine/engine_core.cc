#include "engine/engine_core.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "engine/end_cause.h"

namespace spindle::engine {
namespace {

// Alternatives per token that the API can ask for.
constexpr uint32_t kMaxAlternatives = 128;
constexpr Duration kDiskPublishInterval = std::chrono::milliseconds(100);

void CopyAlternatives(const sampling::Scored& scored, StreamEvent* event) {
  event->logprob = scored.logprob;
  event->top.reserve(scored.top.size());
  for (const sampling::ScoredLogprob& each : scored.top) {
    event->top.push_back({each.token, each.logprob});
  }
}

}  // namespace

EngineCore::EngineCore(const Parts& parts)
    : parts_(parts),
      disk_(parts.disk, parts.throughput),
      fast_(parts.fast, parts.store.geometry(), parts.metrics.fast),
      lifecycle_({parts.options,
                  parts.store,
                  disk_,
                  fast_,
                  parts.trace == nullptr ? nullptr : &parts.trace->requests(),
                  parts.metrics,
                  parts.inbox,
                  parts.throughput,
                  parts.end_tokens,
                  parts.runner.config().vocab_size}),
      planner_(parts.options, parts.metrics, parts.store, fast_, lifecycle_),
      sampler_(parts.kernels, parts.runner.config().vocab_size, kMaxAlternatives) {}

absl::Status EngineCore::Reserve() {
  const EngineOptions& options = parts_.options;
  const StepBounds step = StepBoundsOf(options, parts_.runner.config().max_model_len);
  batch_.Reserve(step.max_rows, step.max_logit_rows, options.max_num_seqs);
  return parts_.runner.Reserve(step.max_rows, step.max_logit_rows);
}

EngineCore::Outcome EngineCore::Step() {
  const TimePoint start = parts_.clock.Now();
  ReadMail(start);
  disk_.Advance();
  EndExpired(start);
  planner_.Plan(start, &batch_);
  bool worked = !batch_.empty();
  if (worked) {
    fast_.BeginStep(lifecycle_.running());
    RunBatch(start);
    fast_.EndStep(lifecycle_.running(), parts_.runner.fast_counters(), parts_.clock.Now());
  } else {
    worked = planner_.BreakDeadlock(start);
  }
  lifecycle_.Collect();
  Publish(parts_.clock.Now(), !worked);
  return {worked, worked ? std::nullopt : NextLimit()};
}

void EngineCore::ReadMail(TimePoint now) {
  parts_.inbox.Drain(&mail_);
  for (std::unique_ptr<Request>& request : mail_.submissions) {
    lifecycle_.Add(std::move(request));
  }
  for (const std::shared_ptr<StreamState>& stream : mail_.attention) {
    Attend(*stream, now);
  }
}

void EngineCore::Attend(StreamState& stream, TimePoint now) {
  const std::optional<CancelCause> cancel = stream.TakeWishes(&stop_after_);
  if (stream.request != nullptr && stream.request->displaced.load()) {
    lifecycle_.End(*stream.request, EndCause::kDisplaced, now);
  }
  for (uint32_t index = 0; index < stop_after_.size() && stream.request != nullptr; ++index) {
    Choice& choice = stream.request->choices[index];
    if (stop_after_[index].has_value() && !choice.stop_after.has_value()) {
      lifecycle_.StopChoice(choice, *stop_after_[index], now);
    }
  }
  if (cancel.has_value() && stream.request != nullptr) {
    const EndCause cause = EndCauseOf(*cancel);
    lifecycle_.End(*stream.request, cause, now);
  }
}

void EngineCore::EndExpired(TimePoint now) {
  const auto requests = lifecycle_.requests();
  // Ending a request removes it, so backwards.
  for (size_t i = requests.size(); i-- > 0;) {
    EndIfExpired(*lifecycle_.requests()[i], now);
  }
}

void EngineCore::EndIfExpired(Request& request, TimePoint now) {
  const auto passed = [now](const std::optional<TimePoint>& limit) {
    return limit.has_value() && now >= *limit;
  };
  EndCause cause = EndCause::kCompleted;
  if (passed(request.deadline)) {
    cause = EndCause::kDeadline;
  } else if (passed(request.time_limit)) {
    cause = EndCause::kRequestTimeout;
  } else if (!request.started() && passed(request.queue_limit)) {
    cause = EndCause::kQueueTimeout;
  } else if (request.stalled_since.has_value() &&
             now - *request.stalled_since >= parts_.options.stream_stall_timeout) {
    cause = EndCause::kSlowReader;
  } else {
    return;
  }
  lifecycle_.End(request, cause, now);
}

std::optional<TimePoint> EngineCore::NextLimit() const {
  std::optional<TimePoint> next;
  const auto consider = [&next](const std::optional<TimePoint>& limit) {
    if (limit.has_value() && (!next.has_value() || *limit < *next)) {
      next = limit;
    }
  };
  for (const std::unique_ptr<Request>& request : lifecycle_.requests()) {
    consider(request->deadline);
    consider(request->time_limit);
    if (!request->started()) {
      consider(request->queue_limit);
    }
    if (request->stalled_since.has_value()) {
      consider(*request->stalled_since + parts_.options.stream_stall_timeout);
    }
  }
  consider(disk_.NextAdvance());
  return next;
}

void EngineCore::RunBatch(TimePoint planned_since) {
  const EngineMetrics& metrics = parts_.metrics;
  const TimePoint planned = parts_.clock.Now();
  audit_.Plan(batch_);
  if (!audit_.empty()) {
    if (const absl::Status status = audit_.Run(parts_.runner); !status.ok()) {
      FailBatch(status, parts_.clock.Now());
      return;
    }
  }
  const TimePoint forward_start = parts_.clock.Now();
  const absl::StatusOr<std::span<const float>> logits = parts_.runner.Forward(batch_.Input());
  const TimePoint forward_end = parts_.clock.Now();
  if (!logits.ok()) {
    FailBatch(logits.status(), forward_end);
    return;
  }
  PublishWork();
  for (size_t i = 0; i < batch_.entries().size(); ++i) {
    const BatchEntry& entry = batch_.entries()[i];
    Audit(i, *logits);
    // A choice whose request has ended within this step has nothing to update.
    if (entry.choice->state == ChoiceState::kRunning) {
      Update(entry, *logits, forward_end);
    }
  }
  parts_.throughput.ObservePrefill(batch_.num_prefill_rows(), forward_end - forward_start);
  metrics.plan_seconds.Observe(ToSeconds(planned - planned_since));
  metrics.forward_seconds.Observe(ToSeconds(forward_end - forward_start));
  metrics.sample_seconds.Observe(ToSeconds(parts_.clock.Now() - forward_end));
  metrics.iteration_tokens.Observe(batch_.num_rows());
  metrics.batch_tokens.Observe(batch_.num_rows());
  metrics.batch_sequences.Observe(static_cast<double>(batch_.entries().size()));
}

void EngineCore::FailBatch(const absl::Status& status, TimePoint now) {
  log::Error("step_failed", {{"status", status.ToString()}, {"rows", batch_.num_rows()}});
  for (const BatchEntry& entry : batch_.entries()) {
    if (entry.choice->state == ChoiceState::kRunning) {
      lifecycle_.End(*entry.choice->request, EndCause::kInternal, now);
    }
  }
}

std::span<const float> EngineCore::LogitRow(std::span<const float> logits, uint32_t row) const {
  const size_t vocab_size = parts_.runner.config().vocab_size;
  return logits.subspan(row * vocab_size, vocab_size);
}

void EngineCore::Update(const BatchEntry& entry, std::span<const float> logits, TimePoint now) {
  Choice& choice = *entry.choice;
  Request& request = *choice.request;
  lifecycle_.Commit(choice, entry.num_rows);
  const SparseDecode& decode = *request.spec.decode;
  if (decode.policy != nullptr && !choice.in_prefill) {
    parts_.metrics.sparse.ObserveRow(decode.algorithm, choice.use);
  }
  PushPromptLogprobs(entry, logits);
  if (choice.in_prefill) {
    PushProgress(request, choice.committed);
  }
  if (!entry.completes) {
    return;
  }
  if (request.spec.sampling.max_tokens == 0) {
    for (Choice& each : request.choices) {
      lifecycle_.FinishChoice(each, FinishReason::kLength, -1, now);
    }
    return;
  }
  const std::span<const float> row = LogitRow(logits, entry.first_logit + entry.num_logits - 1);
  if (choice.index > 0 || choice.num_generated > 0) {
    SampleNext(choice, row, now);
    return;
  }
  // The prompt is computed: all choices that find room draw their first token from this row.
  lifecycle_.ForkChoices(choice);
  for (Choice& each : request.choices) {
    if (each.state == ChoiceState::kRunning && each.num_generated == 0 && each.pending() == 0) {
      SampleNext(each, row, now);
    }
  }
}

void EngineCore::Audit(size_t entry, std::span<const float> logits) {
  const BatchEntry& audited = batch_.entries()[entry];
  if (audited.num_logits == 0) {
    return;
  }
  Divergence divergence;
  const uint32_t last = audited.first_logit + audited.num_logits - 1;
  if (audit_.Observe(entry, LogitRow(logits, last), &divergence)) {
    Request& request = *audited.choice->request;
    request.stats.audit.Add(divergence.kl, divergence.max_logit_diff, divergence.same_top);
    parts_.metrics.sparse.ObserveAudit(request.spec.decode->algorithm, divergence.kl);
  }
}

void EngineCore::PushPromptLogprobs(const BatchEntry& entry, std::span<const float> logits) {
  Request& request = *entry.choice->request;
  const std::optional<uint32_t>& wanted = request.spec.sampling.prompt_logprobs;
  if (!wanted.has_value() || request.num_prompt_logprobs == request.prompt_size()) {
    return;
  }
  const auto push = [&request](StreamEvent&& event) {
    event.kind = StreamEvent::Kind::kPromptLogprob;
    event.token = request.spec.prompt[request.num_prompt_logprobs++];
    request.stream->Push(std::move(event));
  };
  if (request.num_prompt_logprobs == 0) {
    StreamEvent event;
    event.logprob = std::numeric_limits<float>::quiet_NaN();
    push(std::move(event));
  }
  const bool samples = entry.completes && request.spec.sampling.max_tokens > 0;
  const uint32_t end = entry.first_logit + entry.num_logits - (samples ? 1 : 0);
  for (uint32_t row = entry.first_logit; row < end; ++row) {
    StreamEvent event;
    CopyAlternatives(
        sampler_.Score(
            LogitRow(logits, row), request.spec.prompt[request.num_prompt_logprobs], *wanted),
        &event);
    push(std::move(event));
  }
}

void EngineCore::PushProgress(Request& request, uint32_t committed) {
  const uint32_t computed = std::min(committed, request.prompt_size());
  if (!request.spec.report_progress || computed <= request.computed_prompt_tokens) {
    return;
  }
  request.computed_prompt_tokens = computed;
  // Progress is worth nothing to a reader who is behind.
  if (request.stream->Room() > request.num_choices()) {
    StreamEvent event;
    event.kind = StreamEvent::Kind::kPrefill;
    event.processed = computed;
    event.stats = request.stats;
    request.stream->Push(std::move(event));
  }
}

void EngineCore::SampleNext(Choice& choice, std::span<const float> row, TimePoint now) {
  Request& request = *choice.request;
  const absl::StatusOr<sampling::Scored> scored =
      sampler_.Sample(*choice.sampler, choice.history.size(), row);
  if (!scored.ok()) {
    const bool banned = absl::IsInvalidArgument(scored.status());
    if (!banned) {
      log::Error("sampling_failed",
                 {{"req", request.spec.id}, {"status", scored.status().ToString()}});
    }
    lifecycle_.End(request, banned ? EndCause::kNoTokenAllowed : EndCause::kInternal, now);
    return;
  }
  StreamEvent event;
  event.token = scored->token;
  if (request.spec.sampling.logprobs.has_value()) {
    CopyAlternatives(*scored, &event);
  }
  lifecycle_.AddToken(choice, std::move(event), now);
}

void EngineCore::EndAll(EndCause cause) {
  const TimePoint now = parts_.clock.Now();
  ReadMail(now);
  while (!lifecycle_.requests().empty()) {
    lifecycle_.End(*lifecycle_.requests().back(), cause, now);
  }
  lifecycle_.Collect();
  Publish(now, /*idle=*/true);
}

void EngineCore::Publish(TimePoint now, bool idle) {
  Snapshot snapshot;
  snapshot.running = static_cast<uint32_t>(lifecycle_.running().size());
  for (const Choice* choice : lifecycle_.waiting()) {
    snapshot.preempted += choice->request->started() ? 1U : 0U;
    const TimePoint since = choice->request->submitted;
    if (!snapshot.oldest_waiting.has_value() || since < *snapshot.oldest_waiting) {
      snapshot.oldest_waiting = since;
    }
  }
  PublishWork();
  {
    MutexLock lock(snapshot_mutex_);
    snapshot_ = snapshot;
  }
  const Inbox::Waiting waiting = parts_.inbox.waiting();
  StepLoad load;
  load.running = snapshot.running;
  const uint32_t num_waiting = waiting.requests + snapshot.preempted;
  load.waiting_deferred = std::min(planner_.num_deferred(), num_waiting);
  load.waiting_capacity = num_waiting - load.waiting_deferred;
  load.waiting_tokens = waiting.tokens;
  if (snapshot.oldest_waiting.has_value()) {
    load.oldest_wait_seconds = ToSeconds(now - *snapshot.oldest_waiting);
  }
  parts_.metrics.Publish(load, parts_.store.Stats());
  // Copying the statistics of the disk takes about as long as a small part of a step.
  if (parts_.disk != nullptr && (idle || now - disk_published_ >= kDiskPublishInterval)) {
    disk_published_ = now;
    parts_.metrics.PublishDisk(parts_.disk->Stats());
  }
}

void EngineCore::PublishWork() {
  parts_.metrics.sparse.PublishIndexed(parts_.runner.indexed_tokens());
  if (parts_.trace != nullptr) {
    parts_.metrics.trace.Publish(parts_.trace->Stats());
  }
  if (parts_.fast.tier == nullptr) {
    return;
  }
  const kv::FastTier& tier = *parts_.fast.tier;
  const uint64_t frame_bytes = tier.pool().stride_bytes();
  const uint64_t unused = tier.num_free_frames() * frame_bytes;
  const uint64_t indexes = fast_.index_bytes();
  const FastLoad load = {.capacity_bytes = tier.pool().num_frames() * frame_bytes,
                         .free_bytes = unused - std::min(unused, indexes),
                         .index_bytes = indexes,
                         .is_emulated = parts_.fast.link != nullptr,
                         .counters = parts_.runner.fast_counters()};
  parts_.metrics.fast.Publish(load);
  MutexLock lock(snapshot_mutex_);
  fast_load_ = load;
}

EngineLoad EngineCore::Load() const {
  Snapshot snapshot;
  EngineLoad load{};
  {
    MutexLock lock(snapshot_mutex_);
    snapshot = snapshot_;
    load.fast = fast_load_;
  }
  const Inbox::Waiting waiting = parts_.inbox.waiting();
  load.running = snapshot.running;
  load.waiting = waiting.requests + snapshot.preempted;
  load.waiting_tokens = waiting.tokens;
  if (snapshot.oldest_waiting.has_value()) {
    load.oldest_wait = std::chrono::duration_cast<std::chrono::milliseconds>(
        parts_.clock.Now() - *snapshot.oldest_waiting);
  }
  load.kv = parts_.store.Stats();
  if (parts_.disk != nullptr) {
    load.disk = parts_.disk->Stats();
  }
  load.prefix = parts_.metrics.kv.Totals();
  return load;
}

absl::Status EngineCore::CheckIntegrity() const {
  SPINDLE_RETURN_IF_ERROR(lifecycle_.CheckIntegrity());
  return parts_.store.CheckIntegrity();
}

}  // namespace spindle::engine
