// Administration of sessions: /admin/sessions and what is below it.
#include <optional>
#include <string>
#include <utility>

#include "server/http/simple_handlers.h"

namespace spindle::server {
namespace {

// In a query: every tenant.
constexpr std::string_view kAllTenants = "*";

SessionCall::Action ActionOf(const Route& route, const RequestHead& head) {
  switch (route.endpoint) {
    case EndpointId::kAdminSession:
      return head.method == "DELETE" ? SessionCall::Action::kDelete : SessionCall::Action::kGet;
    case EndpointId::kAdminSessionRestore:
      return SessionCall::Action::kRestore;
    case EndpointId::kAdminSessionPin:
      return SessionCall::Action::kPin;
    case EndpointId::kAdminSessionUnpin:
      return SessionCall::Action::kUnpin;
    default:
      return SessionCall::Action::kList;
  }
}

}  // namespace

Response HandleSession(ServerContext& context,
                       const Route& route,
                       const RequestHead& head,
                       const ApiKeys::Grant& grant) {
  SessionCall call{.action = ActionOf(route, head), .tenant = grant.tenant, .id = route.argument};
  if (const auto tenant = QueryValue(head.target, "tenant"); tenant.has_value()) {
    // Without keys there is one tenant; a user key is a tenant, and only that one.
    if (grant.state != nullptr && !grant.admin && *tenant != grant.tenant) {
      serving::ApiError error = serving::MakeError(
          403, "insufficient_permissions", "Sessions of others are for admin keys only.");
      error.param = "tenant";
      return ErrorResponse(error);
    }
    if (*tenant != kAllTenants) {
      call.tenant = std::string(*tenant);
    } else if (call.action == SessionCall::Action::kList) {
      call.tenant.reset();
    } else {
      serving::ApiError error =
          serving::MakeError(400, "invalid_value", "tenant must be one tenant here, not '*'.");
      error.param = "tenant";
      return ErrorResponse(error);
    }
  }
  serving::Result<std::string> result = context.backend->Sessions(call);
  if (!result.ok()) {
    return ErrorResponse(result.error());
  }
  Response response;
  response.status = call.action == SessionCall::Action::kRestore ? 202 : 200;
  response.body = std::move(result).value();
  return response;
}

}  // namespace spindle::server
