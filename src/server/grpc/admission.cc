#include "server/grpc/admission.h"

#include <chrono>
#include <string>
#include <utility>
#include <variant>

namespace spindle::server {
namespace {

using serving::ApiError;
using serving::Result;

std::optional<std::string_view> Metadata(const grpc::CallbackServerContext& context,
                                         const char* key) {
  const auto it = context.client_metadata().find(key);
  if (it == context.client_metadata().end()) {
    return std::nullopt;
  }
  return std::string_view(it->second.data(), it->second.size());
}

// gRPC writes peers as "ipv4:127.0.0.1:port", "ipv6:[::1]:port" (percent-encoded) or "unix:path".
bool IsLoopback(const std::string& peer) {
  return peer.rfind("ipv4:127.", 0) == 0 || peer.rfind("ipv6:[::1]", 0) == 0 ||
         peer.rfind("ipv6:%5B::1%5D", 0) == 0 || peer.rfind("unix:", 0) == 0;
}

ApiError ToApiError(AuthFailure failure) {
  switch (failure) {
    case AuthFailure::kMissing:
      return serving::MakeError(
          401, "missing_api_key", "an API key is required in the metadata 'authorization'");
    case AuthFailure::kInvalid:
      return serving::MakeError(401, "invalid_api_key", "the API key is not valid");
    case AuthFailure::kForbidden:
    case AuthFailure::kNotLoopback:
      break;
  }
  return serving::MakeError(403, "insufficient_permissions", "this call needs an admin key");
}

ApiError ToApiError(const LimitRefusal& refusal) {
  const bool concurrency = refusal.kind == LimitFailure::kConcurrency;
  ApiError error =
      serving::MakeError(429,
                         concurrency ? "key_concurrency_exceeded" : "rate_limit_exceeded",
                         concurrency ? "this key has as many requests running as it may"
                                     : "this key has sent as many requests this minute as it may");
  error.retry_after = refusal.retry_after;
  return error;
}

// The call's deadline on the steady clock; nothing when the client set none.
std::optional<TimePoint> Deadline(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  const auto now = std::chrono::system_clock::now();
  // "No deadline" is the far end of the clock; adding that to another clock would overflow.
  if (deadline - now > std::chrono::hours(24 * 365)) {
    return std::nullopt;
  }
  return SteadyClock().Now() + std::chrono::duration_cast<Duration>(deadline - now);
}

}  // namespace

Result<ApiKeys::Grant> Admission::Authenticate(const grpc::CallbackServerContext& context,
                                               KeyScope scope) const {
  std::optional<std::string_view> presented;
  if (const auto authorization = Metadata(context, "authorization")) {
    presented = BearerToken(*authorization);
    if (!presented.has_value()) {
      return ToApiError(AuthFailure::kInvalid);
    }
  }
  auto outcome = keys_.Authenticate(presented, scope, IsLoopback(context.peer()));
  if (const auto* failure = std::get_if<AuthFailure>(&outcome)) {
    return ToApiError(*failure);
  }
  return std::get<ApiKeys::Grant>(std::move(outcome));
}

Result<AdmittedCall> Admission::Admit(const grpc::CallbackServerContext& context,
                                      const ApiKeys::Grant& grant,
                                      const std::string& wanted_id) const {
  auto admitted = keys_.Admit(grant);
  if (const auto* refusal = std::get_if<LimitRefusal>(&admitted)) {
    return ToApiError(*refusal);
  }
  AdmittedCall call;
  call.ticket.slot = std::get<ApiKeys::Slot>(std::move(admitted));
  call.ticket.id =
      request_ids_.Acquire(wanted_id.empty() ? Metadata(context, "x-request-id")
                                             : std::optional<std::string_view>(wanted_id));
  call.caller = {.request_id = call.ticket.id.id(),
                 .tenant = grant.tenant,
                 .key_name = grant.name,
                 .min_priority = grant.min_priority,
                 .retention = grant.retention,
                 .fairness_id = std::string(
                     grant.trusted ? Metadata(context, kFairnessHeader).value_or("") : ""),
                 .received = SteadyClock().Now(),
                 .deadline = Deadline(context)};
  return call;
}

}  // namespace spindle::server
