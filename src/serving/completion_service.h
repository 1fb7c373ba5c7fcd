// What the API means: validates requests, renders and tokenises prompts, starts generations. No
// sockets. Thread-safety: thread-safe. Lifetime: the registry and the clock must outlive the
// service, the service its generations.
//
// Before SetModel every call that needs the model answers 503 model_loading (with the load fraction
// as extra).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/byte_quota.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "engine/engine.h"
#include "metrics/metrics.h"
#include "serving/api_error.h"
#include "serving/generation.h"
#include "serving/kv_wishes.h"
#include "serving/serving_options.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace spindle::serving {

// Everything a loaded model brings. Owned by the service from SetModel on.
struct LoadedModel {
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<text::ChatTemplate> chat_template;  // null: the model has none
  // Sampling defaults of the model's generation configuration.
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
  sparse::AlgorithmSet algorithms;  // that requests may name
  std::string kernel_name;          // for fingerprints and listings
  uint64_t file_bytes = 0;
  uint64_t num_parameters = 0;
  int64_t created_unix_seconds = 0;
};

// Who asks; filled by the transport after authentication.
struct Caller {
  std::string request_id;    // valid and unique (RequestIds)
  std::string tenant;        // separates prefix caches between keys; empty without keys
  std::string key_name;      // for logs
  int32_t min_priority = 0;  // smallest priority value the key may send
  bool retention = false;    // the key may have its KV kept beyond its requests
  std::string fairness_id;   // for whom a trusted key asks; empty: for itself
  TimePoint received;        // last body byte
  std::optional<TimePoint> deadline;
};

enum class Endpoint : uint8_t { kChat, kCompletions };

// SamplingParams::max_tokens of a typed request without a limit: the rest of the context.
inline constexpr uint32_t kRestOfContext = UINT32_MAX;

// A validated, tokenised request: what to generate and how to present it.
struct PreparedRequest {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;                          // served name the client asked for
  std::vector<std::vector<TokenId>> prompts;  // ≥ 1
  std::vector<std::string> prompt_texts;      // echoed text per prompt (completions with echo)
  SamplingParams sampling;
  bool max_tokens_given = false;  // sampling.max_tokens is the client's, not a default
  std::vector<std::string> stop;
  bool include_stop = false;
  bool skip_special_tokens = true;
  bool echo = false;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool progress = false;
  bool stats = false;                           // spindle.stats summary or per_layer
  bool layer_stats = false;                     // … the latter; never without `stats`
  std::optional<engine::SparseRequest> sparse;  // what was asked for
  std::optional<engine::SparseDecode> decode;   // what that means; nullopt: the server's default
  uint32_t audit_every = 0;                     // every so many steps, computed densely as well
  bool return_token_ids = false;
  bool cache_prompt = true;
  std::string cache_salt;
  uint64_t fast_bytes = 0;  // cap on its pages in the fast tier; 0 = none
  float fast_fraction = 0;  // the same as a share of that tier; 0 = none
  std::optional<float> buffer_ratio;
  bool uses_disk = true;           // its KV may go to and come from the disk tier
  uint64_t retention_seconds = 0;  // > 0: the KV is kept on disk
  std::string session;             // under this name; empty = one that follows from the content
  std::string user;                // the body's safety_identifier, else its user
  int32_t priority = 0;
  uint32_t best_of = 0;                     // > n: the n best by mean log-probability are returned
  std::vector<std::string> ignored_fields;  // x-spindle-ignored: at most 16 names, made header-safe
  std::string request_id;                   // the body's request_id field; the header's wins
};

class ServingMetrics;
struct PromptTools;
struct RequestFields;
struct ServedModel;

// Compiles a template that a request brought.
using TemplateCompiler = std::function<absl::StatusOr<std::unique_ptr<text::ChatTemplate>>(
    std::string_view source, const text::Tokenizer&)>;

class CompletionService {
 public:
  CompletionService(const ServingOptions& options, metrics::Registry& registry, const Clock& clock);
  // The same over another template compiler, for tests.
  CompletionService(const ServingOptions& options,
                    metrics::Registry& registry,
                    const Clock& clock,
                    TemplateCompiler compile);
  ~CompletionService();
  CompletionService(const CompletionService&) = delete;
  CompletionService& operator=(const CompletionService&) = delete;

  // --- model life cycle
  // -------------------------------------------------------------------------------------
  void SetLoadProgress(double fraction) { load_progress_ = fraction; }

  // REQUIRES: called once.
  void SetModel(LoadedModel model);
  // The same over an engine behind the seam, for tests.
  void SetServedModel(ServedModel model);

  enum class State : uint8_t { kLoading, kReady, kDraining };

  [[nodiscard]] State state() const { return state_; }

  [[nodiscard]] double load_progress() const { return load_progress_; }

  // 503 model_loading or shutting_down, or nothing when ready.
  [[nodiscard]] std::optional<ApiError> Unavailable() const;
  // Null before SetModel.
  [[nodiscard]] engine::Engine* engine() const;
  void BeginDrain();
  // See Engine::Shutdown; also covers a service without a model.
  void Shutdown(TimePoint deadline);

  // --- requests
  // ---------------------------------------------------------------------------------------------
  // Checks of the raw body, in the order that README.md has. No engine involved.
  [[nodiscard]] Result<PreparedRequest> Prepare(Endpoint endpoint,
                                                std::string_view body,
                                                const Caller& caller) const;
  // What a typed caller starts from: the server's and the model's sampling defaults, a fresh seed
  // and kRestOfContext. REQUIRES: ready.
  [[nodiscard]] SamplingParams DefaultSampling() const;
  // For callers with typed input (gRPC, terminal chat): fills defaults and checks ranges, context
  // and model name of a request whose prompts are already tokens.
  [[nodiscard]] Result<PreparedRequest> Validate(PreparedRequest request) const;
  // Checks what a typed caller says about the KV of a request whose prompts and sampling are set,
  // and applies it; paths in errors begin with `spindle.kv`. REQUIRES: ready.
  [[nodiscard]] MaybeError ApplyKv(const KvWishes& wishes,
                                   const Caller& caller,
                                   PreparedRequest* request) const;
  // Checks feasibility and room in the queue. On success the generation is queued.
  [[nodiscard]] Result<std::unique_ptr<Generation>> Start(const PreparedRequest& request,
                                                          const Caller& caller);

  // --- tokenizer tools and listings (JSON text in and out); never touch the engine thread
  // ---------------------
  [[nodiscard]] Result<std::string> Tokenize(std::string_view body) const;
  [[nodiscard]] Result<std::string> Detokenize(std::string_view body) const;
  // {prompt} of a chat body, with token_ids when `render`.
  [[nodiscard]] Result<std::string> ApplyTemplate(std::string_view body, bool render) const;
  [[nodiscard]] Result<std::string> CountInputTokens(std::string_view body) const;
  // The /v1/models list, or one entry.
  [[nodiscard]] Result<std::string> ListModels() const;
  [[nodiscard]] Result<std::string> GetModel(std::string_view id) const;

  // What transports hold of answers takes leases of it.
  [[nodiscard]] ByteQuota& answer_memory() { return answer_memory_; }

  // Counts a refusal that the transport made itself (server state, limits of a key) in
  // spindle_requests_rejected_total. Prepare, Validate and Start count theirs.
  void RecordRejection(const ApiError& error) const;

  // Ids of a text that `param` of a request holds. REQUIRES: a model (see Unavailable).
  // ERRORS: context_length_exceeded for a text that cannot fit the context.
  [[nodiscard]] Result<std::vector<TokenId>> EncodeText(const std::string& text,
                                                        bool add_special,
                                                        std::string_view param) const;

  // Their text. REQUIRES: a model. ERRORS: invalid_value (an id outside the vocabulary),
  // context_length_exceeded (more ids than the context holds).
  [[nodiscard]] Result<std::string> DecodeIds(std::span<const TokenId> ids,
                                              bool skip_special,
                                              std::string_view param) const;

  // Null before SetModel.
  [[nodiscard]] const text::Tokenizer* tokenizer() const;
  // Context of a sequence. REQUIRES: a model.
  [[nodiscard]] uint32_t max_model_len() const;
  [[nodiscard]] std::string SystemFingerprint() const;

  [[nodiscard]] const ServingOptions& options() const { return options_; }

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
  // `error`, counted.
  [[nodiscard]] ApiError Reject(ApiError error) const;

  const ServingOptions options_;
  const Clock& clock_;
  const TemplateCompiler compile_;
  const std::unique_ptr<const ServingMetrics> metrics_;
  const TimePoint created_;
  ByteQuota answer_memory_;
  mutable Mutex large_work_;  // whose turn it is

  std::unique_ptr<ServedModel> model_;  // for others once published_
  std::string fingerprint_;
  bool template_knows_developer_ = false;
  std::atomic<const ServedModel*> published_{nullptr};
  std::atomic<State> state_{State::kLoading};
  std::atomic<double> load_progress_{0.0};
  std::atomic<TimePoint::rep> shutdown_deadline_{0};  // steady clock ticks; 0 = not known
};

}  // namespace spindle::serving
