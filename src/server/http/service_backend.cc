// The real service behind the front end's interface.
#include <chrono>
#include <string>
#include <utility>

#include "server/http/backend.h"
#include "server/http/http_server.h"
#include "server/http/json_writer.h"
#include "server/http/response.h"
#include "serving/completion_service.h"
#include "serving/kv_report.h"

namespace spindle::server {
namespace {

void AppendMember(std::string_view name, uint64_t value, std::string* out) {
  out->append(out->back() == '{' ? "\"" : ",\"").append(name).append("\":");
  AppendJsonNumber(value, out);
}

void AppendMember(std::string_view name, std::string_view value, std::string* out) {
  out->append(out->back() == '{' ? "\"" : ",\"").append(name).append("\":");
  AppendJsonString(value, out);
}

std::string_view PhaseName(engine::RequestPhase phase) {
  switch (phase) {
    case engine::RequestPhase::kQueued:
      return "queued";
    case engine::RequestPhase::kPrefill:
      return "prefill";
    case engine::RequestPhase::kDecode:
      return "decode";
    case engine::RequestPhase::kPaused:
      return "paused";
    case engine::RequestPhase::kPreempted:
      return "preempted";
  }
  return "queued";
}

uint64_t PagesPerStripe(const engine::Engine& engine) {
  const kv::KvGeometry& geometry = engine.kv_geometry();
  return geometry.stripe_bytes() / geometry.page_bytes();
}

class ServiceBackend final : public Backend {
 public:
  explicit ServiceBackend(serving::CompletionService& service) : service_(service) {}

  std::optional<serving::ApiError> Unavailable() const override { return service_.Unavailable(); }

  void RecordRejection(const serving::ApiError& error) const override {
    service_.RecordRejection(error);
  }

  std::optional<Duration> SinceLastTick() const override {
    const engine::Engine* engine = service_.engine();
    return engine == nullptr ? std::nullopt : std::optional<Duration>(engine->SinceLastTick());
  }

  serving::Result<serving::PreparedRequest> Prepare(serving::Endpoint endpoint,
                                                    std::string_view body,
                                                    const serving::Caller& caller) const override {
    return service_.Prepare(endpoint, body, caller);
  }

  serving::Result<std::unique_ptr<serving::Generation>> Start(
      const serving::PreparedRequest& request, const serving::Caller& caller) override {
    return service_.Start(request, caller);
  }

  serving::Result<std::string> RunTool(Tool tool, std::string_view body) const override {
    switch (tool) {
      case Tool::kTokenize:
        return service_.Tokenize(body);
      case Tool::kDetokenize:
        return service_.Detokenize(body);
      case Tool::kApplyTemplate:
        return service_.ApplyTemplate(body, false);
      case Tool::kRenderChat:
        return service_.ApplyTemplate(body, true);
      case Tool::kCountInputTokens:
        return service_.CountInputTokens(body);
    }
    return serving::MakeError(500, "internal_error", "Unknown tool.");
  }

  ByteQuota& AnswerMemory() override { return service_.answer_memory(); }

  serving::Result<std::string> ListModels() const override { return service_.ListModels(); }

  serving::Result<std::string> GetModel(std::string_view id) const override {
    return service_.GetModel(id);
  }

  std::string SystemFingerprint() const override { return service_.SystemFingerprint(); }

  serving::Result<std::string> ListRequests() const override;
  serving::Result<std::string> KvReport() const override;
  serving::Result<std::string> ResetCache() override;

  serving::Result<std::string> Sessions(const SessionCall& call) override {
    engine::Engine* engine = service_.engine();
    return engine == nullptr ? NoEngine() : serving::RunSessionCall(*engine, call);
  }

  bool CancelRequest(const std::string& id) override {
    engine::Engine* engine = service_.engine();
    return engine != nullptr && engine->Cancel(id, engine::CancelCause::kAdmin);
  }

 private:
  // Administration of an engine that is not there yet.
  [[nodiscard]] serving::ApiError NoEngine() const {
    return service_.Unavailable().value_or(
        serving::MakeError(503, "model_loading", "The model is not loaded yet."));
  }

  serving::CompletionService& service_;
};

serving::Result<std::string> ServiceBackend::ListRequests() const {
  const engine::Engine* engine = service_.engine();
  if (engine == nullptr) {
    return std::string("[]");
  }
  const std::string& model = service_.options().served_names.front();
  std::string json = "[";
  for (const engine::ActiveRequest& request : engine->ActiveRequests()) {
    json += json.size() > 1 ? ",{" : "{";
    AppendMember("id", request.id, &json);
    AppendMember("state", PhaseName(request.phase), &json);
    AppendMember("model", model, &json);
    json += R"(,"priority":)";
    AppendJsonNumber(static_cast<int64_t>(request.priority), &json);
    AppendMember("prompt_tokens", request.prompt_tokens, &json);
    AppendMember("generated_tokens", request.generated_tokens, &json);
    AppendMember("cached_tokens", request.cached_tokens, &json);
    AppendMember("age_ms", static_cast<uint64_t>(request.age.count()), &json);
    AppendMember("sparse_algorithm", "dense", &json);
    AppendMember("fast_bytes", request.kv_bytes, &json);
    AppendMember("key_name", request.key_name, &json);
    json += '}';
  }
  json += ']';
  return json;
}

serving::Result<std::string> ServiceBackend::KvReport() const {
  const engine::Engine* engine = service_.engine();
  if (engine == nullptr) {
    return NoEngine();
  }
  return serving::KvReportJson(engine->Load(), engine->kv_geometry());
}

serving::Result<std::string> ServiceBackend::ResetCache() {
  engine::Engine* engine = service_.engine();
  if (engine == nullptr) {
    return NoEngine();
  }
  std::string json = "{";
  AppendMember("freed_pages", engine->ResetPrefixCache() * PagesPerStripe(*engine), &json);
  json += '}';
  return json;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Create(const HttpOptions& options,
                                                               serving::CompletionService& service,
                                                               const HttpDependencies& dependencies,
                                                               HttpHooks hooks) {
  return CreateWithBackend(
      options, std::make_unique<ServiceBackend>(service), dependencies, std::move(hooks));
}

}  // namespace spindle::server
