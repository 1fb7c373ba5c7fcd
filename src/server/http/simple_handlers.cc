#include "server/http/simple_handlers.h"

#include <array>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/utf8.h"
#include "server/http/json_writer.h"

namespace spindle::server {
namespace {

using Json = nlohmann::json;

Response JsonResponse(std::string body) {
  Response response;
  response.body = std::move(body);
  return response;
}

Response FromResult(serving::Result<std::string> result) {
  if (!result.ok()) {
    return ErrorResponse(result.error());
  }
  return JsonResponse(std::move(result).value());
}

// Nothing, or why the server is not ready.
std::optional<serving::ApiError> NotReady(const ServerContext& context) {
  return context.draining() ? context.DrainError() : context.backend->Unavailable();
}

Response Readiness(const ServerContext& context) {
  if (const auto error = NotReady(context)) {
    Response response = ErrorResponse(*error);
    response.close = false;  // probes may keep their connection
    return response;
  }
  return JsonResponse(R"({"status":"ok"})");
}

Response Liveness(const ServerContext& context) {
  const std::optional<Duration> silence = context.backend->SinceLastTick();
  if (silence.has_value() && *silence > context.options.watchdog) {
    return ErrorResponse(
        serving::MakeError(500, "internal_error", "The engine gave no sign of life in time."));
  }
  return JsonResponse(R"({"status":"ok"})");
}

Response Metrics(const ServerContext& context, const RequestHead& head) {
  const std::string* accept = head.Find("accept");
  const bool open_metrics =
      accept != nullptr && accept->find("application/openmetrics-text") != std::string::npos;
  Response response;
  response.content_type = open_metrics
                              ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                              : "text/plain; version=0.0.4; charset=utf-8";
  response.body = context.registry.Expose(open_metrics);
  return response;
}

Response Version(const ServerContext& context) {
  const BuildInfo& build = context.options.build;
  std::string body = R"({"version":)";
  AppendJsonString(build.version, &body);
  body += R"(,"commit":)";
  AppendJsonString(build.commit, &body);
  body += R"(,"build":)";
  AppendJsonString(build.build, &body);
  body += R"(,"backend":)";
  AppendJsonString(build.backend, &body);
  body += R"(,"isa":)";
  AppendJsonString(build.isa, &body);
  body += '}';
  return JsonResponse(std::move(body));
}

Response CancelRequest(ServerContext& context, const std::string& id) {
  if (!context.backend->CancelRequest(id)) {
    return ErrorResponse(serving::MakeError(404, "not_found", "No such request is active."));
  }
  std::string body = R"({"id":)";
  AppendJsonString(id, &body);
  body += R"(,"cancelled":true})";
  return JsonResponse(std::move(body));
}

// Nothing, or the refusal of a member of `object` that is not the known one.
std::optional<serving::ApiError> RefuseOthers(const Json& object,
                                              std::optional<std::string_view> known) {
  constexpr size_t kMaxShownBytes = 100;
  for (const auto& [name, value] : object.items()) {
    if (name != known) {
      const std::string shown = ToValidUtf8(std::string_view(name).substr(0, kMaxShownBytes));
      return serving::InvalidRequest("unknown_parameter", shown, "'" + shown + "' is not known.");
    }
  }
  return std::nullopt;
}

// Nothing, or the refusal of what a body says to an endpoint that has no fields.
std::optional<serving::ApiError> RefuseFields(std::string_view body) {
  if (body.empty()) {
    return std::nullopt;
  }
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return serving::MakeError(400, "invalid_json", "The body must be absent, or JSON: {}.");
  }
  if (!json.is_object()) {
    return serving::MakeError(400, "invalid_type", "The body must be absent, or {}.");
  }
  return RefuseOthers(json, /*known=*/std::nullopt);
}

// What changes something, and is told all it needs by the path.
bool HasNoFields(const Route& route, const RequestHead& head) {
  switch (route.endpoint) {
    case EndpointId::kAdminCancel:
    case EndpointId::kAdminCacheReset:
    case EndpointId::kAdminDrain:
    case EndpointId::kAdminSessionRestore:
    case EndpointId::kAdminSessionPin:
    case EndpointId::kAdminSessionUnpin:
      return true;
    case EndpointId::kAdminSession:
      return head.method == "DELETE";
    default:
      return false;
  }
}

Response SetLogLevel(std::string_view body) {
  constexpr std::array<std::pair<std::string_view, log::Level>, 5> kLevels = {{
      {"trace", log::Level::kTrace},
      {"debug", log::Level::kDebug},
      {"info", log::Level::kInfo},
      {"warn", log::Level::kWarn},
      {"error", log::Level::kError},
  }};
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return ErrorResponse(
        serving::MakeError(400, "invalid_json", "The body must be JSON: {\"level\": \"info\"}."));
  }
  if (json.is_object()) {
    if (const auto error = RefuseOthers(json, "level")) {
      return ErrorResponse(*error);
    }
  }
  const Json level = json.is_object() ? json.value("level", Json()) : Json();
  for (const auto& [name, value] : kLevels) {
    if (level == name) {
      log::SetLevel(value);
      return JsonResponse(R"({"level":")" + std::string(name) + R"("})");
    }
  }
  serving::ApiError error = serving::MakeError(
      400, "invalid_value", "level must be one of trace, debug, info, warn and error.");
  error.param = "level";
  return ErrorResponse(error);
}

Response Drain(ServerContext& context) {
  if (context.hooks.drain) {
    context.hooks.drain();
  }
  return JsonResponse(R"({"draining":true})");
}

Response Preflight(const ServerContext& context, const RequestHead& head) {
  Response response;
  response.status = 204;
  response.headers = context.cors.PreflightHeaders(head);
  return response;
}

}  // namespace

Response HandleSimple(ServerContext& context,
                      const Route& route,
                      const RequestHead& head,
                      const ApiKeys::Grant& grant,
                      std::string_view body) {
  if (HasNoFields(route, head)) {
    if (const auto error = RefuseFields(body)) {
      return ErrorResponse(*error);
    }
  }
  Backend& backend = *context.backend;
  switch (route.endpoint) {
    case EndpointId::kModels:
      return FromResult(backend.ListModels());
    case EndpointId::kModel:
      return FromResult(backend.GetModel(route.argument));
    case EndpointId::kTokenize:
      return FromResult(backend.RunTool(Tool::kTokenize, body));
    case EndpointId::kDetokenize:
      return FromResult(backend.RunTool(Tool::kDetokenize, body));
    case EndpointId::kApplyTemplate:
      return FromResult(backend.RunTool(Tool::kApplyTemplate, body));
    case EndpointId::kRenderChat:
      return FromResult(backend.RunTool(Tool::kRenderChat, body));
    case EndpointId::kCountInputTokens:
      return FromResult(backend.RunTool(Tool::kCountInputTokens, body));
    case EndpointId::kHealth:
    case EndpointId::kReady:
      return Readiness(context);
    case EndpointId::kLive:
      return Liveness(context);
    case EndpointId::kMetrics:
      return Metrics(context, head);
    case EndpointId::kVersion:
      return Version(context);
    case EndpointId::kAdminRequests:
      return FromResult(backend.ListRequests());
    case EndpointId::kAdminCancel:
      return CancelRequest(context, route.argument);
    case EndpointId::kAdminKv:
      return FromResult(backend.KvReport());
    case EndpointId::kAdminConfig:
      return JsonResponse(context.hooks.config_json ? context.hooks.config_json() : "{}");
    case EndpointId::kAdminCacheReset:
      return FromResult(backend.ResetCache());
    case EndpointId::kAdminDrain:
      return Drain(context);
    case EndpointId::kAdminLogLevel:
      return SetLogLevel(body);
    case EndpointId::kAdminSessions:
    case EndpointId::kAdminSession:
    case EndpointId::kAdminSessionRestore:
    case EndpointId::kAdminSessionPin:
    case EndpointId::kAdminSessionUnpin:
      return HandleSession(context, route, head, grant);
    case EndpointId::kOptions:
      return Preflight(context, head);
    case EndpointId::kChatCompletions:
    case EndpointId::kCompletions:
    case EndpointId::kUnknown:
      break;
  }
  return ErrorResponse(serving::MakeError(404, "not_found", "There is nothing at this path."));
}

}  // namespace spindle::server
