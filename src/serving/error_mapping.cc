#include "serving/error_mapping.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "serving/prompt_builder.h"

namespace spindle::serving {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

ApiError GenerationTimeout() {
  ApiError error = MakeError(504, "generation_timeout", "The request ran out of its time.");
  error.should_retry = false;
  return error;
}

// Nobody is left to read this unless an operator cancelled; 499 is what logs and metrics show.
ApiError Cancelled(std::string_view who) {
  ApiError error =
      MakeError(499, "request_cancelled", fmt::format("The request was cancelled: {}.", who));
  error.should_retry = false;
  return error;
}

ApiError FastBudgetRefused(std::string_view code,
                           std::string_view param,
                           std::string message,
                           std::pair<std::string, int64_t> limit) {
  ApiError error = InvalidRequest(std::string(code), std::string(param), std::move(message));
  error.extras = {std::move(limit)};
  return error;
}

ApiError KvCapacityExceeded(std::string_view param, std::string message) {
  return InvalidRequest("kv_capacity_exceeded", std::string(param), std::move(message));
}

ApiError NeverFits(std::string_view param,
                   std::string message,
                   const engine::SubmitRefusal& refusal) {
  ApiError error = KvCapacityExceeded(param, std::move(message));
  error.extras = {{"needed_bytes", static_cast<int64_t>(refusal.needed_bytes)},
                  {"capacity_bytes", static_cast<int64_t>(refusal.capacity_bytes)}};
  return error;
}

}  // namespace

milliseconds RetryAfter(milliseconds estimate) {
  return std::clamp<milliseconds>(std::chrono::ceil<seconds>(estimate), seconds(1), seconds(60));
}

ApiError QueueFull(milliseconds estimate) {
  ApiError error = MakeError(429, "queue_full", "The request queue is full; try again later.");
  error.retry_after = RetryAfter(estimate);
  error.should_retry = true;
  return error;
}

ApiError ShuttingDown(milliseconds time_left) {
  ApiError error = MakeError(503, "shutting_down", "The server is shutting down.");
  error.retry_after = RetryAfter(time_left);
  error.should_retry = true;
  return error;
}

ApiError ModelLoading(double progress, milliseconds time_left) {
  ApiError error = MakeError(503, "model_loading", "The model is still being loaded.");
  error.progress = progress;
  error.retry_after = RetryAfter(time_left);
  error.should_retry = true;
  return error;
}

ApiError FromRefusal(const engine::SubmitRefusal& refusal,
                     std::string_view param,
                     std::string_view budget_param) {
  using enum engine::SubmitRefusal::Kind;
  switch (refusal.kind) {
    case kQueueFull:
      return QueueFull(refusal.retry_after);
    case kNeverFits:
      return NeverFits(param,
                       fmt::format("The request needs {} bytes of KV memory; the server has {}.",
                                   refusal.needed_bytes,
                                   refusal.capacity_bytes),
                       refusal);
    case kFastNeverFits:
      return NeverFits(param,
                       fmt::format("The index of the request and one tile of pages need {} bytes "
                                   "of the fast tier; it has {}.",
                                   refusal.needed_bytes,
                                   refusal.capacity_bytes),
                       refusal);
    case kContextExceeded:
      return InvalidRequest("context_length_exceeded",
                            std::string(param),
                            "The prompt and the token limit together exceed the context.");
    case kShuttingDown:
      return ShuttingDown(refusal.retry_after);
    case kDeadlinePassed:
      return GenerationTimeout();
    case kFastBudgetTooSmall:
      return FastBudgetRefused("fast_tier_budget_too_small",
                               budget_param,
                               fmt::format("The fast-tier budget must be at least {} bytes for "
                                           "this request.",
                                           refusal.needed_bytes),
                               {"min_bytes", static_cast<int64_t>(refusal.needed_bytes)});
    case kFastBudgetTooLarge:
      return FastBudgetRefused("fast_tier_budget_too_large",
                               budget_param,
                               fmt::format("The fast-tier budget of {} bytes is above the {} bytes "
                                           "that the fast tier has.",
                                           refusal.needed_bytes,
                                           refusal.capacity_bytes),
                               {"max_bytes", static_cast<int64_t>(refusal.capacity_bytes)});
  }
  return InternalError();
}

ApiError FromEnd(const engine::StreamEvent& event, std::string_view param) {
  using enum engine::EndCause;
  switch (event.cause) {
    case kClientGone:
      return Cancelled("the client went away");
    case kAdmin:
      return Cancelled("by an administrator");
    case kSlowReader:
      return Cancelled("the client read too slowly");
    case kDeadline:
    case kRequestTimeout:
      return GenerationTimeout();
    case kQueueTimeout: {
      ApiError error = MakeError(503, "queue_timeout", "The request waited too long in the queue.");
      error.should_retry = true;
      return error;
    }
    case kShutdown:
      return ShuttingDown(seconds(1));
    case kDisplaced:
      return QueueFull(event.retry_after);
    case kOutOfMemory:
      return KvCapacityExceeded(param, "The request outgrew the KV memory of the server.");
    case kNoTokenAllowed: {
      ApiError error = MakeError(
          500, "grammar_dead_end", "The request's bans left no token that may be sampled.");
      error.should_retry = false;
      return error;
    }
    case kCompleted:
    case kInternal:
      break;
  }
  log::Error("generation_failed", {{"status", event.status.ToString()}});
  return InternalError();
}

}  // namespace spindle::serving
