#include "server/grpc/grpc_status.h"

#include <string>

#include "google/rpc/error_details.pb.h"

namespace spindle::server {
namespace {

grpc::StatusCode CodeFor(const serving::ApiError& error) {
  if (error.code == "slow_reader") {
    return grpc::StatusCode::ABORTED;
  }
  switch (error.http_status) {
    case 401:
      return grpc::StatusCode::UNAUTHENTICATED;
    case 403:
      return grpc::StatusCode::PERMISSION_DENIED;
    case 404:
      return grpc::StatusCode::NOT_FOUND;
    case 408:
    case 504:
      return grpc::StatusCode::DEADLINE_EXCEEDED;
    case 429:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case 499:
      return grpc::StatusCode::CANCELLED;
    case 503:
      return grpc::StatusCode::UNAVAILABLE;
    default:
      return error.http_status >= 400 && error.http_status < 500
                 ? grpc::StatusCode::INVALID_ARGUMENT
                 : grpc::StatusCode::INTERNAL;
  }
}

}  // namespace

grpc::Status ToGrpcStatus(const serving::ApiError& error, grpc::CallbackServerContext* context) {
  const grpc::StatusCode code = CodeFor(error);
  google::rpc::Status details;
  details.set_code(code);
  details.set_message(error.message);
  google::rpc::ErrorInfo info;
  info.set_reason(error.code);
  info.set_domain("spindle");
  if (error.param.has_value()) {
    (*info.mutable_metadata())["param"] = *error.param;
  }
  for (const auto& [key, value] : error.extras) {
    (*info.mutable_metadata())[key] = std::to_string(value);
  }
  details.add_details()->PackFrom(info);
  if (error.retry_after.has_value()) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(error.retry_after->count() / 1000);
    retry.mutable_retry_delay()->set_nanos(
        static_cast<int32_t>(error.retry_after->count() % 1000 * 1000000));
    details.add_details()->PackFrom(retry);
    context->AddTrailingMetadata("retry-after-ms", std::to_string(error.retry_after->count()));
  }
  return {code, error.message, details.SerializeAsString()};
}

}  // namespace spindle::server
