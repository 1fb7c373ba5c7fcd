#include "server/http/router.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "server/http/request_head.h"

namespace spindle::server {
namespace {

struct Row {
  std::string_view path;  // without /v1
  EndpointId endpoint;
  bool under_v1;  // answers with the prefix /v1
  bool bare;      // answers without it
  Access access = Access::kKey;
  bool post = false;
  bool needs_model = false;
};

constexpr std::array kRows = {
    Row{"/chat/completions", EndpointId::kChatCompletions, true, true, Access::kKey, true, true},
    Row{"/completions", EndpointId::kCompletions, true, true, Access::kKey, true, true},
    Row{"/models", EndpointId::kModels, true, true},
    Row{"/tokenize", EndpointId::kTokenize, true, true, Access::kKey, true},
    Row{"/detokenize", EndpointId::kDetokenize, true, true, Access::kKey, true},
    Row{"/apply-template", EndpointId::kApplyTemplate, false, true, Access::kKey, true},
    Row{"/chat/completions/render", EndpointId::kRenderChat, true, true, Access::kKey, true},
    Row{"/chat/completions/input_tokens",
        EndpointId::kCountInputTokens,
        true,
        true,
        Access::kKey,
        true},
    Row{"/health", EndpointId::kHealth, false, true, Access::kPublic},
    Row{"/healthz", EndpointId::kHealth, false, true, Access::kPublic},
    Row{"/ping", EndpointId::kHealth, false, true, Access::kPublic},
    Row{"/live", EndpointId::kLive, false, true, Access::kPublic},
    Row{"/livez", EndpointId::kLive, false, true, Access::kPublic},
    Row{"/ready", EndpointId::kReady, false, true, Access::kPublic},
    Row{"/readyz", EndpointId::kReady, false, true, Access::kPublic},
    Row{"/metrics", EndpointId::kMetrics, false, true, Access::kPublic},
    Row{"/version", EndpointId::kVersion, false, true, Access::kPublic},
    Row{"/admin/requests", EndpointId::kAdminRequests, false, true, Access::kAdmin},
    Row{"/slots", EndpointId::kAdminRequests, false, true, Access::kAdmin},
    Row{"/admin/kv", EndpointId::kAdminKv, false, true, Access::kAdmin},
    Row{"/admin/config", EndpointId::kAdminConfig, false, true, Access::kAdmin},
    Row{"/admin/cache/reset", EndpointId::kAdminCacheReset, false, true, Access::kAdmin, true},
    Row{"/admin/drain", EndpointId::kAdminDrain, false, true, Access::kAdmin, true},
    Row{"/admin/log-level", EndpointId::kAdminLogLevel, false, true, Access::kAdmin, true},
    Row{"/admin/sessions", EndpointId::kAdminSessions, false, true, Access::kAdmin},
};

constexpr std::string_view kV1 = "/v1";

int HexDigit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// Percent-decoding of a path argument; nothing for a broken escape.
std::optional<std::string> Decode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded.push_back(text[i]);
      continue;
    }
    const int high = i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? HexDigit(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      return std::nullopt;
    }
    decoded.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return decoded;
}

bool Consume(std::string_view prefix, std::string_view* path) {
  if (path->substr(0, prefix.size()) != prefix) {
    return false;
  }
  path->remove_prefix(prefix.size());
  return true;
}

// /admin/sessions/{id} and what can be done with it; `id` is what follows the prefix.
Route ResolveSession(std::string_view* id) {
  struct Verb {
    std::string_view suffix;
    EndpointId endpoint;
  };

  constexpr std::array kVerbs = {Verb{"/restore", EndpointId::kAdminSessionRestore},
                                 Verb{"/pin", EndpointId::kAdminSessionPin},
                                 Verb{"/unpin", EndpointId::kAdminSessionUnpin}};
  Route route;
  route.access = Access::kAdmin;
  route.endpoint = EndpointId::kAdminSession;
  for (const Verb& verb : kVerbs) {
    if (id->ends_with(verb.suffix)) {
      id->remove_suffix(verb.suffix.size());
      route.endpoint = verb.endpoint;
      route.post = true;
    }
  }
  route.deletes = !route.post;
  return route;
}

// Paths with an id in them.
std::optional<Route> ResolveWithArgument(std::string_view path, bool v1) {
  Route route;
  std::string_view id = path;
  if (Consume("/models/", &id)) {
    route.endpoint = EndpointId::kModel;
  } else if (!v1 && Consume("/admin/requests/", &id) && id.size() > 7 &&
             id.substr(id.size() - 7) == "/cancel") {
    id.remove_suffix(7);
    route.endpoint = EndpointId::kAdminCancel;
    route.access = Access::kAdmin;
    route.post = true;
  } else if (!v1 && Consume("/admin/sessions/", &id)) {
    route = ResolveSession(&id);
  } else {
    return std::nullopt;
  }
  std::optional<std::string> argument = Decode(id);
  if (!argument.has_value() || argument->empty()) {
    return std::nullopt;
  }
  route.argument = *std::move(argument);
  return route;
}

std::optional<Route> ResolvePath(std::string_view path) {
  std::string_view tail = path;
  const bool v1 = Consume(kV1, &tail) && !tail.empty() && tail.front() == '/';
  if (!v1) {
    tail = path;
  }
  for (const Row& row : kRows) {
    if (row.path == tail && (v1 ? row.under_v1 : row.bare)) {
      Route route;
      route.endpoint = row.endpoint;
      route.access = row.access;
      route.post = row.post;
      route.needs_model = row.needs_model;
      return route;
    }
  }
  return ResolveWithArgument(tail, v1);
}

}  // namespace

std::string_view TargetPath(std::string_view target) {
  const size_t scheme = target.find("://");
  if (!target.empty() && target.front() != '/' && scheme != std::string_view::npos) {
    const size_t slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  return target.substr(0, target.find_first_of("?#"));
}

std::optional<std::string_view> QueryValue(std::string_view target, std::string_view name) {
  const size_t mark = target.find('?');
  std::string_view query = mark == std::string_view::npos ? "" : target.substr(mark + 1);
  query = query.substr(0, query.find('#'));
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    if (pair.starts_with(name) && pair.substr(name.size()).starts_with('=')) {
      return pair.substr(name.size() + 1);
    }
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
  }
  return std::nullopt;
}

std::string_view EndpointLabel(EndpointId endpoint) {
  switch (endpoint) {
    case EndpointId::kModel:
      return "/v1/models/{id}";
    case EndpointId::kAdminCancel:
      return "/admin/requests/{id}/cancel";
    case EndpointId::kAdminSession:
      return "/admin/sessions/{id}";
    case EndpointId::kAdminSessionRestore:
      return "/admin/sessions/{id}/restore";
    case EndpointId::kAdminSessionPin:
      return "/admin/sessions/{id}/pin";
    case EndpointId::kAdminSessionUnpin:
      return "/admin/sessions/{id}/unpin";
    case EndpointId::kOptions:
      return "options";
    case EndpointId::kUnknown:
      return "other";
    case EndpointId::kChatCompletions:
      return "/v1/chat/completions";
    case EndpointId::kCompletions:
      return "/v1/completions";
    case EndpointId::kModels:
      return "/v1/models";
    case EndpointId::kRenderChat:
      return "/v1/chat/completions/render";
    case EndpointId::kCountInputTokens:
      return "/v1/chat/completions/input_tokens";
    default:
      break;
  }
  for (const Row& row : kRows) {
    if (row.endpoint == endpoint) {
      return row.path;
    }
  }
  return "other";
}

Router::Router(std::string root_path, bool metrics, bool metrics_auth)
    : root_path_(std::move(root_path)), metrics_(metrics), metrics_auth_(metrics_auth) {}

Route Router::Resolve(std::string_view method, std::string_view target) const {
  if (method == "OPTIONS") {
    Route route;
    route.endpoint = EndpointId::kOptions;
    route.access = Access::kPublic;
    route.method_allowed = true;
    return route;
  }
  std::string_view path = TargetPath(target);
  if (!Consume(root_path_, &path)) {
    return Route{};
  }
  std::optional<Route> route = ResolvePath(path);
  if (!route.has_value() || (route->endpoint == EndpointId::kMetrics && !metrics_)) {
    return Route{};
  }
  if (route->endpoint == EndpointId::kMetrics && metrics_auth_) {
    route->access = Access::kKey;
  }
  route->method_allowed =
      route->post ? method == "POST"
                  : method == "GET" || method == "HEAD" || (route->deletes && method == "DELETE");
  return *std::move(route);
}

}  // namespace spindle::server
