#include "engine/end_cause.h"

namespace spindle::engine {

EndCause EndCauseOf(CancelCause cause) {
  switch (cause) {
    case CancelCause::kClientGone:
      return EndCause::kClientGone;
    case CancelCause::kAdmin:
      return EndCause::kAdmin;
    case CancelCause::kDeadline:
      return EndCause::kDeadline;
    case CancelCause::kSlowReader:
      return EndCause::kSlowReader;
    case CancelCause::kTimeout:
      return EndCause::kRequestTimeout;
    case CancelCause::kShutdown:
      return EndCause::kShutdown;
  }
  return EndCause::kInternal;
}

absl::Status EndStatusOf(EndCause cause) {
  switch (cause) {
    case EndCause::kCompleted:
      return absl::OkStatus();
    case EndCause::kClientGone:
      return absl::CancelledError("the client is gone");
    case EndCause::kAdmin:
      return absl::CancelledError("cancelled by an administrator");
    case EndCause::kSlowReader:
      return absl::CancelledError("the client did not read its stream in time");
    case EndCause::kDeadline:
      return absl::DeadlineExceededError("the request's deadline has passed");
    case EndCause::kRequestTimeout:
      return absl::DeadlineExceededError("the generation took longer than the server allows");
    case EndCause::kQueueTimeout:
      return absl::UnavailableError("the request waited in the queue longer than allowed");
    case EndCause::kShutdown:
      return absl::UnavailableError("the server is shutting down");
    case EndCause::kDisplaced:
      return absl::ResourceExhaustedError("displaced from the queue by a more urgent request");
    case EndCause::kOutOfMemory:
      return absl::ResourceExhaustedError("the KV memory is too small for this sequence");
    case EndCause::kNoTokenAllowed:
      return absl::InvalidArgumentError(
          "logit_bias, allowed_token_ids and min_tokens together leave no token to sample");
    case EndCause::kInternal:
      return absl::InternalError("the forward pass failed");
  }
  return absl::InternalError("unknown end cause");
}

}  // namespace spindle::engine
