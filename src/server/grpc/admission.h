// Authentication and identity of a gRPC call, common to all services.
// Thread-safety: thread-safe. Borrows the keys and the id registry.
#pragma once

#include <grpcpp/server_context.h>

#include "server/common/api_keys.h"
#include "server/common/request_ids.h"
#include "server/grpc/generate_call.h"
#include "serving/api_error.h"
#include "serving/completion_service.h"

namespace spindle::server {

struct AdmittedCall {
  serving::Caller caller;
  CallTicket ticket;
};

class Admission {
 public:
  Admission(const ApiKeys& keys, RequestIds& request_ids)
      : keys_(keys), request_ids_(request_ids) {}

  // Checks the key in the metadata (authorization) only.
  [[nodiscard]] serving::Result<ApiKeys::Grant> Authenticate(
      const grpc::CallbackServerContext& context, KeyScope scope) const;

  // A generation of an authenticated caller: per-key limits, request id (`wanted_id`, else metadata
  // x-request-id), deadline of the call.
  [[nodiscard]] serving::Result<AdmittedCall> Admit(const grpc::CallbackServerContext& context,
                                                    const ApiKeys::Grant& grant,
                                                    const std::string& wanted_id) const;

 private:
  const ApiKeys& keys_;
  RequestIds& request_ids_;
};

}  // namespace spindle::server
