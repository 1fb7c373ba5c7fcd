#include "serving/stream_generation.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/utf8.h"
#include "serving/answer_memory.h"
#include "serving/error_mapping.h"
#include "serving/held_bytes.h"

namespace spindle::serving {
namespace {

// At most two progress events per second.
constexpr Duration kProgressInterval = std::chrono::milliseconds(500);
constexpr float kLowestLogprob = -9999.0F;

float ShownLogprob(float logprob) {
  return std::isfinite(logprob) ? std::max(logprob, kLowestLogprob) : kLowestLogprob;
}

}  // namespace

uint32_t StreamGeneration::EngineChoices(const PreparedRequest& request) {
  return std::max(request.sampling.num_choices, request.best_of);
}

StreamGeneration::StreamGeneration(const PreparedRequest& request,
                                   std::string request_id,
                                   TimePoint received,
                                   std::vector<std::shared_ptr<engine::OutputStream>> streams,
                                   ByteQuota::Lease lease,
                                   const GenerationDeps& deps)
    : request_id_(std::move(request_id)),
      received_(received),
      deps_(deps),
      stops_(request.stop),
      prompt_texts_(request.prompt_texts),
      stop_token_ids_(request.sampling.stop_token_ids),
      echo_(request.echo),
      skip_special_(request.skip_special_tokens),
      wants_logprobs_(request.sampling.logprobs.has_value()),
      wants_prompt_logprobs_(request.sampling.prompt_logprobs.has_value()),
      wants_progress_(request.progress),
      is_chat_(request.endpoint == Endpoint::kChat),
      num_returned_(request.sampling.num_choices),
      choices_per_prompt_(EngineChoices(request)),
      lease_(std::move(lease)),
      held_bytes_(ParameterBytes(request)) {
  for (size_t i = 0; i < streams.size(); ++i) {
    Stream& stream = streams_.emplace_back();
    stream.events = std::move(streams[i]);
    if (echo_) {
      stream.echo.emplace(request.prompts[i], prompt_texts_[i], skip_special_, deps_.tokenizer);
    }
    prompt_sizes_.push_back(static_cast<uint32_t>(request.prompts[i].size()));
    usage_.prompt_tokens += prompt_sizes_.back();
    const uint64_t echoed = echo_ ? CountCodePoints(prompt_texts_[i]) : 0;
    for (uint32_t j = 0; j < choices_per_prompt_; ++j) {
      choices_.emplace_back(
          ChoiceText(stops_, {.include_stop = request.include_stop, .first_offset = echoed}));
    }
  }
}

StreamGeneration::~StreamGeneration() {
  SetReadyCallback({});
  if (!done_) {
    Cancel(engine::CancelCause::kClientGone);
  }
}

void StreamGeneration::SetReadyCallback(std::function<void()> ready) {
  for (Stream& stream : streams_) {
    stream.events->SetReadyCallback(ready);
  }
}

void StreamGeneration::Cancel(engine::CancelCause cause) {
  for (Stream& stream : streams_) {
    stream.events->Cancel(cause);
  }
}

void StreamGeneration::ReportQueued(uint32_t queue_position) {
  if (wants_progress_) {
    last_progress_ = deps_.clock.Now();
    ready_.push_back(ProgressEvent{
        .queued = true, .queue_position = queue_position, .total_tokens = usage_.prompt_tokens});
  }
}

size_t StreamGeneration::Poll(size_t max_events, std::vector<GenerationEvent>* events) {
  size_t delivered = 0;
  while (delivered < max_events && (!ready_.empty() || Advance())) {
    if (ready_.empty()) {
      continue;
    }
    events->push_back(std::move(ready_.front()));
    ready_.pop_front();
    ++delivered;
  }
  return delivered;
}

bool StreamGeneration::Advance() {
  if (echo_part_.has_value()) {
    DeliverEcho();
  } else if (!ranked_.empty()) {
    DeliverRanked();
  } else if (usage_event_.has_value()) {
    ready_.push_back(*std::exchange(usage_event_, std::nullopt));
    done_ = true;
  } else {
    return !done_ && PullOne();
  }
  return true;
}

bool StreamGeneration::PullOne() {
  engine::StreamEvent event;
  for (size_t i = 0; i < streams_.size(); ++i) {
    const size_t index = (next_stream_ + i) % streams_.size();
    if (!streams_[index].done && streams_[index].events->Next(&event)) {
      next_stream_ = (index + 1) % streams_.size();
      Handle(index, std::move(event));
      return true;
    }
  }
  return false;
}

void StreamGeneration::Handle(size_t stream, engine::StreamEvent event) {
  switch (event.kind) {
    case engine::StreamEvent::Kind::kStarted:
      return OnStarted(stream, event);
    case engine::StreamEvent::Kind::kPrefill:
      return OnProgress(event);
    case engine::StreamEvent::Kind::kPromptLogprob:
      return OnPromptLogprob(stream, event);
    case engine::StreamEvent::Kind::kToken:
      return OnToken(stream, event);
    case engine::StreamEvent::Kind::kFinished:
      return OnFinished(stream, event);
    case engine::StreamEvent::Kind::kDone:
      return OnDone(stream, std::move(event));
  }
}

void StreamGeneration::OnStarted(size_t stream, const engine::StreamEvent& event) {
  usage_.cached_tokens += event.stats.cached_tokens;
  if (!started_) {
    started_ = true;
    ready_.push_back(StartedEvent{usage_});
  }
  if (echo_ && !wants_prompt_logprobs_) {
    Echo(stream, streams_[stream].echo->Text());
  }
}

void StreamGeneration::OnProgress(const engine::StreamEvent& event) {
  const TimePoint now = deps_.clock.Now();
  if (!wants_progress_ ||
      (last_progress_.has_value() && now - *last_progress_ < kProgressInterval)) {
    return;
  }
  last_progress_ = now;
  ready_.push_back(ProgressEvent{.queued = false,
                                 .queue_position = 0,
                                 .processed_tokens = event.processed,
                                 .total_tokens = event.stats.prompt_tokens,
                                 .cached_tokens = event.stats.cached_tokens});
}

TokenLogprob StreamGeneration::MakeToken(const engine::StreamEvent& event) const {
  TokenLogprob token;
  token.token = event.token;
  token.bytes = deps_.tokenizer.TokenBytes(event.token);
  token.logprob = ShownLogprob(event.logprob);
  if (wants_logprobs_) {
    for (const engine::TopLogprob& top : event.top) {
      token.top.push_back({top.token,
                           std::string(deps_.tokenizer.TokenBytes(top.token)),
                           ShownLogprob(top.logprob)});
    }
  }
  return token;
}

bool StreamGeneration::IsText(TokenId token) const {
  return !skip_special_ || !deps_.tokenizer.IsSpecial(token);
}

void StreamGeneration::OnPromptLogprob(size_t stream, const engine::StreamEvent& event) {
  TokenLogprob token = MakeToken(event);
  if (std::isnan(event.logprob)) {  // the first token has nothing before it
    token.logprob.reset();
    token.top.clear();
  }
  if (!echo_) {
    return;
  }
  if (std::optional<DeltaEvent> part = streams_[stream].echo->Push(std::move(token));
      part.has_value()) {
    Echo(stream, *std::move(part));
  }
}

void StreamGeneration::Echo(size_t stream, DeltaEvent delta) {
  if (keeps_best()) {
    // One of those that are kept, one on its way to a choice.
    Keep(&streams_[stream].kept_echo, std::move(delta), /*copies=*/2);
  } else {
    echo_part_ = EchoPart{stream, 0, std::move(delta)};
  }
}

// To one choice after the other, since the consumer may not want them all at once.
void StreamGeneration::DeliverEcho() {
  EchoPart& part = *echo_part_;
  part.delta.choice = ChoiceIndex(part.stream, part.next_choice);
  if (++part.next_choice < choices_per_prompt_) {
    ready_.push_back(part.delta);
  } else {
    ready_.push_back(std::move(part.delta));
    echo_part_.reset();
  }
}

void StreamGeneration::Keep(std::vector<DeltaEvent>* kept, DeltaEvent delta, uint64_t copies) {
  held_bytes_ += copies * HeldBytes(delta);
  if (!lease_.Cover(held_bytes_)) {
    return Fail(AnswerMemoryFull(held_bytes_, deps_.answer_memory));
  }
  kept->push_back(std::move(delta));
}

void StreamGeneration::CountToken(Choice& choice, const engine::StreamEvent& event) {
  const TimePoint now = deps_.clock.Now();
  if (!first_token_seen_) {
    first_token_seen_ = true;
    deps_.metrics.FirstToken(now - received_);
  }
  if (choice.num_tokens == 0) {
    choice.first_token = now;
  } else {
    deps_.metrics.NextToken(now - choice.last_token);
  }
  choice.last_token = now;
  choice.logprob_sum += static_cast<double>(ShownLogprob(event.logprob));
  ++choice.num_tokens;
  ++usage_.completion_tokens;
}

void StreamGeneration::OnToken(size_t stream, const engine::StreamEvent& event) {
  const uint32_t index = ChoiceIndex(stream, event.choice);
  Choice& choice = choices_[index];
  if (choice.finished) {
    return;  // surplus after a stop string
  }
  CountToken(choice, event);
  if (event.is_end_token) {
    return;
  }
  const std::optional<size_t> stop = choice.text.Push(MakeToken(event), IsText(event.token));
  if (stop.has_value()) {
    streams_[stream].events->StopChoice(event.choice, choice.num_tokens);
    FinishedEvent finished;
    finished.reason = engine::FinishReason::kStop;
    finished.stop_string = stops_.strings()[*stop];
    FinishChoice(index, std::move(finished));
    return;
  }
  ReleaseDelta(index, /*final=*/false);
}

void StreamGeneration::OnFinished(size_t stream, const engine::StreamEvent& event) {
  const uint32_t index = ChoiceIndex(stream, event.choice);
  if (choices_[index].finished || event.reason == engine::FinishReason::kAborted ||
      event.reason == engine::FinishReason::kError) {
    return;  // ended by a stop string before; or the request's kDone tells what went wrong
  }
  FinishedEvent finished;
  finished.reason = event.reason;
  if (std::find(stop_token_ids_.begin(), stop_token_ids_.end(), event.stop_token) !=
      stop_token_ids_.end()) {
    finished.stop_token = event.stop_token;
  }
  FinishChoice(index, std::move(finished));
}

void StreamGeneration::ReleaseDelta(uint32_t choice, bool final) {
  ReleasedText released = choices_[choice].text.Release(final);
  if (released.text.empty()) {
    return;
  }
  DeltaEvent delta;
  delta.choice = choice;
  delta.text = std::move(released.text);
  for (const TokenLogprob& token : released.tokens) {
    delta.token_ids.push_back(token.token);
  }
  if (wants_logprobs_) {
    delta.logprobs = std::move(released.tokens);
  }
  if (keeps_best()) {
    Keep(&choices_[choice].kept, std::move(delta), /*copies=*/1);
  } else {
    ready_.push_back(std::move(delta));
  }
}

void StreamGeneration::FinishChoice(uint32_t choice, FinishedEvent finished) {
  Choice& state = choices_[choice];
  state.finished = true;
  ReleaseDelta(choice, /*final=*/true);
  if (state.num_tokens > 1) {
    deps_.metrics.TimePerOutputToken((state.last_token - state.first_token) /
                                     (state.num_tokens - 1));
  }
  finished.choice = choice;
  if (keeps_best()) {
    state.kept_end = std::move(finished);
  } else if (!done_) {
    ready_.push_back(std::move(finished));
  }
}

void StreamGeneration::OnDone(size_t stream, engine::StreamEvent event) {
  streams_[stream].done = true;
  streams_[stream].stats = event.stats;
  if (event.cause != engine::EndCause::kCompleted || !event.status.ok()) {
    return End(FromEnd(event, is_chat_ ? "messages" : "prompt"));
  }
  if (std::all_of(streams_.begin(), streams_.end(), [](const Stream& s) { return s.done; })) {
    Complete();
  }
}

// Of each prompt's choices the best by mean log-probability, best first.
void StreamGeneration::RankChoices() {
  const auto mean = [this](uint32_t choice) {
    const Choice& state = choices_[choice];
    return state.num_tokens == 0 ? 0.0 : state.logprob_sum / state.num_tokens;
  };
  for (size_t stream = 0; stream < streams_.size(); ++stream) {
    std::vector<uint32_t> order(choices_per_prompt_);
    std::iota(order.begin(), order.end(), ChoiceIndex(stream, 0));
    std::stable_sort(
        order.begin(), order.end(), [&mean](uint32_t a, uint32_t b) { return mean(a) > mean(b); });
    for (uint32_t rank = 0; rank < choices_per_prompt_; ++rank) {
      if (rank < num_returned_) {
        const uint32_t index = static_cast<uint32_t>(stream) * num_returned_ + rank;
        ranked_.push_back({stream, order[rank], index});
      } else {
        choices_[order[rank]].kept = std::vector<DeltaEvent>();
      }
    }
  }
}

void StreamGeneration::DeliverRanked() {
  const Ranked ranked = ranked_.front();
  ranked_.pop_front();
  const auto deliver = [this, &ranked](DeltaEvent delta) {
    delta.choice = ranked.index;
    ready_.push_back(std::move(delta));
  };
  for (const DeltaEvent& echo : streams_[ranked.stream].kept_echo) {
    deliver(echo);
  }
  Choice& choice = choices_[ranked.choice];
  for (DeltaEvent& delta : std::exchange(choice.kept, {})) {
    deliver(std::move(delta));
  }
  choice.kept_end.choice = ranked.index;
  ready_.push_back(std::move(choice.kept_end));
}

void StreamGeneration::Complete() {
  if (keeps_best()) {
    RankChoices();
  }
  engine::RequestStats total;
  for (const Stream& stream : streams_) {
    total.preemptions += stream.stats.preemptions;
    total.queue_time = std::max(total.queue_time, stream.stats.queue_time);
    total.prefill_time = std::max(total.prefill_time, stream.stats.prefill_time);
    total.time_to_first_token =
        std::max(total.time_to_first_token, stream.stats.time_to_first_token);
    total.decode_time = std::max(total.decode_time, stream.stats.decode_time);
    total.load_time = std::max(total.load_time, stream.stats.load_time);
    total.longest_choice = std::max(total.longest_choice, stream.stats.longest_choice);
    total.disk_tokens += stream.stats.disk_tokens;
    total.kv.page_tokens = stream.stats.kv.page_tokens;
    total.kv.pages += stream.stats.kv.pages;
    total.kv.bytes += stream.stats.kv.bytes;
    total.kv.disk_bytes += stream.stats.kv.disk_bytes;
    total.algorithm = stream.stats.algorithm;
    total.sparse += stream.stats.sparse;
    sparse::AddLayers(stream.stats.layers, &total.layers);
    total.prefill_method = stream.stats.prefill_method;
    total.prefill += stream.stats.prefill;
    total.audit += stream.stats.audit;
  }
  total.prompt_tokens = usage_.prompt_tokens;
  total.cached_tokens = usage_.cached_tokens;
  total.generated_tokens = usage_.completion_tokens;
  deps_.metrics.RequestEnded(deps_.clock.Now() - received_);
  usage_event_ = UsageEvent{usage_, total};
}

void StreamGeneration::Fail(const ApiError& error) {
  if (done_) {
    return;
  }
  deps_.metrics.Rejected(error);
  ready_.clear();
  End(error);
}

void StreamGeneration::End(ApiError error) {
  Cancel(engine::CancelCause::kClientGone);  // the other prompts of the request
  deps_.metrics.RequestEnded(deps_.clock.Now() - received_);
  echo_part_.reset();
  ranked_.clear();
  usage_event_.reset();
  for (Stream& stream : streams_) {
    stream.kept_echo = std::vector<DeltaEvent>();
  }
  for (Choice& choice : choices_) {
    choice.kept = std::vector<DeltaEvent>();
  }
  ready_.push_back(ErrorEvent{std::move(error)});
  done_ = true;
}

}  // namespace spindle::serving
