#include "server/http/cors.h"

#include <algorithm>
#include <array>

namespace spindle::server {
namespace {

constexpr std::array<std::string_view, 5> kAllowedHeaders = {
    "authorization", "content-type", "x-request-id", "x-api-key", "traceparent"};
constexpr std::string_view kAllowedHeaderPrefix = "x-stainless-";
constexpr std::string_view kExposedHeaders =
    "x-request-id, retry-after, retry-after-ms, x-should-retry, x-spindle-ignored";

// The list header cannot hold a pattern, so the requested names that match the prefix are named.
std::string AllowedHeaders(const std::string* requested) {
  std::string list;
  for (const std::string_view name : kAllowedHeaders) {
    list.append(list.empty() ? "" : ", ").append(name);
  }
  std::string_view rest = requested == nullptr ? std::string_view() : *requested;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    std::string_view name = rest.substr(0, comma);
    name.remove_prefix(std::min(name.find_first_not_of(" \t"), name.size()));
    if (EqualsIgnoreCase(name.substr(0, kAllowedHeaderPrefix.size()), kAllowedHeaderPrefix)) {
      list.append(", ").append(name);
    }
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
  }
  return list;
}

}  // namespace

Cors::Cors(std::vector<std::string> origins) : origins_(std::move(origins)) {
  any_ = std::find(origins_.begin(), origins_.end(), "*") != origins_.end();
}

std::string Cors::AllowedOrigin(const RequestHead& head) const {
  const std::string* origin = head.Find("origin");
  if (origin == nullptr) {
    return {};
  }
  if (any_) {
    return "*";
  }
  const bool listed = std::find(origins_.begin(), origins_.end(), *origin) != origins_.end();
  return listed ? *origin : std::string();
}

std::vector<std::pair<std::string, std::string>> Cors::ResponseHeaders(
    const RequestHead& head) const {
  std::vector<std::pair<std::string, std::string>> headers;
  if (origins_.empty()) {
    return headers;
  }
  if (!any_) {
    headers.emplace_back("vary", "Origin");
  }
  if (std::string origin = AllowedOrigin(head); !origin.empty()) {
    headers.emplace_back("access-control-allow-origin", std::move(origin));
    headers.emplace_back("access-control-expose-headers", std::string(kExposedHeaders));
  }
  return headers;
}

std::vector<std::pair<std::string, std::string>> Cors::PreflightHeaders(
    const RequestHead& head) const {
  std::vector<std::pair<std::string, std::string>> headers;
  headers.emplace_back("allow", "GET, HEAD, POST, DELETE, OPTIONS");
  if (AllowedOrigin(head).empty()) {
    return headers;
  }
  headers.emplace_back("access-control-allow-methods", "GET, HEAD, POST, DELETE, OPTIONS");
  headers.emplace_back("access-control-allow-headers",
                       AllowedHeaders(head.Find("access-control-request-headers")));
  headers.emplace_back("access-control-max-age", "600");
  return headers;
}

}  // namespace spindle::server
