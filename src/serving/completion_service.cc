#include "serving/completion_service.h"

#include <atomic>
#include <utility>

#include "serving/service_core.h"

namespace spindle::serving {

class CompletionService::Impl {
 public:
  Impl(const ServingOptions& options, metrics::Registry& registry, const Clock& clock)
      : core(options,
             registry,
             clock,
             [](std::string_view source, const text::Tokenizer& tokenizer) {
               return text::ChatTemplate::Compile(
                   source, tokenizer.bos_text(), tokenizer.eos_text(), tokenizer.special_texts());
             }) {}

  ServiceCore core;
  std::atomic<engine::Engine*> engine{nullptr};  // owned by core's backend
};

CompletionService::CompletionService(const ServingOptions& options,
                                     metrics::Registry& registry,
                                     const Clock& clock)
    : impl_(std::make_unique<Impl>(options, registry, clock)) {}

CompletionService::~CompletionService() = default;

void CompletionService::SetLoadProgress(double fraction) {
  impl_->core.SetLoadProgress(fraction);
}

void CompletionService::SetModel(LoadedModel model) {
  engine::Engine* engine = model.engine.get();
  ServedModel served;
  served.engine = WrapEngine(std::move(model.engine));
  served.tokenizer = std::move(model.tokenizer);
  served.chat_template = std::move(model.chat_template);
  served.facts.temperature = model.temperature;
  served.facts.top_p = model.top_p;
  served.facts.top_k = model.top_k;
  served.kernel_name = std::move(model.kernel_name);
  served.file_bytes = model.file_bytes;
  served.num_parameters = model.num_parameters;
  served.created_unix_seconds = model.created_unix_seconds;
  impl_->engine = engine;
  impl_->core.SetModel(std::move(served));
}

CompletionService::State CompletionService::state() const {
  return impl_->core.state();
}

double CompletionService::load_progress() const {
  return impl_->core.load_progress();
}

std::optional<ApiError> CompletionService::Unavailable() const {
  return impl_->core.Unavailable();
}

engine::Engine* CompletionService::engine() const {
  return impl_->engine;
}

void CompletionService::BeginDrain() {
  impl_->core.BeginDrain();
}

void CompletionService::Shutdown(TimePoint deadline) {
  impl_->core.Shutdown(deadline);
}

Result<PreparedRequest> CompletionService::Prepare(Endpoint endpoint,
                                                   std::string_view body,
                                                   const Caller& caller) const {
  return impl_->core.Prepare(endpoint, body, caller);
}

SamplingParams CompletionService::DefaultSampling() const {
  return impl_->core.DefaultSampling();
}

Result<PreparedRequest> CompletionService::Validate(PreparedRequest request) const {
  return impl_->core.Validate(std::move(request));
}

Result<std::unique_ptr<Generation>> CompletionService::Start(const PreparedRequest& request,
                                                             const Caller& caller) {
  return impl_->core.Start(request, caller);
}

Result<std::string> CompletionService::Tokenize(std::string_view body) const {
  return impl_->core.Tokenize(body);
}

Result<std::string> CompletionService::Detokenize(std::string_view body) const {
  return impl_->core.Detokenize(body);
}

Result<std::string> CompletionService::ApplyTemplate(std::string_view body, bool render) const {
  return impl_->core.ApplyTemplate(body, render);
}

Result<std::string> CompletionService::CountInputTokens(std::string_view body) const {
  return impl_->core.CountInputTokens(body);
}

Result<std::string> CompletionService::ListModels() const {
  return impl_->core.ListModels();
}

Result<std::string> CompletionService::GetModel(std::string_view id) const {
  return impl_->core.GetModel(id);
}

void CompletionService::RecordRejection(const ApiError& error) const {
  impl_->core.RecordRejection(error);
}

const text::Tokenizer* CompletionService::tokenizer() const {
  const ServedModel* model = impl_->core.model();
  return model == nullptr ? nullptr : model->tokenizer.get();
}

const ServingOptions& CompletionService::options() const {
  return impl_->core.options();
}

std::string CompletionService::SystemFingerprint() const {
  return impl_->core.SystemFingerprint();
}

}  // namespace spindle::serving
