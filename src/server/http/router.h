// From a request target to an endpoint (docs/http-api.md). Thread-safety: thread-safe after
// construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace spindle::server {

enum class EndpointId : uint8_t {
  kChatCompletions,
  kCompletions,
  kModels,
  kModel,
  kTokenize,
  kDetokenize,
  kApplyTemplate,
  kRenderChat,
  kCountInputTokens,
  kHealth,
  kLive,
  kReady,
  kMetrics,
  kVersion,
  kAdminRequests,
  kAdminCancel,
  kAdminKv,
  kAdminConfig,
  kAdminCacheReset,
  kAdminDrain,
  kAdminLogLevel,
  kAdminSessions,
  kAdminSession,
  kAdminSessionRestore,
  kAdminSessionPin,
  kAdminSessionUnpin,
  kOptions,  // any path
  kUnknown,
};

inline constexpr size_t kNumEndpoints = static_cast<size_t>(EndpointId::kUnknown) + 1;

enum class Access : uint8_t { kPublic, kKey, kAdmin };

struct Route {
  EndpointId endpoint = EndpointId::kUnknown;
  Access access = Access::kKey;  // unknown paths need a key: probing tells nothing
  bool post = false;             // POST, else GET and HEAD
  bool deletes = false;          // DELETE beside GET and HEAD
  bool method_allowed = false;   // false with a known endpoint: 405
  bool needs_model = false;      // inference: refused while loading or draining
  std::string argument;          // decoded {id} of the path

  // The value of the Allow header.
  [[nodiscard]] std::string_view Allow() const {
    return post ? "POST" : deletes ? "GET, HEAD, DELETE" : "GET, HEAD";
  }
};

class Router {
 public:
  // `root_path`: empty, or "/x" that prefixes all paths. `metrics_auth`: /metrics needs a key.
  // `metrics`: false = /metrics is unknown.
  Router(std::string root_path, bool metrics, bool metrics_auth);

  [[nodiscard]] Route Resolve(std::string_view method, std::string_view target) const;

 private:
  std::string root_path_;
  bool metrics_;
  bool metrics_auth_;
};

// Canonical path of an endpoint: label of metrics, never text from a request.
[[nodiscard]] std::string_view EndpointLabel(EndpointId endpoint);

// The value of a parameter in a target's query, not decoded; nothing when it is not there.
[[nodiscard]] std::optional<std::string_view> QueryValue(std::string_view target,
                                                         std::string_view name);

// The path of a target: absolute form reduced to its path, query cut off; not decoded.
[[nodiscard]] std::string_view TargetPath(std::string_view target);

}  // namespace spindle::server
