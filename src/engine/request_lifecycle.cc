#include "engine/request_lifecycle.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/prefix_key.h"
#include "base/status_macros.h"
#include "engine/end_cause.h"
#include "engine/scheduler_policy.h"

namespace spindle::engine {
namespace {

auto RunningKey(const Choice& choice) {
  return std::tuple(choice.request->priority_class, choice.request->arrival, choice.index);
}

FinishReason ReasonOf(EndCause cause) {
  switch (cause) {
    case EndCause::kOutOfMemory:
    case EndCause::kNoTokenAllowed:
    case EndCause::kInternal:
      return FinishReason::kError;
    default:
      return FinishReason::kAborted;
  }
}

CancelPhase PhaseOf(const Request& request) {
  if (!request.started()) {
    return CancelPhase::kQueued;
  }
  return request.first_token.has_value() ? CancelPhase::kDecode : CancelPhase::kPrefill;
}

}  // namespace

RequestLifecycle::RequestLifecycle(const Parts& parts) : parts_(parts) {
  running_.reserve(parts.options.max_num_seqs);
}

void RequestLifecycle::Add(std::unique_ptr<Request> request) {
  Request& added = *request;
  added.stream->request = &added;
  added.group = BudgetGroupId(added.arrival);
  if (!added.spec.sender.empty()) {
    added.account = &shares_.Join(added.spec.sender);
  }
  for (uint32_t index = 0; index < added.num_choices(); ++index) {
    Choice& choice = added.choices[index];
    choice.request = &added;
    choice.index = index;
    choice.state = index == 0 ? ChoiceState::kWaiting : ChoiceState::kBlocked;
  }
  if (parts_.recorder != nullptr) {
    added.trace_number = parts_.recorder->Begin({.at = added.submitted,
                                                 .input_tokens = added.prompt_size(),
                                                 .priority = added.spec.priority,
                                                 .tenant = added.spec.tenant,
                                                 .unit_ids = std::move(added.unit_ids)});
  }
  requests_.push_back(std::move(request));
  waiting_.push_back(&added.choices[0]);
}

uint32_t RequestLifecycle::MatchPrefix(Choice& choice) {
  return choice.request->methods.UsableMatch(parts_.store.MatchPrefix(UsableKeys(choice)));
}

bool RequestLifecycle::AwaitsDisk(Choice& choice, uint32_t num_cached) {
  const std::vector<TokenId>& tokens =
      choice.history.empty() ? choice.request->spec.prompt : choice.history;
  if (!choice.request->reads_cache) {
    return false;
  }
  const std::span<const Digest> keys = UsableKeys(choice);
  // What completes half a block that is there counts for both halves.
  const uint32_t num_host =
      choice.request->methods.HasSparseBlocks() ? parts_.store.MatchPrefix(keys) : num_cached;
  return parts_.disk.AwaitsLoad(choice, keys, tokens, num_host);
}

std::span<const Digest> RequestLifecycle::UsableKeys(Choice& choice) {
  Request& request = *choice.request;
  if (!request.seals || (!request.reads_cache && !choice.resumed)) {
    return {};
  }
  // Before its first admission a choice has no history of its own yet; its prompt is the request's.
  size_t tokens = choice.history.empty() ? request.prompt_size() : choice.history.size();
  if (request.spec.sampling.prompt_logprobs.has_value() && !choice.resumed) {
    return {};
  }
  if (request.spec.sampling.prompt_logprobs.has_value()) {
    // The row of the last reported prompt token is needed for the one after it.
    tokens = std::min<size_t>(tokens, std::max(request.num_prompt_logprobs, 1U));
  }
  const auto usable = static_cast<uint32_t>((tokens - 1) / kStripeTokens);
  if (choice.history.empty()) {
    return std::span(request.prompt_keys).first(usable);
  }
  ExtendKeys(choice, usable);
  return std::span(choice.keys).first(usable);
}

uint32_t RequestLifecycle::ReservedOutputOf(const Choice& choice) const {
  return ReservedOutput(choice.request->spec.sampling.max_tokens - choice.num_generated,
                        mean_output_tokens());
}

absl::Status RequestLifecycle::Start(Choice& choice,
                                     uint32_t num_shared,
                                     uint32_t reserved_stripes,
                                     TimePoint now) {
  Request& request = *choice.request;
  const uint32_t reserved_output = ReservedOutputOf(choice);
  if (choice.history.empty()) {
    choice.history = request.spec.prompt;
    choice.keys = request.prompt_keys;
  }
  const auto num_tokens = static_cast<uint32_t>(choice.history.size());
  // The step loop does not allocate while outputs are about as long as expected.
  choice.history.reserve(num_tokens + reserved_output);
  choice.keys.reserve(kv::KvStore::StripesFor(num_tokens + reserved_output));
  const SequenceId sequence =
      parts_.store.Open(request.group, std::span(choice.keys).first(num_shared), num_shared);
  const std::optional<kv::StripeLoader::Info> load = parts_.disk.LoadOf(choice);
  absl::Status status = parts_.store.Extend(sequence, num_tokens);
  const uint32_t num_tail = status.ok() ? parts_.disk.CopyTail(choice, sequence, num_shared) : 0;
  parts_.disk.EndLoad(choice);  // its stripes are shared by now, its tail is copied
  if (!status.ok()) {
    status = parts_.store.Extend(sequence, num_tokens);
  }
  if (status.ok()) {
    status = parts_.fast.Open(choice);
  }
  if (!status.ok()) {
    parts_.store.Close(sequence);
    return status;
  }
  if (!request.started() && !parts_.inbox.Leave(request)) {
    // Displaced meanwhile; the notice is on its way, so the request ends here.
    parts_.fast.Close(choice);
    parts_.store.Close(sequence);
    End(request, EndCause::kDisplaced, now);
    return absl::CancelledError("displaced");
  }
  if (!choice.sampler.has_value()) {
    choice.sampler.emplace(request.spec.sampling,
                           parts_.end_tokens,
                           choice.index,
                           request.spec.prompt,
                           parts_.vocab_size);
  }
  choice.sequence = sequence;
  choice.committed = num_shared * static_cast<uint32_t>(kStripeTokens) + num_tail;
  parts_.store.Commit(sequence, choice.committed);
  choice.num_sealed = num_shared;
  choice.num_stripes = kv::KvStore::StripesFor(num_tokens);
  choice.reserved_stripes = reserved_stripes;
  choice.in_prefill = true;
  std::erase(waiting_, &choice);
  EnterRunning(choice);
  CountAdmission(choice, load, now);
  if (!request.started()) {
    Started(request, choice.committed, now);
  }
  return absl::OkStatus();
}

void RequestLifecycle::CountAdmission(Choice& choice,
                                      const std::optional<kv::StripeLoader::Info>& load,
                                      TimePoint now) {
  Request& request = *choice.request;
  const KvMetrics& metrics = parts_.metrics.kv;
  const uint32_t disk_stripes =
      load.has_value() ? std::min(load->num_stripes, choice.num_sealed) : 0;
  if (choice.lost_tokens > choice.committed) {
    metrics.recomputed_after_preemption.Add(choice.lost_tokens - choice.committed);
  }
  choice.lost_tokens = 0;
  if (!request.started() && load.has_value()) {
    request.stats.load_time = now - load->started;
    const auto tail = choice.committed - choice.num_sealed * static_cast<uint32_t>(kStripeTokens);
    request.stats.disk_tokens = disk_stripes * static_cast<uint32_t>(kStripeTokens) + tail;
    request.stats.kv.disk_bytes = disk_stripes * parts_.store.geometry().stripe_bytes();
    parts_.metrics.disk_fetch_seconds.Observe(ToSeconds(request.stats.load_time));
    parts_.metrics.fetch_stall_seconds.Add(ToSeconds(request.stats.load_time));
  }
  if (request.reads_cache && !request.spec.sampling.prompt_logprobs.has_value()) {
    metrics.CountLookup({.num_tokens = static_cast<uint32_t>(choice.history.size()),
                         .num_stripes = static_cast<uint32_t>(UsableKeys(choice).size()),
                         .host_stripes = choice.num_sealed - disk_stripes,
                         .disk_stripes = disk_stripes,
                         .has_disk = parts_.disk.present(),
                         .resumes = choice.resumed});
  }
}

void RequestLifecycle::Started(Request& request, uint32_t cached_tokens, TimePoint now) {
  const EngineMetrics& metrics = parts_.metrics;
  if (request.account != nullptr) {
    shares_.Start(
        *request.account, request.priority_class, request.prompt_size() - cached_tokens, now);
  }
  request.admitted = now;
  request.stats.prompt_tokens = request.prompt_size();
  request.stats.cached_tokens = cached_tokens;
  request.stats.queue_time = now - request.submitted;
  request.stream->progress().cached_tokens.store(cached_tokens);
  StreamEvent event;
  event.kind = StreamEvent::Kind::kStarted;
  event.stats = request.stats;
  request.stream->Push(std::move(event));
  metrics.prompt_tokens.Add(request.prompt_size());
  metrics.prompt_tokens_cached.Add(cached_tokens);
  if (request.reads_cache && !request.spec.sampling.prompt_logprobs.has_value()) {
    metrics.prefix_queries.Add(request.prompt_size());
    const uint32_t host_tokens = cached_tokens - request.stats.disk_tokens;
    metrics.prefix_hits.Add(host_tokens);
    if (parts_.disk.present()) {
      metrics.external_queries.Add(request.prompt_size() - host_tokens);
      metrics.external_hits.Add(request.stats.disk_tokens);
    }
  }
  metrics.queue_seconds.Observe(ToSeconds(request.stats.queue_time));
  metrics.request_prompt_tokens.Observe(request.prompt_size());
  metrics.prefill_computed_tokens.Observe(request.prompt_size() - cached_tokens);
  metrics.params_n.Observe(request.num_choices());
  metrics.params_max_tokens.Observe(request.spec.sampling.max_tokens);
}

absl::Status RequestLifecycle::Grow(Choice& choice) {
  const auto num_tokens = static_cast<uint32_t>(choice.history.size());
  SPINDLE_RETURN_IF_ERROR(parts_.store.Extend(choice.sequence, num_tokens));
  choice.num_stripes = kv::KvStore::StripesFor(num_tokens);
  return absl::OkStatus();
}

void RequestLifecycle::Preempt(Choice& choice) {
  choice.lost_tokens = choice.committed;
  parts_.disk.Spill(choice);
  CloseSequence(choice);
  choice.state = ChoiceState::kWaiting;
  choice.resumed = true;
  ++choice.num_preemptions;
  ++choice.request->stats.preemptions;
  waiting_.push_back(&choice);
  parts_.metrics.preemptions.Add();
  const KvMetrics& kv = parts_.metrics.kv;
  (choice.spill.has_value() ? kv.preempted_to_spill : kv.preempted_to_recompute).Add();
}

void RequestLifecycle::ForkChoices(Choice& first) {
  first.reserved_stripes = kv::KvStore::StripesFor(first.history.size() + ReservedOutputOf(first));
  for (Choice& choice : first.request->choices) {
    if (choice.state != ChoiceState::kBlocked) {
      continue;
    }
    choice.resumed = true;
    if (!TryFork(first, choice)) {
      choice.state = ChoiceState::kWaiting;
      waiting_.push_back(&choice);
    }
  }
}

bool RequestLifecycle::TryFork(const Choice& source, Choice& choice) {
  if (running_.size() >= parts_.options.max_num_seqs) {
    return false;
  }
  const absl::StatusOr<SequenceId> sequence = parts_.store.Fork(source.sequence);
  if (!sequence.ok()) {
    return false;
  }
  choice.history.reserve(source.history.capacity());
  choice.history = source.history;
  if (!parts_.fast.Open(choice).ok()) {
    parts_.store.Close(*sequence);
    return false;
  }
  parts_.fast.Adopt(choice, source);
  const Request& request = *choice.request;
  choice.keys.reserve(source.keys.capacity());
  choice.keys = source.keys;
  choice.sampler.emplace(request.spec.sampling,
                         parts_.end_tokens,
                         choice.index,
                         request.spec.prompt,
                         parts_.vocab_size);
  choice.sequence = *sequence;
  choice.committed = source.committed;
  choice.num_sealed = source.num_sealed;
  choice.num_stripes = source.num_stripes;
  choice.reserved_stripes = source.reserved_stripes;
  choice.in_prefill = true;
  EnterRunning(choice);
  return true;
}

void RequestLifecycle::EnterRunning(Choice& choice) {
  choice.state = ChoiceState::kRunning;
  if (choice.request->spec.layer_stats) {
    choice.layers.resize(parts_.store.geometry().num_layers);
  }
  const auto place = std::ranges::upper_bound(
      running_, RunningKey(choice), {}, [](const Choice* other) { return RunningKey(*other); });
  running_.insert(place, &choice);
}

void RequestLifecycle::Commit(Choice& choice, uint32_t num_rows) {
  choice.committed += num_rows;
  parts_.store.Commit(choice.sequence, choice.committed);
  SealReady(choice);
}

void RequestLifecycle::ExtendKeys(Choice& choice, uint32_t num_stripes) {
  const Request& request = *choice.request;
  request.methods.ExtendKeys(request.key_root, choice.history, num_stripes, &choice.keys);
}

uint32_t RequestLifecycle::KeptTokens(const Choice& choice) const {
  const Request& request = *choice.request;
  if (choice.stop_after.has_value()) {
    return request.prompt_size() + *choice.stop_after;
  }
  if (request.spec.may_stop_early) {
    return request.prompt_size() + request.stream->ExaminedTokens(choice.index);
  }
  return static_cast<uint32_t>(choice.history.size());
}

void RequestLifecycle::SealReady(Choice& choice) {
  const auto full = static_cast<uint32_t>(choice.committed / kStripeTokens);
  if (!choice.request->seals || choice.num_sealed >= full) {
    return;
  }
  const auto kept = static_cast<uint32_t>(KeptTokens(choice) / kStripeTokens);
  const uint32_t end = std::min(full, kept);
  ExtendKeys(choice, end);
  for (; choice.num_sealed < end; ++choice.num_sealed) {
    parts_.store.Seal(choice.sequence, choice.num_sealed, choice.keys[choice.num_sealed]);
  }
}

void RequestLifecycle::AddToken(Choice& choice, StreamEvent&& event, TimePoint now) {
  Request& request = *choice.request;
  const SamplingParams& sampling = request.spec.sampling;
  const TokenId token = event.token;
  choice.in_prefill = false;
  choice.sampler->Accept(token);
  choice.history.push_back(token);
  ++choice.num_generated;
  parts_.metrics.generation_tokens.Add();
  if (request.account != nullptr) {
    FairShare::Generate(*request.account);
  }
  if (!request.first_token.has_value()) {
    request.first_token = now;
    request.stats.time_to_first_token = now - request.submitted;
    request.stats.prefill_time = now - *request.admitted;
    parts_.metrics.prefill_seconds.Observe(ToSeconds(request.stats.prefill_time));
  }
  if (choice.num_generated == 1 && choice.index == 0) {
    parts_.disk.OfferPrompt(choice);
  }
  const bool is_stop = choice.sampler->IsStop(token);
  event.kind = StreamEvent::Kind::kToken;
  event.choice = choice.index;
  event.is_end_token = is_stop;
  request.stream->Push(std::move(event));
  if (is_stop) {
    FinishChoice(choice, FinishReason::kStop, token, now);
  } else if (choice.num_generated >= sampling.max_tokens) {
    FinishChoice(choice, FinishReason::kLength, -1, now);
  }
}

void RequestLifecycle::StopChoice(Choice& choice, uint32_t num_tokens, TimePoint now) {
  SPINDLE_CHECK(num_tokens <= choice.num_generated);
  choice.stop_after = num_tokens;
  choice.num_generated = num_tokens;
  if (choice.state != ChoiceState::kFinished) {
    FinishChoice(choice, FinishReason::kStop, -1, now);
  }
}

void RequestLifecycle::FinishChoice(Choice& choice,
                                    FinishReason reason,
                                    TokenId stop_token,
                                    TimePoint now) {
  Request& request = *choice.request;
  RetireChoice(choice, reason, stop_token);
  parts_.throughput.ObserveCompletion(choice.num_generated, now - *request.admitted);
  if (request.num_finished == request.num_choices()) {
    End(request, EndCause::kCompleted, now);
  }
}

void RequestLifecycle::RetireChoice(Choice& choice, FinishReason reason, TokenId stop_token) {
  Request& request = *choice.request;
  request.stats.sparse += choice.use;
  sparse::AddLayers(choice.layers, &request.stats.layers);
  choice.layers = {};
  if (choice.prefill_use.sparse_blocks > 0) {
    request.stats.prefill += choice.prefill_use;
    parts_.metrics.sparse.ObservePrefill(request.spec.decode->PrefillName(), choice.prefill_use);
  }
  if (choice.state == ChoiceState::kRunning) {
    SealReady(choice);
    parts_.disk.OfferAll(choice);
    const kv::KvGeometry& geometry = parts_.store.geometry();
    const uint64_t bytes = choice.num_stripes * geometry.stripe_bytes();
    request.stats.kv.page_tokens = geometry.page_tokens();
    request.stats.kv.bytes += bytes;
    request.stats.kv.pages += bytes / geometry.page_bytes();
    if (reason != FinishReason::kError) {
      parts_.disk.Keep(choice, KeptTokens(choice));
    }
    CloseSequence(choice);
  } else {
    LeaveWaiting(choice);
  }
  choice.state = ChoiceState::kFinished;
  // The other choices may go on for long.
  choice.history = std::vector<TokenId>();
  choice.keys = std::vector<Digest>();
  choice.kept = {};
  choice.sampler.reset();
  ++request.num_finished;
  StreamEvent event;
  event.kind = StreamEvent::Kind::kFinished;
  event.choice = choice.index;
  event.reason = reason;
  event.stop_token = stop_token;
  request.stream->Push(std::move(event));
  parts_.metrics.success[static_cast<size_t>(reason)].Add();
  parts_.metrics.request_generation_tokens.Observe(choice.num_generated);
}

void RequestLifecycle::LeaveWaiting(Choice& choice) {
  parts_.disk.EndLoad(choice);
  std::erase(waiting_, &choice);
}

void RequestLifecycle::CloseSequence(Choice& choice) {
  if (choice.sequence != SequenceId()) {  // else the disk tier has taken it over
    parts_.store.Close(choice.sequence);
  }
  parts_.fast.Close(choice);
  std::erase(running_, &choice);
  choice.sequence = SequenceId();
  choice.committed = 0;
  choice.num_sealed = 0;
  choice.num_stripes = 0;
  choice.reserved_stripes = 0;
  choice.in_prefill = false;
}

void RequestLifecycle::End(Request& request, EndCause cause, TimePoint now) {
  parts_.metrics.CountCancel(PhaseOf(request), cause);
  uint32_t longest = 0;
  request.stats.generated_tokens = 0;
  for (Choice& choice : request.choices) {
    if (choice.state != ChoiceState::kFinished) {
      if (request.started()) {
        RetireChoice(choice, ReasonOf(cause), -1);
      } else {
        LeaveWaiting(choice);
        choice.state = ChoiceState::kFinished;
      }
    }
    request.stats.generated_tokens += choice.num_generated;
    longest = std::max(longest, choice.num_generated);
  }
  request.stats.longest_choice = longest;
  if (parts_.recorder != nullptr) {
    parts_.recorder->End(request.trace_number, request.stats.generated_tokens);
  }
  if (request.started()) {
    const EngineMetrics& metrics = parts_.metrics;
    metrics.request_max_generation_tokens.Observe(longest);
    metrics.inference_seconds.Observe(ToSeconds(now - *request.admitted));
    if (request.first_token.has_value()) {
      request.stats.decode_time = now - *request.first_token;
      metrics.decode_seconds.Observe(ToSeconds(request.stats.decode_time));
    }
  } else {
    request.stats.prompt_tokens = request.prompt_size();
    request.stats.queue_time = now - request.submitted;
    // False only for a displaced request, which the inbox has taken off its book already.
    static_cast<void>(parts_.inbox.Leave(request));
  }
  StreamEvent event;
  event.kind = StreamEvent::Kind::kDone;
  event.status = EndStatusOf(cause);
  event.cause = cause;
  request.stats.algorithm = request.spec.decode->algorithm;
  request.stats.prefill_method = request.spec.decode->PrefillName();
  event.stats = request.stats;
  if (cause == EndCause::kDisplaced) {
    const Inbox::Waiting waiting = parts_.inbox.waiting();
    event.retry_after = parts_.throughput.RetryAfter(waiting.requests, waiting.tokens);
  }
  request.stream->request = nullptr;
  if (request.account != nullptr) {
    shares_.Leave(*std::exchange(request.account, nullptr), request.started());
  }
  const auto owner = std::ranges::find(
      requests_, &request, [](const std::unique_ptr<Request>& each) { return each.get(); });
  SPINDLE_CHECK(owner != requests_.end());
  ended_.push_back(std::move(*owner));
  requests_.erase(owner);
  // Forgotten first: a client that has seen the end may reuse the id at once.
  parts_.inbox.Forget(request);
  request.stream->Push(std::move(event));
}

void RequestLifecycle::Collect() {
  ended_.clear();
  for (const std::unique_ptr<Request>& request : requests_) {
    RefreshProgress(*request);
  }
}

void RequestLifecycle::RefreshProgress(Request& request) {
  RequestProgress& progress = request.stream->progress();
  uint32_t generated = 0;
  uint64_t stripes = 0;
  bool runs = false;
  for (const Choice& choice : request.choices) {
    generated += choice.num_generated;
    stripes += choice.num_stripes;
    runs = runs || choice.state == ChoiceState::kRunning;
  }
  RequestPhase phase = RequestPhase::kDecode;
  if (!request.started()) {
    phase = RequestPhase::kQueued;
  } else if (request.stalled_since.has_value()) {
    phase = RequestPhase::kPaused;
  } else if (!runs) {
    phase = RequestPhase::kPreempted;
  } else if (!request.first_token.has_value()) {
    phase = RequestPhase::kPrefill;
  }
  progress.phase.store(phase, std::memory_order_relaxed);
  progress.generated_tokens.store(generated, std::memory_order_relaxed);
  progress.kv_bytes.store(stripes * parts_.store.geometry().stripe_bytes(),
                          std::memory_order_relaxed);
}

absl::Status RequestLifecycle::CheckIntegrity() const {
  size_t num_running = 0;
  size_t num_waiting = 0;
  uint64_t num_shared = 0;
  for (const std::unique_ptr<Request>& request : requests_) {
    num_shared += request->account != nullptr ? 1U : 0U;
    for (const Choice& choice : request->choices) {
      num_running += choice.state == ChoiceState::kRunning ? 1 : 0;
      num_waiting += choice.state == ChoiceState::kWaiting ? 1 : 0;
    }
  }
  if (num_running != running_.size() || num_waiting != waiting_.size()) {
    return absl::InternalError("lists of choices disagree with their states");
  }
  if (num_shared != shares_.num_requests()) {
    return absl::InternalError("accounts of senders disagree with the requests");
  }
  for (const Choice* choice : running_) {
    const kv::SequenceView view = parts_.store.View(choice->sequence);
    if (view.num_tokens != choice->committed || view.stripes.size() != choice->num_stripes) {
      return absl::InternalError("a running choice disagrees with its KV sequence");
    }
    if (choice->committed >= choice->history.size()) {
      return absl::InternalError("a running choice has nothing left to compute");
    }
  }
  if (running_.empty() && !parts_.disk.HoldsStripes() && parts_.store.Stats().owned_stripes != 0) {
    return absl::InternalError("stripes are owned while nothing runs");
  }
  return absl::OkStatus();
}

}  // namespace spindle::engine
