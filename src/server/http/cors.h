// Cross-origin rules. Credentials are never allowed, so `*` is safe. Thread-safety: thread-safe
// after construction.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/request_head.h"

namespace spindle::server {

class Cors {
 public:
  // Origins to allow, or "*"; empty = off.
  explicit Cors(std::vector<std::string> origins);

  // Headers for an ordinary response to `head`.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> ResponseHeaders(
      const RequestHead& head) const;
  // Headers for a preflight; without those that grant anything when the origin is not allowed.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> PreflightHeaders(
      const RequestHead& head) const;

 private:
  // The value of allow-origin for this request; empty = not allowed.
  [[nodiscard]] std::string AllowedOrigin(const RequestHead& head) const;

  std::vector<std::string> origins_;
  bool any_ = false;
};

}  // namespace spindle::server
