// An error as API clients see it (docs/http-api.md), and a result type that carries it.
// Thread-safety: plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace spindle::serving {

struct ApiError {
  int http_status = 500;
  std::string type = "server_error";
  std::string code = "internal_error";
  std::string message;
  std::optional<std::string> param;                     // dotted path with indexes
  std::vector<std::pair<std::string, int64_t>> extras;  // further integer keys of the error object
  std::optional<double> progress;  // model_loading: a further key of the error object, in [0, 1]
  std::optional<std::chrono::milliseconds> retry_after;
  std::optional<bool> should_retry;  // x-should-retry header
};

// Nothing when all is well.
using MaybeError = std::optional<ApiError>;

// An error whose type follows from the status.
[[nodiscard]] ApiError MakeError(int http_status, std::string code, std::string message);

// 400 with the given code.
[[nodiscard]] ApiError InvalidRequest(std::string code, std::string param, std::string message);

// A value or the error to answer with. Like StatusOr, for failures that have an API form.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}  // NOLINT(google-explicit-constructor)

  Result(ApiError error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return std::holds_alternative<T>(state_); }

  // REQUIRES: ok().
  [[nodiscard]] T& value() & { return std::get<T>(state_); }

  [[nodiscard]] const T& value() const& { return std::get<T>(state_); }

  [[nodiscard]] T&& value() && { return std::get<T>(std::move(state_)); }

  // REQUIRES: !ok().
  [[nodiscard]] const ApiError& error() const { return std::get<ApiError>(state_); }

 private:
  std::variant<T, ApiError> state_;
};

}  // namespace spindle::serving
