// Checks of a request head, in the order that README.md has.
#include <algorithm>
#include <string>

#include "server/http/simple_handlers.h"

namespace spindle::server {
namespace {

std::optional<std::string_view> PresentedKey(const RequestHead& head) {
  if (const std::string* authorization = head.Find("authorization")) {
    if (auto token = BearerToken(*authorization)) {
      return token;
    }
  }
  for (const std::string_view name : {"x-api-key", "api-key"}) {
    if (const std::string* key = head.Find(name)) {
      return *key;
    }
  }
  return std::nullopt;
}

serving::ApiError AuthError(AuthFailure failure) {
  switch (failure) {
    case AuthFailure::kMissing:
      return serving::MakeError(
          401, "missing_api_key", "This path needs an API key: Authorization: Bearer.");
    case AuthFailure::kInvalid:
      return serving::MakeError(401, "invalid_api_key", "The API key is not known.");
    case AuthFailure::kForbidden:
      return serving::MakeError(
          403, "insufficient_permissions", "This API key may not use administration paths.");
    case AuthFailure::kNotLoopback:
      return serving::MakeError(403,
                                "insufficient_permissions",
                                "Without an admin key, administration is for local peers only.");
  }
  return serving::MakeError(500, "internal_error", "The request could not be authenticated.");
}

std::string_view TrimBlanks(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

bool IsUtf8Charset(std::string_view parameters) {
  while (!parameters.empty()) {
    const size_t end = parameters.find(';');
    const std::string_view parameter = TrimBlanks(parameters.substr(0, end));
    const size_t equals = parameter.find('=');
    if (equals != std::string_view::npos &&
        EqualsIgnoreCase(parameter.substr(0, equals), "charset")) {
      std::string_view value = parameter.substr(equals + 1);
      if (value.size() >= 2 && value.front() == '"' && value.back() == '"') {
        value = value.substr(1, value.size() - 2);
      }
      if (!EqualsIgnoreCase(value, "utf-8") && !EqualsIgnoreCase(value, "utf8")) {
        return false;
      }
    }
    parameters.remove_prefix(end == std::string_view::npos ? parameters.size() : end + 1);
  }
  return true;
}

// 1.3: application/json, application/*+json, or none.
bool IsJsonMediaType(std::string_view value) {
  const size_t semicolon = value.find(';');
  const std::string_view type = TrimBlanks(value.substr(0, semicolon));
  constexpr std::string_view kPrefix = "application/";
  constexpr std::string_view kSuffix = "+json";
  const bool json = EqualsIgnoreCase(type, "application/json") ||
                    (type.size() > kPrefix.size() + kSuffix.size() &&
                     EqualsIgnoreCase(type.substr(0, kPrefix.size()), kPrefix) &&
                     EqualsIgnoreCase(type.substr(type.size() - kSuffix.size()), kSuffix));
  return json &&
         (semicolon == std::string_view::npos || IsUtf8Charset(value.substr(semicolon + 1)));
}

std::optional<serving::ApiError> CheckMediaType(const RequestHead& head) {
  for (const auto& [name, value] : head.fields) {
    if (name == "content-type" && !IsJsonMediaType(value)) {
      return serving::MakeError(
          415,
          "unsupported_media_type",
          "The body must be sent as Content-Type: application/json, in UTF-8.");
    }
    if (name == "content-encoding" && !EqualsIgnoreCase(value, "identity")) {
      return serving::MakeError(
          415, "unsupported_media_type", "Compressed bodies are not accepted.");
    }
  }
  return std::nullopt;
}

std::optional<serving::ApiError> CheckLength(const ServerContext& context,
                                             const RequestHead& head) {
  const uint64_t limit = context.options.max_body_bytes;
  if (head.content_length.value_or(0) <= limit) {
    return std::nullopt;
  }
  return serving::MakeError(413,
                            "request_too_large",
                            "The request body is larger than " + std::to_string(limit) + " bytes.");
}

std::optional<serving::ApiError> CheckServerState(const ServerContext& context,
                                                  const Route& route) {
  if (!route.needs_model) {
    return std::nullopt;
  }
  if (context.draining()) {
    return context.DrainError();
  }
  return context.backend->Unavailable();
}

}  // namespace

serving::ApiError ServerContext::DrainError() const {
  const TimePoint deadline{Duration(drain_deadline_ticks.load())};
  serving::ApiError error =
      serving::MakeError(503, "shutting_down", "The server is shutting down.");
  error.retry_after =
      std::max(std::chrono::milliseconds(1000),
               std::chrono::duration_cast<std::chrono::milliseconds>(deadline - clock.Now()));
  error.should_retry = true;
  return error;
}

std::optional<Response> CheckHead(const ServerContext& context,
                                  const Route& route,
                                  const RequestHead& head,
                                  bool loopback,
                                  ApiKeys::Grant* grant) {
  if (route.access != Access::kPublic) {
    const KeyScope scope = route.access == Access::kAdmin ? KeyScope::kAdmin : KeyScope::kUser;
    auto outcome = context.keys.Authenticate(PresentedKey(head), scope, loopback);
    if (const auto* failure = std::get_if<AuthFailure>(&outcome)) {
      return ErrorResponse(AuthError(*failure));
    }
    *grant = std::get<ApiKeys::Grant>(std::move(outcome));
  }
  if (route.endpoint == EndpointId::kUnknown) {
    return ErrorResponse(serving::MakeError(404, "not_found", "There is nothing at this path."));
  }
  if (!route.method_allowed) {
    Response response = ErrorResponse(
        serving::MakeError(405, "method_not_allowed", "This path does not answer to that method."));
    response.headers.emplace_back("allow", std::string(route.Allow()));
    return response;
  }
  std::optional<serving::ApiError> error = CheckLength(context, head);
  if (!error.has_value() && route.post) {
    error = CheckMediaType(head);
  }
  if (!error.has_value()) {
    error = CheckServerState(context, route);
    if (error.has_value()) {
      context.backend->RecordRejection(*error);
    }
  }
  if (error.has_value()) {
    return ErrorResponse(*error);
  }
  return std::nullopt;
}

}  // namespace spindle::server
