// What the HTTP front end asks of the rest: the completion service behind an interface, so that
// tests run against a scripted one. Thread-safety: implementations are thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/byte_quota.h"
#include "base/clock.h"
#include "serving/api_error.h"
#include "serving/completion_service.h"
#include "serving/generation.h"
#include "serving/session_report.h"

namespace spindle::server {

// Tokenizer tools: JSON in, JSON out.
enum class Tool : uint8_t {
  kTokenize,
  kDetokenize,
  kApplyTemplate,
  kRenderChat,
  kCountInputTokens
};

using serving::SessionCall;

class Backend {
 public:
  virtual ~Backend() = default;

  // 503 while loading or draining; nothing when ready.
  [[nodiscard]] virtual std::optional<serving::ApiError> Unavailable() const = 0;
  // Counts a refusal that the front end made itself; the others count their own.
  virtual void RecordRejection(const serving::ApiError& error) const = 0;
  // How long ago the engine thread last gave a sign of life; nullopt without an engine.
  [[nodiscard]] virtual std::optional<Duration> SinceLastTick() const = 0;

  // Memory of answers, common to all transports.
  [[nodiscard]] virtual ByteQuota& AnswerMemory() = 0;

  // See CompletionService::Prepare and Start.
  [[nodiscard]] virtual serving::Result<serving::PreparedRequest> Prepare(
      serving::Endpoint endpoint, std::string_view body, const serving::Caller& caller) const = 0;
  [[nodiscard]] virtual serving::Result<std::unique_ptr<serving::Generation>> Start(
      const serving::PreparedRequest& request, const serving::Caller& caller) = 0;

  [[nodiscard]] virtual serving::Result<std::string> RunTool(Tool tool,
                                                             std::string_view body) const = 0;
  [[nodiscard]] virtual serving::Result<std::string> ListModels() const = 0;
  [[nodiscard]] virtual serving::Result<std::string> GetModel(std::string_view id) const = 0;
  [[nodiscard]] virtual std::string SystemFingerprint() const = 0;

  // Administration; JSON. Refused with 503 without a model.
  [[nodiscard]] virtual serving::Result<std::string> ListRequests() const = 0;
  [[nodiscard]] virtual serving::Result<std::string> KvReport() const = 0;
  [[nodiscard]] virtual serving::Result<std::string> ResetCache() = 0;
  [[nodiscard]] virtual serving::Result<std::string> Sessions(const SessionCall& call) = 0;
  // False when no such request is active.
  virtual bool CancelRequest(const std::string& id) = 0;
};

}  // namespace spindle::server
