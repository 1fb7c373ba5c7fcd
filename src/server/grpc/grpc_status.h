// API errors as gRPC statuses with google.rpc details (docs/http-api.md). Thread-safety: pure
// functions.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "serving/api_error.h"

namespace spindle::server {

// INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED …; details hold ErrorInfo{reason = API code} and,
// with a retry time, RetryInfo. Sets the trailer retry-after-ms on `context`.
[[nodiscard]] grpc::Status ToGrpcStatus(const serving::ApiError& error,
                                        grpc::CallbackServerContext* context);

}  // namespace spindle::server
