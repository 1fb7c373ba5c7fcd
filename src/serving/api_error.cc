#include "serving/api_error.h"

namespace spindle::serving {

ApiError InvalidRequest(std::string code, std::string param, std::string message) {
  ApiError error;
  error.http_status = 400;
  error.type = "invalid_request_error";
  error.code = std::move(code);
  error.message = std::move(message);
  if (!param.empty()) {
    error.param = std::move(param);
  }
  return error;
}

}  // namespace spindle::serving
