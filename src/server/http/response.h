// Response heads, the error body, and the headers that errors bring (docs/http-api.md).
// Thread-safety: plain values and pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/request_head.h"
#include "server/http/text_blocks.h"
#include "serving/api_error.h"

namespace spindle::server {

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  TextBlocks more_body;                                      // behind `body`
  std::vector<std::pair<std::string, std::string>> headers;  // further ones
  bool close = false;                                        // the connection ends after it
  std::string error_code;  // of an error answer, for logs and metrics

  [[nodiscard]] uint64_t body_bytes() const { return body.size() + more_body.size_bytes(); }
};

// {"error":{…}}; `status` adds the integer that errors inside a stream carry.
[[nodiscard]] std::string ErrorJson(const serving::ApiError& error, std::optional<int> status);

// The whole error answer, with Retry-After, WWW-Authenticate and the like.
[[nodiscard]] Response ErrorResponse(const serving::ApiError& error);

[[nodiscard]] serving::ApiError ToApiError(const ParseError& error);

[[nodiscard]] std::string_view ReasonPhrase(int status);

// The body is delimited by Content-Length, by chunks, or by the end of the connection (HTTP/1.0).
enum class Framing { kLength, kChunked, kUntilClose };

// The head up to and including the empty line. `common` headers come after the response's own.
[[nodiscard]] std::string SerializeHead(
    const Response& response,
    Framing framing,
    const std::vector<std::pair<std::string, std::string>>& common);

}  // namespace spindle::server
