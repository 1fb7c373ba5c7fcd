#include "server/grpc/generate_call.h"

#include <utility>

#include "server/grpc/grpc_status.h"
#include "server/grpc/messages.h"
#include "serving/answer_memory.h"

namespace spindle::server {

GenerateCall::GenerateCall(grpc::CallbackServerContext* context,
                           StreamWorker& worker,
                           OutputView view,
                           CallTicket ticket)
    : context_(context), worker_(worker), view_(view), ticket_(std::move(ticket)) {}

void GenerateCall::Begin(std::unique_ptr<serving::Generation> generation) {
  self_ = shared_from_this();
  std::function<void()> ready = [weak = weak_from_this(), &worker = worker_] {
    worker.Post([weak] {
      if (const std::shared_ptr<GenerateCall> call = weak.lock()) {
        call->Pump();
      }
    });
  };
  serving::Generation* borrowed = generation.get();
  {
    MutexLock lock(mutex_);
    generation_ = std::move(generation);
  }
  borrowed->SetReadyCallback(std::move(ready));
}

void GenerateCall::Refuse(const serving::ApiError& error) {
  self_ = shared_from_this();
  {
    MutexLock lock(mutex_);
    ended_ = true;
  }
  End(ToGrpcStatus(error, context_));
}

std::optional<serving::GenerationEvent> GenerateCall::Next() {
  if (ended_ || writing_ || generation_ == nullptr) {
    return std::nullopt;
  }
  polled_.clear();
  if (generation_->Poll(1, &polled_) == 0) {
    return std::nullopt;
  }
  return std::move(polled_.front());
}

void GenerateCall::FailGeneration(const serving::ApiError& error) {
  MutexLock lock(mutex_);
  if (generation_ != nullptr) {
    generation_->Fail(error);
  }
}

void GenerateCall::Pump() {
  const std::shared_ptr<GenerateCall> keep =
      shared_from_this();  // End may release the last reference
  {
    MutexLock lock(mutex_);
    if (pumping_) {
      again_ = true;
      return;
    }
    pumping_ = true;
  }
  for (;;) {
    std::optional<serving::GenerationEvent> event;
    {
      MutexLock lock(mutex_);
      event = Next();
      if (!event.has_value()) {
        if (std::exchange(again_, false)) {
          continue;
        }
        pumping_ = false;
        return;
      }
      const bool last = std::holds_alternative<serving::ErrorEvent>(*event);
      ended_ = last;
      // Before the write starts: its completion may come on another thread at once.
      writing_ = !last;
    }
    if (const auto* error = std::get_if<serving::ErrorEvent>(&*event)) {
      End(ToGrpcStatus(WithGrpcNames(error->error, view_.input), context_));
      continue;
    }
    const bool finished = std::holds_alternative<serving::UsageEvent>(*event);
    if (Deliver(*event)) {
      MutexLock lock(mutex_);
      writing_ = false;
    }
    if (finished) {
      bool end_now = false;
      {
        MutexLock lock(mutex_);
        end_now = !writing_ && !std::exchange(ended_, true);
      }
      if (end_now) {
        End(grpc::Status::OK);
      }
    }
  }
}

void GenerateCall::WriteDone(bool ok) {
  bool end_now = false;
  {
    MutexLock lock(mutex_);
    writing_ = false;
    if (!ok && generation_ != nullptr) {
      generation_->Cancel(engine::CancelCause::kClientGone);
    }
    end_now = generation_ != nullptr && generation_->Done() && !std::exchange(ended_, true);
  }
  if (end_now) {
    End(grpc::Status::OK);
    return;
  }
  Pump();
}

void GenerateCall::ClientCancelled() {
  MutexLock lock(mutex_);
  if (generation_ != nullptr) {
    generation_->Cancel(engine::CancelCause::kClientGone);
  }
}

void GenerateCall::Done() {
  std::unique_ptr<serving::Generation> generation;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    generation = std::move(generation_);
  }
  if (generation != nullptr) {
    generation->SetReadyCallback({});
    generation.reset();
  }
  self_.reset();
}

bool StreamingCall::Deliver(const serving::GenerationEvent& event) {
  if (!ToMessage(event, request_id(), view(), &message_)) {
    return true;
  }
  bytes_ = Encode(message_);
  StartWrite(&bytes_);
  return false;
}

bool UnaryCall::Deliver(const serving::GenerationEvent& event) {
  if (failed_) {
    return true;
  }
  result_.set_request_id(request_id());
  held_bytes_ += Accumulate(event, view(), &result_);
  // At the end the message exists twice; its wire form takes less than half.
  const uint64_t wanted_bytes = held_bytes_ + held_bytes_ / 2;
  if (!lease_.Cover(wanted_bytes)) {
    failed_ = true;
    FailGeneration(serving::AnswerMemoryFull(wanted_bytes, memory_));
    result_ = v1::GenerateResult();
    lease_.Release();
  }
  return true;
}

void UnaryCall::End(const grpc::Status& status) {
  if (status.ok()) {
    *reply_ = Encode(result_);
    result_ = v1::GenerateResult();
  }
  Finish(status);
}

}  // namespace spindle::server
