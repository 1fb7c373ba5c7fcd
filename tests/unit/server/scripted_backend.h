// A backend that speaks a script: tests decide when a generation's events appear.
// Thread-safety: thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "server/http/backend.h"
#include "serving/answer_memory.h"

namespace spindle::server {

// The test's end of a generation. Shared by the test and the server.
class Script {
 public:
  explicit Script(std::string request_id) : id_(std::move(request_id)) {}

  [[nodiscard]] const std::string& id() const { return id_; }

  void Push(serving::GenerationEvent event);
  // Delta, finish and usage as a model would give them.
  void Text(std::string text, uint32_t choice = 0);
  void Finish(uint32_t choice = 0, engine::FinishReason reason = engine::FinishReason::kStop);
  void End(serving::Usage usage = {});
  void Fail(serving::ApiError error);

  // Blocks until the server cancelled the generation.
  [[nodiscard]] engine::CancelCause WaitForCancel();
  // Blocks until the server let go of it.
  void WaitForRelease();
  // Events that were taken, and how many before the server cancelled it.
  [[nodiscard]] size_t num_polled() const;
  [[nodiscard]] std::optional<size_t> num_polled_before_cancel() const;

 private:
  friend class ScriptedGeneration;
  friend class ScriptedBackend;

  const std::string id_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<serving::GenerationEvent> events_ SPINDLE_GUARDED_BY(mutex_);
  std::function<void()> ready_ SPINDLE_GUARDED_BY(mutex_);
  std::optional<engine::CancelCause> cancelled_ SPINDLE_GUARDED_BY(mutex_);
  std::optional<size_t> num_polled_before_cancel_ SPINDLE_GUARDED_BY(mutex_);
  bool released_ SPINDLE_GUARDED_BY(mutex_) = false;
  bool last_pushed_ SPINDLE_GUARDED_BY(mutex_) = false;
  size_t num_polled_ SPINDLE_GUARDED_BY(mutex_) = 0;
};

// Request bodies are JSON objects; `prompt` or `messages` are not looked at, other members choose
// the form: stream, include_usage, continuous_usage, logprobs, n, progress, ids, ignored. A body
// with `error` is refused with that status and code. `auto` (a string): the generation is complete
// at once with that text.
class ScriptedBackend final : public Backend {
 public:
  explicit ScriptedBackend(uint64_t answer_memory_bytes = uint64_t{1} << 30)
      : answer_memory_(answer_memory_bytes, serving::kSmallAnswerBytes) {}

  // Blocks until the server started the next generation.
  [[nodiscard]] std::shared_ptr<Script> NextScript();

  void SetUnavailable(std::optional<serving::ApiError> error);
  void SetStartError(std::optional<serving::ApiError> error);
  void SetSilence(Duration silence);
  // Prepare calls it first, on whatever thread it runs.
  void SetBeforePrepare(std::function<void()> hook);
  [[nodiscard]] std::vector<serving::Caller> callers() const;
  [[nodiscard]] size_t num_rejections() const;
  [[nodiscard]] std::string last_body() const;

  std::optional<serving::ApiError> Unavailable() const override;
  void RecordRejection(const serving::ApiError& error) const override;
  std::optional<Duration> SinceLastTick() const override;
  serving::Result<serving::PreparedRequest> Prepare(serving::Endpoint endpoint,
                                                    std::string_view body,
                                                    const serving::Caller& caller) const override;
  serving::Result<std::unique_ptr<serving::Generation>> Start(
      const serving::PreparedRequest& request, const serving::Caller& caller) override;
  serving::Result<std::string> RunTool(Tool tool, std::string_view body) const override;
  serving::Result<std::string> ListModels() const override;
  serving::Result<std::string> GetModel(std::string_view id) const override;

  ByteQuota& AnswerMemory() override { return answer_memory_; }

  std::string SystemFingerprint() const override { return "fp_0123456789ab"; }

  serving::Result<std::string> ListRequests() const override { return std::string("[]"); }

  serving::Result<std::string> KvReport() const override { return std::string("{}"); }

  serving::Result<std::string> ResetCache() override { return std::string(R"({"freed_pages":3})"); }

  // {"call":"ACTION TENANT ID"}, actions by number; 404 for the id "none".
  serving::Result<std::string> Sessions(const SessionCall& call) override;

  bool CancelRequest(const std::string& id) override { return id == "known"; }

 private:
  mutable Mutex mutex_;
  CondVar started_;
  std::deque<std::shared_ptr<Script>> scripts_ SPINDLE_GUARDED_BY(mutex_);
  std::optional<serving::ApiError> unavailable_ SPINDLE_GUARDED_BY(mutex_);
  std::optional<serving::ApiError> start_error_ SPINDLE_GUARDED_BY(mutex_);
  Duration silence_ SPINDLE_GUARDED_BY(mutex_){0};
  std::function<void()> before_prepare_ SPINDLE_GUARDED_BY(mutex_);
  mutable std::vector<serving::Caller> callers_ SPINDLE_GUARDED_BY(mutex_);
  mutable size_t num_rejections_ SPINDLE_GUARDED_BY(mutex_) = 0;
  mutable std::string last_body_ SPINDLE_GUARDED_BY(mutex_);
  ByteQuota answer_memory_;
};

}  // namespace spindle::server
