#include "server/http/request_head.h"

#include <algorithm>

namespace spindle::server {
namespace {

ParseError Malformed(std::string message) {
  return ParseError{400, "invalid_http", std::move(message)};
}

char LowerAscii(char c) {
  return (c >= 'A' && c <= 'Z') ? static_cast<char>(c - 'A' + 'a') : c;
}

// tchar of RFC 9110.
bool IsTokenChar(char c) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
    return true;
  }
  return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool IsToken(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsTokenChar);
}

bool IsBlank(char c) {
  return c == ' ' || c == '\t';
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsBlank(text.front())) {
    text.remove_prefix(1);
  }
  while (!text.empty() && IsBlank(text.back())) {
    text.remove_suffix(1);
  }
  return text;
}

// Visible ASCII or a byte above 127 (raw UTF-8 in paths is common); no blanks, no controls.
bool IsTargetChar(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte > 0x20 && byte != 0x7F;
}

bool IsValueChar(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return c == '\t' || (byte >= 0x20 && byte != 0x7F);
}

// A length larger than this cannot be a real body; the size check answers 413 for it.
constexpr uint64_t kHugeLength = UINT64_MAX / 16;

std::optional<ParseError> ParseContentLength(std::string_view value, RequestHead* head) {
  if (value.empty() ||
      !std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return Malformed("Content-Length must be a single decimal number.");
  }
  uint64_t length = 0;
  for (const char c : value) {
    length = std::min(kHugeLength, length * 10 + static_cast<uint64_t>(c - '0'));
  }
  head->content_length = length;
  return std::nullopt;
}

std::optional<ParseError> CheckHost(const RequestHead& head) {
  const auto is_host = [](const auto& field) { return field.first == "host"; };
  const auto count = std::count_if(head.fields.begin(), head.fields.end(), is_host);
  if (count > 1 || (count == 0 && !head.http_1_0)) {
    return Malformed("An HTTP/1.1 request needs exactly one Host header.");
  }
  const std::string* host = head.Find("host");
  if (host != nullptr && !std::all_of(host->begin(), host->end(), [](char c) {
        return IsTargetChar(c) && c != ',' && c != '/' && c != '@';
      })) {
    return Malformed("The Host header is not a host name.");
  }
  return std::nullopt;
}

}  // namespace

const std::string* RequestHead::Find(std::string_view lower_name) const {
  for (const auto& [name, value] : fields) {
    if (name == lower_name) {
      return &value;
    }
  }
  return nullptr;
}

bool EqualsIgnoreCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return LowerAscii(x) == LowerAscii(y);
  });
}

bool ListHasToken(std::string_view value, std::string_view lower_token) {
  while (!value.empty()) {
    const size_t comma = value.find(',');
    if (EqualsIgnoreCase(Trim(value.substr(0, comma)), lower_token)) {
      return true;
    }
    if (comma == std::string_view::npos) {
      break;
    }
    value.remove_prefix(comma + 1);
  }
  return false;
}

std::optional<ParseError> ParseRequestLine(std::string_view line, RequestHead* head) {
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) {
    return Malformed("The request line must be METHOD, target and version.");
  }
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!IsToken(method)) {
    return Malformed("The request method is not a token.");
  }
  if (target.empty() || !std::all_of(target.begin(), target.end(), IsTargetChar)) {
    return Malformed("The request target is empty or holds blanks or control characters.");
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return Malformed("Only HTTP/1.1 and HTTP/1.0 are spoken here.");
  }
  head->method = std::string(method);
  head->target = std::string(target);
  head->http_1_0 = version == "HTTP/1.0";
  return std::nullopt;
}

std::optional<ParseError> ParseFieldLine(std::string_view line, RequestHead* head) {
  if (!line.empty() && IsBlank(line.front())) {
    return Malformed("Folded header lines are not accepted.");
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) {
    return Malformed("A header line has no colon.");
  }
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = Trim(line.substr(colon + 1));
  if (!IsToken(name)) {
    return Malformed("A header name is empty or holds characters that are not allowed.");
  }
  if (!std::all_of(value.begin(), value.end(), IsValueChar)) {
    return Malformed("A header value holds a control character.");
  }
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(), LowerAscii);
  head->fields.emplace_back(std::move(lower), std::string(value));
  return std::nullopt;
}

std::optional<ParseError> FinishHead(RequestHead* head) {
  if (auto error = CheckHost(*head)) {
    return error;
  }
  bool close = head->http_1_0;
  bool saw_length = false;
  bool saw_coding = false;
  for (const auto& [name, value] : head->fields) {
    if (name == "content-length") {
      // Even equal duplicates are refused: intermediaries disagree about them.
      if (saw_length) {
        return Malformed("More than one Content-Length.");
      }
      saw_length = true;
      if (auto error = ParseContentLength(value, head)) {
        return error;
      }
    } else if (name == "transfer-encoding") {
      if (saw_coding || !EqualsIgnoreCase(value, "chunked") || head->http_1_0) {
        return Malformed("The only transfer coding is a single \"chunked\", with HTTP/1.1.");
      }
      saw_coding = true;
      head->chunked = true;
    } else if (name == "connection") {
      close = (close && !ListHasToken(value, "keep-alive")) || ListHasToken(value, "close");
    } else if (name == "expect") {
      if (!EqualsIgnoreCase(value, "100-continue")) {
        return Malformed("The only expectation is 100-continue.");
      }
      head->expect_continue = !head->http_1_0;
    }
  }
  if (saw_length && saw_coding) {
    return Malformed("Content-Length together with Transfer-Encoding.");
  }
  head->keep_alive = !close;
  return std::nullopt;
}

}  // namespace spindle::server
