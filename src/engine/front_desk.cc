#include "engine/front_desk.h"

#include <algorithm>
#include <utility>

#include "base/prefix_key.h"
#include "base/status_macros.h"
#include "engine/request.h"
#include "engine/scheduler_policy.h"
#include "sparse/scratch_bytes.h"

namespace spindle::engine {

FrontDesk::FrontDesk(const EngineOptions& options,
                     const StepRunner& runner,
                     const kv::KvStore& store,
                     const kv::FastTier* fast,
                     const kv::RequestRecorder* recorder,
                     std::shared_ptr<Inbox> inbox,
                     const Throughput& throughput,
                     const Clock& clock)
    : options_(options),
      max_model_len_(runner.config().max_model_len),
      capacity_stripes_(store.Stats().capacity_stripes),
      stripe_bytes_(store.geometry().stripe_bytes()),
      fast_(LimitsOf(fast, store.geometry())),
      recorder_(recorder),
      inbox_(std::move(inbox)),
      throughput_(throughput),
      clock_(clock) {}

FrontDesk::FastLimits FrontDesk::LimitsOf(const kv::FastTier* fast,
                                          const kv::KvGeometry& geometry) {
  if (fast == nullptr) {
    return {};
  }
  return {.capacity_bytes = fast->num_free_frames() * geometry.page_bytes(), .geometry = geometry};
}

void FrontDesk::ResolveDefaults(EngineRequest* spec) const {
  spec->decode = spec->decode.value_or(options_.decode);
  spec->buffer_ratio = spec->buffer_ratio.value_or(options_.buffer_ratio);
  if (spec->fast_fraction > 0) {
    // At least a byte, so that a share too small is refused and not taken for no cap.
    spec->fast_bytes =
        std::max<uint64_t>(1,
                           static_cast<uint64_t>(static_cast<double>(spec->fast_fraction) *
                                                 static_cast<double>(fast_.capacity_bytes)));
  }
}

std::vector<uint64_t> FrontDesk::UnitIds(const Request& request, const EngineRequest& spec) const {
  const std::span<const TokenId> prompt = spec.prompt;
  const std::span<const TokenId> tail =
      prompt.subspan(prompt.size() / kStripeTokens * kStripeTokens);
  // Also where prefix caching is off, so that the trace tells what it would have shared.
  const Digest& root = spec.cache_prompt ? spec.prefix_root : request.key_root;
  if (request.seals && root == request.key_root) {
    return recorder_->UnitIds(root, request.prompt_keys, tail);
  }
  return recorder_->UnitIds(root, StripeKeys(root, prompt), tail);
}

Digest FrontDesk::PrivateRoot() {
  return Sha256().Field("private").Number(num_private_roots_.fetch_add(1)).Finish();
}

std::optional<SubmitRefusal> FrontDesk::CheckFeasible(const EngineRequest& spec) const {
  using Kind = SubmitRefusal::Kind;
  const uint64_t prompt = spec.prompt.size();
  const uint64_t context = max_model_len_;
  const SamplingParams& sampling = spec.sampling;
  if (prompt + sampling.max_tokens > context || (sampling.max_tokens > 0 && prompt >= context)) {
    return SubmitRefusal{Kind::kContextExceeded};
  }
  if (spec.deadline.has_value() && clock_.Now() >= *spec.deadline) {
    return SubmitRefusal{Kind::kDeadlinePassed};
  }
  if (const std::optional<SubmitRefusal> refusal = CheckFastBytes(spec); refusal.has_value()) {
    return refusal;
  }
  // Choices beyond the slots take turns, so they need no memory of their own.
  const uint64_t choices = std::min(sampling.num_choices, options_.max_num_seqs);
  const uint64_t shared = prompt / kStripeTokens;
  const uint64_t needed = shared + choices * (kv::KvStore::StripesFor(LeastTokens(spec)) - shared);
  if (needed > capacity_stripes_) {
    return SubmitRefusal{
        Kind::kNeverFits, needed * stripe_bytes_, capacity_stripes_ * stripe_bytes_};
  }
  return std::nullopt;
}

uint64_t FrontDesk::LeastTokens(const EngineRequest& spec) {
  const uint64_t output = spec.max_tokens_given ? uint64_t{spec.sampling.max_tokens}
                                                : std::min<uint64_t>(spec.sampling.max_tokens, 1);
  return spec.prompt.size() + output;
}

uint64_t FrontDesk::LeastFastBytes(const EngineRequest& spec, uint32_t num_choices) const {
  const sparse::SparsePolicy* const policy = spec.decode->policy.get();
  if (policy == nullptr) {
    return 0;
  }
  const kv::KvGeometry& geometry = fast_.geometry;
  return sparse::RequestIndexBytes(
             geometry, *policy, spec.prompt.size(), LeastTokens(spec), num_choices) +
         uint64_t{num_choices} * geometry.num_kv_heads * geometry.head_bytes();
}

// In place a cap is taken without effect, since nothing is copied.
std::optional<SubmitRefusal> FrontDesk::CheckFastBytes(const EngineRequest& spec) const {
  using Kind = SubmitRefusal::Kind;
  if (fast_.capacity_bytes == 0) {
    return std::nullopt;
  }
  if (spec.fast_bytes > fast_.capacity_bytes) {
    return SubmitRefusal{Kind::kFastBudgetTooLarge, spec.fast_bytes, fast_.capacity_bytes};
  }
  // Without a cap choices that do not fit beside each other take turns.
  const uint32_t together =
      spec.fast_bytes == 0 ? 1 : std::min(spec.sampling.num_choices, options_.max_num_seqs);
  const uint64_t least = LeastFastBytes(spec, together);
  if (least > fast_.capacity_bytes) {
    return SubmitRefusal{Kind::kFastNeverFits, least, fast_.capacity_bytes};
  }
  if (spec.fast_bytes > 0 && spec.fast_bytes < least) {
    return SubmitRefusal{Kind::kFastBudgetTooSmall, least, fast_.capacity_bytes};
  }
  return std::nullopt;
}

SubmitResult FrontDesk::Submit(EngineRequest spec) {
  SPINDLE_CHECK(!spec.prompt.empty() && spec.sampling.num_choices >= 1);
  ResolveDefaults(&spec);
  // Their rows come in smaller chunks than blocks.
  SPINDLE_CHECK(!spec.sampling.prompt_logprobs.has_value() || spec.decode->prefill == nullptr);
  if (const std::optional<SubmitRefusal> refusal = CheckFeasible(spec); refusal.has_value()) {
    return *refusal;
  }
  std::unique_ptr<Request> request = MakeRequest(std::move(spec));
  std::shared_ptr<StreamState> stream = request->stream;
  switch (inbox_->TrySubmit(request)) {
    case Inbox::Admission::kAccepted:
      return std::make_shared<StreamHandle>(std::move(stream));
    case Inbox::Admission::kClosed:
      return SubmitRefusal{SubmitRefusal::Kind::kShuttingDown};
    case Inbox::Admission::kQueueFull:
      break;
  }
  const Inbox::Waiting waiting = inbox_->waiting();
  SubmitRefusal refusal{SubmitRefusal::Kind::kQueueFull};
  refusal.retry_after = throughput_.RetryAfter(waiting.requests, waiting.tokens);
  return refusal;
}

std::unique_ptr<Request> FrontDesk::MakeRequest(EngineRequest spec) {
  auto request = std::make_unique<Request>();
  const TimePoint now = clock_.Now();
  const uint32_t num_choices = spec.sampling.num_choices;
  request->submitted = now;
  request->deadline = spec.deadline;
  if (options_.request_timeout > Duration::zero()) {
    request->time_limit = now + options_.request_timeout;
  }
  if (options_.queue_timeout > Duration::zero()) {
    request->queue_limit = now + options_.queue_timeout;
  }
  request->priority_class = PriorityClass(spec.priority);
  request->reads_cache = options_.prefix_cache && spec.cache_prompt;
  request->seals = request->reads_cache || num_choices > 1;
  request->key_root = request->reads_cache ? spec.prefix_root : PrivateRoot();
  const auto prompt_tokens = static_cast<uint32_t>(spec.prompt.size());
  request->methods = StripeMethods::Of(
      *spec.decode, prompt_tokens, spec.decode->prefill == nullptr ? kDenseMethod : PrivateRoot());
  if (request->seals) {
    request->methods.ExtendKeys(
        request->key_root, spec.prompt, prompt_tokens / kStripeTokens, &request->prompt_keys);
  }
  if (recorder_ != nullptr) {
    request->unit_ids = UnitIds(*request, spec);
  }
  request->choices.resize(num_choices);
  request->stream = std::make_shared<StreamState>(
      inbox_,
      StreamState::Info{
          spec.id, spec.key_name, spec.priority, static_cast<uint32_t>(spec.prompt.size()), now},
      num_choices,
      std::max(options_.stream_capacity_events, num_choices + 64));
  request->spec = std::move(spec);
  return request;
}

}  // namespace spindle::engine
