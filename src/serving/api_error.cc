#include "serving/api_error.h"

#include <string_view>

namespace spindle::serving {
namespace {

std::string_view TypeOf(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
    case 504:
      return "timeout_error";
    case 429:
      return "rate_limit_error";
    case 500:
      return "server_error";
    case 503:
      return "overloaded_error";
    default:
      return "invalid_request_error";
  }
}

}  // namespace

ApiError MakeError(int http_status, std::string code, std::string message) {
  ApiError error;
  error.http_status = http_status;
  error.type = TypeOf(http_status);
  error.code = std::move(code);
  error.message = std::move(message);
  return error;
}

ApiError InvalidRequest(std::string code, std::string param, std::string message) {
  ApiError error = MakeError(400, std::move(code), std::move(message));
  if (!param.empty()) {
    error.param = std::move(param);
  }
  return error;
}

}  // namespace spindle::serving
