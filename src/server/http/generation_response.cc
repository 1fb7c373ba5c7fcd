#include "server/http/generation_response.h"

#include <chrono>
#include <utility>
#include <variant>

#include "serving/answer_memory.h"

namespace spindle::server {
namespace {

constexpr Duration kProgressInterval = std::chrono::milliseconds(500);  // at most two per second

}  // namespace

GenerationResponse::GenerationResponse(serving::PreparedRequest request,
                                       std::unique_ptr<serving::Generation> generation,
                                       const CompletionIdentity& identity,
                                       ByteQuota& memory,
                                       const Clock& clock)
    : request_(std::move(request)),
      generation_(std::move(generation)),
      memory_(memory),
      clock_(clock),
      chunks_(request_, identity),
      result_(request_, identity),
      lease_(memory) {}

GenerationResponse::State GenerationResponse::Pump(size_t max_events,
                                                   size_t max_bytes,
                                                   std::string* out) {
  for (size_t count = 0; count < max_events && out->size() < max_bytes; ++count) {
    events_.clear();
    if (generation_->Poll(1, &events_) == 0) {
      return generation_->Done() ? State::kDone : State::kWaiting;
    }
    OnEvent(std::move(events_.front()), out);
  }
  return generation_->Done() ? State::kDone : State::kMore;
}

void GenerationResponse::CoverResult() {
  const uint64_t held_bytes = result_.held_bytes();
  if (!lease_.Cover(held_bytes)) {
    generation_->Fail(serving::AnswerMemoryFull(held_bytes, memory_));
    result_.Clear();
    lease_.Release();
  }
}

void GenerationResponse::OnEvent(serving::GenerationEvent event, std::string* out) {
  const bool stream = request_.stream;
  if (auto* delta = std::get_if<serving::DeltaEvent>(&event)) {
    if (stream) {
      chunks_.Delta(*delta, generation_->usage(), out);
    } else {
      result_.Delta(*delta);
      CoverResult();
    }
  } else if (auto* finished = std::get_if<serving::FinishedEvent>(&event)) {
    finish_reasons_.append(finish_reasons_.empty() ? "" : ",")
        .append(FinishReasonName(finished->reason));
    if (stream) {
      chunks_.Finished(*finished, generation_->usage(), out);
    } else {
      result_.Finished(std::move(*finished));
      CoverResult();
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
