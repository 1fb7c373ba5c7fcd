#include "unit/server/scripted_backend.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "server/http/response.h"

namespace spindle::server {

class ScriptedGeneration final : public serving::Generation {
 public:
  explicit ScriptedGeneration(std::shared_ptr<Script> script) : script_(std::move(script)) {}

  ~ScriptedGeneration() override {
    MutexLock lock(script_->mutex_);
    script_->ready_ = nullptr;
    script_->released_ = true;
    script_->changed_.NotifyAll();
  }

  size_t Poll(size_t max_events, std::vector<serving::GenerationEvent>* events) override {
    MutexLock lock(script_->mutex_);
    size_t count = 0;
    for (; count < max_events && !script_->events_.empty(); ++count) {
      if (const auto* end = std::get_if<serving::UsageEvent>(&script_->events_.front())) {
        usage_ = end->usage;
      }
      events->push_back(std::move(script_->events_.front()));
      script_->events_.pop_front();
    }
    script_->num_polled_ += count;
    return count;
  }

  bool Done() const override {
    MutexLock lock(script_->mutex_);
    return script_->last_pushed_ && script_->events_.empty();
  }

  void SetReadyCallback(std::function<void()> ready) override {
    MutexLock lock(script_->mutex_);
    script_->ready_ = std::move(ready);
    if (script_->ready_ && !script_->events_.empty()) {
      script_->ready_();
    }
  }

  // Like the engine: a cancelled generation still ends with an event.
  void Cancel(engine::CancelCause cause) override {
    {
      MutexLock lock(script_->mutex_);
      script_->cancelled_ = cause;
      script_->num_polled_before_cancel_ = script_->num_polled_;
      script_->changed_.NotifyAll();
    }
    script_->Fail(serving::MakeError(500, "internal_error", "cancelled"));
  }

  void Fail(const serving::ApiError& error) override {
    {
      MutexLock lock(script_->mutex_);
      script_->events_.clear();
    }
    script_->Fail(error);
  }

  const std::string& request_id() const override { return script_->id(); }

  serving::Usage usage() const override { return usage_; }

 private:
  const std::shared_ptr<Script> script_;
  serving::Usage usage_{7, 3, 0};
};

void Script::Push(serving::GenerationEvent event) {
  MutexLock lock(mutex_);
  last_pushed_ = last_pushed_ || std::holds_alternative<serving::UsageEvent>(event) ||
                 std::holds_alternative<serving::ErrorEvent>(event);
  events_.push_back(std::move(event));
  if (ready_) {
    ready_();
  }
}

void Script::Text(std::string text, uint32_t choice) {
  serving::DeltaEvent delta;
  delta.choice = choice;
  delta.text = std::move(text);
  Push(std::move(delta));
}

void Script::Finish(uint32_t choice, engine::FinishReason reason) {
  serving::FinishedEvent finish;
  finish.choice = choice;
  finish.reason = reason;
  Push(std::move(finish));
}

void Script::End(serving::Usage usage) {
  Push(serving::UsageEvent{usage, {}});
}

void Script::Fail(serving::ApiError error) {
  Push(serving::ErrorEvent{std::move(error)});
}

engine::CancelCause Script::WaitForCancel() {
  MutexLock lock(mutex_);
  while (!cancelled_.has_value()) {
    changed_.Wait(mutex_);
  }
  return *cancelled_;
}

void Script::WaitForRelease() {
  MutexLock lock(mutex_);
  while (!released_) {
    changed_.Wait(mutex_);
  }
}

size_t Script::num_polled() const {
  MutexLock lock(mutex_);
  return num_polled_;
}

std::optional<size_t> Script::num_polled_before_cancel() const {
  MutexLock lock(mutex_);
  return num_polled_before_cancel_;
}

std::shared_ptr<Script> ScriptedBackend::NextScript() {
  MutexLock lock(mutex_);
  while (scripts_.empty()) {
    started_.Wait(mutex_);
  }
  std::shared_ptr<Script> script = std::move(scripts_.front());
  scripts_.pop_front();
  return script;
}

void ScriptedBackend::SetUnavailable(std::optional<serving::ApiError> error) {
  MutexLock lock(mutex_);
  unavailable_ = std::move(error);
}

void ScriptedBackend::SetStartError(std::optional<serving::ApiError> error) {
  MutexLock lock(mutex_);
  start_error_ = std::move(error);
}

void ScriptedBackend::SetSilence(Duration silence) {
  MutexLock lock(mutex_);
  silence_ = silence;
}

std::vector<serving::Caller> ScriptedBackend::callers() const {
  MutexLock lock(mutex_);
  return callers_;
}

size_t ScriptedBackend::num_rejections() const {
  MutexLock lock(mutex_);
  return num_rejections_;
}

std::string ScriptedBackend::last_body() const {
  MutexLock lock(mutex_);
  return last_body_;
}

std::optional<serving::ApiError> ScriptedBackend::Unavailable() const {
  MutexLock lock(mutex_);
  return unavailable_;
}

void ScriptedBackend::RecordRejection(const serving::ApiError& /*error*/) const {
  MutexLock lock(mutex_);
  ++num_rejections_;
}

std::optional<Duration> ScriptedBackend::SinceLastTick() const {
  MutexLock lock(mutex_);
  return silence_;
}

void ScriptedBackend::SetBeforePrepare(std::function<void()> hook) {
  MutexLock lock(mutex_);
  before_prepare_ = std::move(hook);
}

serving::Result<serving::PreparedRequest> ScriptedBackend::Prepare(
    serving::Endpoint endpoint, std::string_view body, const serving::Caller& caller) const {
  std::function<void()> hook;
  {
    MutexLock lock(mutex_);
    hook = before_prepare_;
  }
  if (hook) {
    hook();
  }
  const nlohmann::json json = nlohmann::json::parse(body, nullptr, false);
  {
    MutexLock lock(mutex_);
    callers_.push_back(caller);
    last_body_ = std::string(body);
  }
  if (!json.is_object()) {
    return serving::MakeError(400, "invalid_json", "The body is not a JSON object.");
  }
  if (json.contains("error")) {
    return serving::MakeError(json["error"], "scripted", "As asked for.");
  }
  serving::PreparedRequest request;
  request.endpoint = endpoint;
  request.model = "smol";
  request.prompts = {{11, 12, 13}};
  request.sampling.num_choices = json.value("n", 1U);
  request.stream = json.value("stream", false);
  request.include_usage = json.value("include_usage", false);
  request.continuous_usage = json.value("continuous_usage", false);
  request.progress = json.value("progress", false);
  request.return_token_ids = json.value("ids", false);
  if (json.contains("logprobs")) {
    request.sampling.logprobs = json["logprobs"].get<uint32_t>();
  }
  request.ignored_fields = json.value("ignored", std::vector<std::string>());
  request.request_id = json.value("request_id", "");
  if (json.contains("auto")) {
    request.prompt_texts = {json["auto"].get<std::string>()};
  }
  return request;
}

serving::Result<std::unique_ptr<serving::Generation>> ScriptedBackend::Start(
    const serving::PreparedRequest& request, const serving::Caller& caller) {
  auto script = std::make_shared<Script>(caller.request_id);
  {
    MutexLock lock(mutex_);
    if (start_error_.has_value()) {
      return *start_error_;
    }
    if (request.prompt_texts.empty()) {
      scripts_.push_back(script);
      started_.NotifyAll();
    }
  }
  if (!request.prompt_texts.empty()) {
    script->Push(serving::StartedEvent{{7, 0, 2}});
    script->Text(request.prompt_texts.front());
    script->Finish();
    script->End({7, 4, 2});
  }
  return std::unique_ptr<serving::Generation>(std::make_unique<ScriptedGeneration>(script));
}

serving::Result<std::string> ScriptedBackend::RunTool(Tool tool, std::string_view body) const {
  return R"({"tool":)" + std::to_string(static_cast<int>(tool)) + R"(,"body":)" +
         nlohmann::json(std::string(body)).dump() + "}";
}

serving::Result<std::string> ScriptedBackend::ListModels() const {
  return std::string(R"({"object":"list","data":[]})");
}

serving::Result<std::string> ScriptedBackend::GetModel(std::string_view id) const {
  if (id != "org/smol model") {
    return serving::MakeError(404, "model_not_found", "No such model.");
  }
  return std::string(R"({"id":"org/smol model"})");
}

serving::Result<std::string> ScriptedBackend::Sessions(const SessionCall& call) {
  if (call.id == "none") {
    return serving::MakeError(404, "not_found", "There is no such session.");
  }
  return R"({"call":")" + std::to_string(static_cast<int>(call.action)) + " " +
         call.tenant.value_or("all") + " " + call.id + R"("})";
}

}  // namespace spindle::server
