// The head of an HTTP/1.1 request and the strict rules for its lines. Everything that two HTTP
// parsers may read differently is refused here, so that a proxy in front of us and we always agree
// where a message ends.
// Thread-safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spindle::server {

// Why a request cannot be read. The connection is closed after the answer.
struct ParseError {
  int http_status = 400;
  std::string code = "invalid_http";
  std::string message;
};

struct RequestHead {
  std::string method;
  std::string target;  // as received; no spaces or control bytes
  bool http_1_0 = false;
  // (lower-case name, value without surrounding blanks), in the order received.
  std::vector<std::pair<std::string, std::string>> fields;

  // Filled by FinishHead.
  bool keep_alive = true;
  bool chunked = false;
  bool expect_continue = false;
  std::optional<uint64_t> content_length;

  // The first field of that (lower-case) name; null when absent.
  [[nodiscard]] const std::string* Find(std::string_view lower_name) const;

  [[nodiscard]] bool has_body() const { return chunked || content_length.value_or(0) > 0; }
};

// ASCII only; bytes above 127 compare as they are.
[[nodiscard]] bool EqualsIgnoreCase(std::string_view a, std::string_view b);

// True when the comma-separated list `value` holds `lower_token` (compared without case).
[[nodiscard]] bool ListHasToken(std::string_view value, std::string_view lower_token);

// `METHOD SP target SP HTTP/1.x`, without its CRLF. Returns the error, or nothing.
[[nodiscard]] std::optional<ParseError> ParseRequestLine(std::string_view line, RequestHead* head);

// `name: value`, without its CRLF; also used for trailers.
[[nodiscard]] std::optional<ParseError> ParseFieldLine(std::string_view line, RequestHead* head);

// Host, framing and connection rules over all fields; fills the derived members.
[[nodiscard]] std::optional<ParseError> FinishHead(RequestHead* head);

}  // namespace spindle::server
