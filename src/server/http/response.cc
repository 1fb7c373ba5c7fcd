#include "server/http/response.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "server/http/json_writer.h"

namespace spindle::server {
std::string ErrorJson(const serving::ApiError& error, std::optional<int> status) {
  std::string json = R"({"error":{"message":)";
  AppendJsonString(error.message, &json);
  json += R"(,"type":)";
  AppendJsonString(error.type, &json);
  json += R"(,"param":)";
  if (error.param.has_value()) {
    AppendJsonString(*error.param, &json);
  } else {
    json += "null";
  }
  json += R"(,"code":)";
  AppendJsonString(error.code, &json);
  for (const auto& [key, value] : error.extras) {
    json += ',';
    AppendJsonString(key, &json);
    json += ':';
    AppendJsonNumber(value, &json);
  }
  if (error.progress.has_value()) {
    json += R"(,"progress":)";
    AppendJsonNumber(static_cast<float>(*error.progress), &json);
  }
  if (status.has_value()) {
    json += R"(,"status":)";
    AppendJsonNumber(static_cast<int64_t>(*status), &json);
  }
  json += "}}";
  return json;
}

Response ErrorResponse(const serving::ApiError& error) {
  Response response;
  response.status = error.http_status;
  response.error_code = error.code;
  response.body = ErrorJson(error, std::nullopt);
  if (error.http_status == 401) {
    response.headers.emplace_back("www-authenticate", "Bearer");
  }
  if (error.retry_after.has_value()) {
    // Whole seconds in [1, 60]; the millisecond form carries the same value.
    const int64_t ms = error.retry_after->count();
    const int64_t seconds = std::clamp<int64_t>(ms / 1000 + (ms % 1000 > 0 ? 1 : 0), 1, 60);
    response.headers.emplace_back("retry-after", std::to_string(seconds));
    response.headers.emplace_back("retry-after-ms", std::to_string(seconds * 1000));
  }
  if (error.should_retry.has_value()) {
    response.headers.emplace_back("x-should-retry", *error.should_retry ? "true" : "false");
  }
  response.close = error.http_status == 408 || error.http_status == 413 ||
                   error.http_status == 414 || error.http_status == 431 ||
                   error.code == "invalid_http" || error.code == "shutting_down";
  return response;
}

serving::ApiError ToApiError(const ParseError& error) {
  return serving::MakeError(error.http_status, error.code, error.message);
}

std::string_view ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Unknown";
  }
}

std::string SerializeHead(const Response& response,
                          Framing framing,
                          const std::vector<std::pair<std::string, std::string>>& common) {
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + ' ';
  head += ReasonPhrase(response.status);
  head += "\r\n";
  const auto add = [&head](std::string_view name, std::string_view value) {
    head.append(name).append(": ").append(value).append("\r\n");
  };
  if (response.status != 204) {
    add("content-type", response.content_type);
    if (framing == Framing::kLength) {
      add("content-length", std::to_string(response.body_bytes()));
    } else if (framing == Framing::kChunked) {
      add("transfer-encoding", "chunked");
    }
  }
  for (const auto& [name, value] : response.headers) {
    add(name, value);
  }
  for (const auto& [name, value] : common) {
    add(name, value);
  }
  head += "\r\n";
  return head;
}

}  // namespace spindle::server
