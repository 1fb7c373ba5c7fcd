#include "server/http/generation_response.h"

#include <chrono>
#include <utility>
#include <variant>

namespace spindle::server {
namespace {

constexpr Duration kProgressInterval = std::chrono::milliseconds(500);  // at most two per second

}  // namespace

GenerationResponse::GenerationResponse(serving::PreparedRequest request,
                                       std::unique_ptr<serving::Generation> generation,
                                       const CompletionIdentity& identity,
                                       const Clock& clock)
    : request_(std::move(request)),
      generation_(std::move(generation)),
      clock_(clock),
      chunks_(request_, identity),
      result_(request_, identity) {}

GenerationResponse::State GenerationResponse::Pump(size_t max_events, std::string* out) {
  events_.clear();
  const size_t count = generation_->Poll(max_events, &events_);
  for (serving::GenerationEvent& event : events_) {
    OnEvent(std::move(event), out);
  }
  if (generation_->Done()) {
    return State::kDone;
  }
  return count == 0 ? State::kWaiting : State::kMore;
}

void GenerationResponse::OnEvent(serving::GenerationEvent event, std::string* out) {
  const bool stream = request_.stream;
  if (auto* delta = std::get_if<serving::DeltaEvent>(&event)) {
    if (stream) {
      chunks_.Delta(*delta, generation_->usage(), out);
    } else {
      result_.Delta(std::move(*delta));
    }
  } else if (auto* finished = std::get_if<serving::FinishedEvent>(&event)) {
    finish_reasons_.append(finish_reasons_.empty() ? "" : ",")
        .append(FinishReasonName(finished->reason));
    if (stream) {
      chunks_.Finished(*finished, generation_->usage(), out);
    } else {
      result_.Finished(std::move(*finished));
    }
  } else if (const auto* started = std::get_if<serving::StartedEvent>(&event)) {
    usage_ = started->usage;
  } else if (const auto* progress = std::get_if<serving::ProgressEvent>(&event)) {
    OnProgress(*progress, out);
  } else if (const auto* end = std::get_if<serving::UsageEvent>(&event)) {
    usage_ = end->usage;
    stats_ = end->stats;
    if (stream) {
      chunks_.Done(usage_, stats_, out);
    }
  } else if (auto* failure = std::get_if<serving::ErrorEvent>(&event)) {
    error_ = std::move(failure->error);
  }
}

void GenerationResponse::OnProgress(const serving::ProgressEvent& event, std::string* out) {
  const TimePoint now = clock_.Now();
  if (!request_.stream || !request_.progress || now < next_progress_) {
    return;
  }
  next_progress_ = now + kProgressInterval;
  chunks_.Progress(event, generation_->usage(), out);
}

serving::Usage GenerationResponse::usage() const {
  return generation_ != nullptr && !generation_->Done() ? generation_->usage() : usage_;
}

}  // namespace spindle::server
