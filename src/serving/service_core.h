// CompletionService over the EngineBackend seam; see completion_service.h for the contract of each
// call. Thread-safety: thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serving/completion_service.h"
#include "serving/engine_backend.h"
#include "serving/prompt_builder.h"
#include "serving/request_fields.h"
#include "serving/serving_metrics.h"

namespace spindle::serving {

// A LoadedModel whose engine stands behind the seam.
struct ServedModel {
  std::unique_ptr<EngineBackend> engine;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<text::ChatTemplate> chat_template;  // null: the model has none
  ModelFacts facts;
  std::string kernel_name;
  uint64_t file_bytes = 0;
  uint64_t num_parameters = 0;
  int64_t created_unix_seconds = 0;
};

class ServiceCore {
 public:
  using State = CompletionService::State;

  ServiceCore(const ServingOptions& options,
              metrics::Registry& registry,
              const Clock& clock,
              TemplateCompiler compile);
  ServiceCore(const ServiceCore&) = delete;
  ServiceCore& operator=(const ServiceCore&) = delete;

  void SetLoadProgress(double fraction) { load_progress_ = fraction; }

  // REQUIRES: called once.
  void SetModel(ServedModel model);

  [[nodiscard]] State state() const { return state_; }

  [[nodiscard]] double load_progress() const { return load_progress_; }

  [[nodiscard]] std::optional<ApiError> Unavailable() const;
  void BeginDrain();
  void Shutdown(TimePoint deadline);

  [[nodiscard]] Result<PreparedRequest> Prepare(Endpoint endpoint,
                                                std::string_view body,
                                                const Caller& caller) const;
  [[nodiscard]] SamplingParams DefaultSampling() const;
  [[nodiscard]] Result<PreparedRequest> Validate(PreparedRequest request) const;
  [[nodiscard]] Result<std::unique_ptr<Generation>> Start(const PreparedRequest& request,
                                                          const Caller& caller);

  [[nodiscard]] Result<std::string> Tokenize(std::string_view body) const;
  [[nodiscard]] Result<std::string> Detokenize(std::string_view body) const;
  [[nodiscard]] Result<std::string> ApplyTemplate(std::string_view body, bool render) const;
  [[nodiscard]] Result<std::string> CountInputTokens(std::string_view body) const;
  [[nodiscard]] Result<std::string> ListModels() const;
  [[nodiscard]] Result<std::string> GetModel(std::string_view id) const;

  // Null before SetModel.
  [[nodiscard]] const ServedModel* model() const { return published_; }

  [[nodiscard]] const ServingOptions& options() const { return options_; }

  [[nodiscard]] std::string SystemFingerprint() const;

  void RecordRejection(const ApiError& error) const { metrics_.Rejected(error); }

 private:
  // Checks 6 to 9 on a body. REQUIRES: the model is there.
  [[nodiscard]] MaybeError ReadFields(Endpoint endpoint,
                                      std::string_view body,
                                      const Caller& caller,
                                      RequestFields* fields) const;
  [[nodiscard]] MaybeError PrepareInto(Endpoint endpoint,
                                       std::string_view body,
                                       const Caller& caller,
                                       RequestFields* fields) const;
  [[nodiscard]] MaybeError ValidateInto(PreparedRequest* request) const;
  // Decodes the prompts that will be echoed.
  [[nodiscard]] MaybeError FillEcho(PreparedRequest* request) const;
  [[nodiscard]] PromptTools Tools() const;
  [[nodiscard]] engine::EngineRequest ToEngineRequest(const PreparedRequest& request,
                                                      const Caller& caller,
                                                      size_t prompt) const;

  template <typename T>
  [[nodiscard]] Result<T> Reject(ApiError error) const {
    metrics_.Rejected(error);
    return error;
  }

  const ServingOptions options_;
  const Clock& clock_;
  const TemplateCompiler compile_;
  const ServingMetrics metrics_;
  const TimePoint created_;

  ServedModel model_;
  std::string fingerprint_;
  bool template_knows_developer_ = false;
  std::atomic<const ServedModel*> published_{nullptr};  // &model_ once it is complete
  std::atomic<State> state_{State::kLoading};
  std::atomic<double> load_progress_{0.0};
  std::atomic<TimePoint::rep> shutdown_deadline_{0};  // steady clock ticks; 0 = not known
};

}  // namespace spindle::serving
