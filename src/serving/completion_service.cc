#include "serving/completion_service.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "spindle/version.h"

#include "base/log.h"
#include "base/prefix_key.h"
#include "base/status_macros.h"
#include "serving/answer_memory.h"
#include "serving/error_mapping.h"
#include "serving/held_bytes.h"
#include "serving/kv_fields.h"
#include "serving/model_listing.h"
#include "serving/prompt_builder.h"
#include "serving/request_parser.h"
#include "serving/seed_source.h"
#include "serving/served_model.h"
#include "serving/serving_metrics.h"
#include "serving/sparse_fields.h"
#include "serving/stream_generation.h"
#include "serving/tokenizer_tools.h"
#include "serving/typed_validation.h"
#include "serving/work_turn.h"

namespace spindle::serving {
namespace {

std::string ComputeFingerprint(const ServingOptions& options, const ServedModel& model) {
  const auto number = [](const auto& value) {
    return value.has_value() ? fmt::format("{}", *value) : std::string("-");
  };
  const Digest& weights = model.engine->model_fingerprint();
  Sha256 hash;
  hash.Field("spindle-system-fingerprint")
      .Field(SPINDLE_VERSION)
      .Bytes(std::span<const uint8_t>(weights))
      .Field(model.engine->model_config().quantization)
      .Field(model.kernel_name)
      .Field(
          number(options.temperature.has_value() ? options.temperature : model.facts.temperature))
      .Field(number(options.top_p.has_value() ? options.top_p : model.facts.top_p))
      .Field(number(options.top_k.has_value() ? options.top_k : model.facts.top_k))
      .Field(number(options.min_p));
  const Digest digest = hash.Finish();
  return "fp_" + ToHex(std::span<const uint8_t>(digest).first(6));
}

std::string_view PromptParam(const PreparedRequest& request) {
  return request.endpoint == Endpoint::kChat ? "messages" : "prompt";
}

std::string_view TypeName(DType type) {
  return type == DType::kF32 ? "f32" : "bf16";
}

// Whose share of the service a request takes: a digest of the key and of the user whom the request
// is for, where that counts.
std::string SenderOf(FairShareBy by, const PreparedRequest& request, const Caller& caller) {
  if (by == FairShareBy::kNobody) {
    return {};
  }
  const bool names_user = by == FairShareBy::kUser && caller.fairness_id.empty();
  const Digest digest = Sha256()
                            .Field("sender")
                            .Field(caller.tenant)
                            .Field(names_user ? request.user : caller.fairness_id)
                            .Finish();
  return {digest.begin(), digest.end()};
}

// At least as long as the longest normalised character, which tokens may be shorter than.
uint64_t LongestTokenBytes(const text::Tokenizer& tokenizer) {
  uint64_t longest = 16;
  for (uint32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max<uint64_t>(longest, tokenizer.TokenBytes(static_cast<TokenId>(id)).size());
  }
  return longest;
}

}  // namespace

CompletionService::CompletionService(const ServingOptions& options,
                                     metrics::Registry& registry,
                                     const Clock& clock,
                                     TemplateCompiler compile)
    : options_(options),
      clock_(clock),
      compile_(std::move(compile)),
      metrics_(std::make_unique<ServingMetrics>(registry)),
      created_(clock.Now()),
      answer_memory_(options.answer_memory_bytes, kSmallAnswerBytes) {}

CompletionService::~CompletionService() = default;

void CompletionService::SetServedModel(ServedModel model) {
  SPINDLE_CHECK(published_ == nullptr);
  model_ = std::make_unique<ServedModel>(std::move(model));
  const model::ModelConfig& config = model_->engine->model_config();
  // Files pad either side; an id must have both a text and an embedding.
  model_->facts.vocab_size = std::min(model_->tokenizer->vocab_size(), config.vocab_size);
  model_->facts.max_model_len = config.max_model_len;
  model_->facts.keeps_sessions = model_->engine->keeps_sessions();
  model_->facts.max_text_bytes =
      uint64_t{config.max_model_len} * LongestTokenBytes(*model_->tokenizer);
  fingerprint_ = ComputeFingerprint(options_, *model_);
  template_knows_developer_ =
      model_->chat_template != nullptr &&
      model_->chat_template->source().find("developer") != std::string_view::npos;
  load_progress_ = 1.0;
  published_ = model_.get();
  // A drain that began while loading stays one.
  State loading = State::kLoading;
  if (!state_.compare_exchange_strong(loading, State::kReady)) {
    model_->engine->BeginDrain();
  }
}

std::optional<ApiError> CompletionService::Unavailable() const {
  const TimePoint now = clock_.Now();
  switch (state_.load()) {
    case State::kReady:
      return std::nullopt;
    case State::kLoading: {
      const double progress = load_progress_;
      const Duration elapsed = now - created_;
      const double rest = progress > 0.0 ? (1.0 - progress) / progress : 1.0;
      // Compared as seconds, since an early estimate may not fit the integer type.
      const double seconds = std::min(ToSeconds(elapsed) * rest, 60.0);
      return ModelLoading(progress,
                          std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000.0)));
    }
    case State::kDraining:
      break;
  }
  const TimePoint deadline{TimePoint::duration(shutdown_deadline_.load())};
  return ShuttingDown(std::chrono::duration_cast<std::chrono::milliseconds>(
      std::max(deadline - now, TimePoint::duration::zero())));
}

engine::Engine* CompletionService::engine() const {
  const ServedModel* model = published_;
  return model == nullptr ? nullptr : model->real_engine;
}

const text::Tokenizer* CompletionService::tokenizer() const {
  const ServedModel* model = published_;
  return model == nullptr ? nullptr : model->tokenizer.get();
}

uint32_t CompletionService::max_model_len() const {
  return model_->facts.max_model_len;
}

void CompletionService::RecordRejection(const ApiError& error) const {
  metrics_->Rejected(error);
}

ApiError CompletionService::Reject(ApiError error) const {
  metrics_->Rejected(error);
  return error;
}

void CompletionService::BeginDrain() {
  state_ = State::kDraining;
  if (published_ != nullptr) {
    model_->engine->BeginDrain();
  }
}

void CompletionService::Shutdown(TimePoint deadline) {
  shutdown_deadline_ = deadline.time_since_epoch().count();
  state_ = State::kDraining;
  if (published_ != nullptr) {
    model_->engine->Shutdown(deadline);
  }
}

PromptTools CompletionService::Tools() const {
  return {*model_->tokenizer, model_->chat_template.get(), compile_, model_->facts};
}

Result<std::vector<TokenId>> CompletionService::EncodeText(const std::string& text,
                                                           bool add_special,
                                                           std::string_view param) const {
  const WorkTurn turn(large_work_, text.size());
  std::vector<TokenId> tokens;
  if (MaybeError error = serving::EncodeText(
          text, {.add_special = add_special, .parse_special = true}, param, Tools(), &tokens);
      error.has_value()) {
    return *std::move(error);
  }
  return tokens;
}

Result<std::string> CompletionService::DecodeIds(std::span<const TokenId> ids,
                                                 bool skip_special,
                                                 std::string_view param) const {
  std::string text;
  if (MaybeError error = serving::DecodeIds(ids, skip_special, param, Tools(), &text);
      error.has_value()) {
    return *std::move(error);
  }
  return text;
}

SamplingParams CompletionService::DefaultSampling() const {
  SamplingParams sampling;
  sampling.temperature =
      options_.temperature.value_or(model_->facts.temperature.value_or(sampling.temperature));
  sampling.top_p = options_.top_p.value_or(model_->facts.top_p.value_or(sampling.top_p));
  sampling.top_k = options_.top_k.value_or(model_->facts.top_k.value_or(sampling.top_k));
  sampling.min_p = options_.min_p.value_or(sampling.min_p);
  sampling.logprobs_processed = options_.logprobs_processed;
  sampling.max_tokens = kRestOfContext;
  sampling.seed = options_.seed.has_value() ? *options_.seed : RandomSeed();
  return sampling;
}

MaybeError CompletionService::ReadFields(Endpoint endpoint,
                                         std::string_view body,
                                         const Caller& caller,
                                         RequestFields* fields) const {
  fields->prepared.sampling = DefaultSampling();
  fields->developer_is_system = !template_knows_developer_;
  if (MaybeError error = ParseRequest(body, {endpoint, options_, model_->facts, caller}, fields);
      error.has_value()) {
    return error;
  }
  SamplingParams& sampling = fields->prepared.sampling;
  if (fields->seed.has_value()) {
    sampling.seed = *fields->seed;
  }
  if (fields->wants_logprobs) {
    sampling.logprobs = fields->top_logprobs;
    if (fields->prepared.echo) {
      sampling.prompt_logprobs = fields->top_logprobs;
    }
  }
  return std::nullopt;
}

MaybeError CompletionService::FillEcho(PreparedRequest* request) const {
  request->prompt_texts.clear();
  if (!request->echo) {
    return std::nullopt;
  }
  for (const std::vector<TokenId>& prompt : request->prompts) {
    absl::StatusOr<std::string> text =
        model_->tokenizer->Decode(prompt, request->skip_special_tokens);
    if (!text.ok()) {
      log::Error("detokenizer_failed", {{"status", text.status().ToString()}});
      return InternalError();
    }
    request->prompt_texts.push_back(*std::move(text));
  }
  return std::nullopt;
}

MaybeError CompletionService::PrepareInto(Endpoint endpoint,
                                          std::string_view body,
                                          const Caller& caller,
                                          RequestFields* fields) const {
  if (std::optional<ApiError> error = Unavailable(); error.has_value()) {
    return error;
  }
  if (MaybeError error = ReadFields(endpoint, body, caller, fields); error.has_value()) {
    return error;
  }
  if (MaybeError error = BuildPrompts(model_->facts, Tools(), fields); error.has_value()) {
    return error;
  }
  if (MaybeError error =
          ApplyLimits({options_, model_->facts, fields->max_tokens}, &fields->prepared);
      error.has_value()) {
    return error;
  }
  if (MaybeError error = ApplySparse(options_, *model_, &fields->prepared); error.has_value()) {
    return error;
  }
  return FillEcho(&fields->prepared);
}

Result<PreparedRequest> CompletionService::Prepare(Endpoint endpoint,
                                                   std::string_view body,
                                                   const Caller& caller) const {
  const WorkTurn turn(large_work_, body.size());
  RequestFields fields;
  if (MaybeError error = PrepareInto(endpoint, body, caller, &fields); error.has_value()) {
    return Reject(*std::move(error));
  }
  metrics_->IgnoredFields(fields.prepared.ignored_fields.size());
  return std::move(fields.prepared);
}

MaybeError CompletionService::ValidateInto(PreparedRequest* request) const {
  if (std::optional<ApiError> error = Unavailable(); error.has_value()) {
    return error;
  }
  if (MaybeError error = CheckTyped(options_, model_->facts, request); error.has_value()) {
    return error;
  }
  if (MaybeError error = CheckAudit(options_, request->audit_every); error.has_value()) {
    return error;
  }
  std::optional<uint64_t> max_tokens;
  if (request->sampling.max_tokens != kRestOfContext) {
    max_tokens = request->sampling.max_tokens;
  }
  if (MaybeError error = ApplyLimits({options_, model_->facts, max_tokens}, request);
      error.has_value()) {
    return error;
  }
  if (MaybeError error = ApplySparse(options_, *model_, request); error.has_value()) {
    return error;
  }
  return FillEcho(request);
}

Result<PreparedRequest> CompletionService::Validate(PreparedRequest request) const {
  if (MaybeError error = ValidateInto(&request); error.has_value()) {
    return Reject(*std::move(error));
  }
  return request;
}

MaybeError CompletionService::ApplyKv(const KvWishes& wishes,
                                      const Caller& caller,
                                      PreparedRequest* request) const {
  MaybeError error =
      serving::ApplyKv(wishes, model_->facts, caller, request->prompts.size(), request);
  if (error.has_value()) {
    metrics_->Rejected(*error);
  }
  return error;
}

engine::EngineRequest CompletionService::ToEngineRequest(const PreparedRequest& request,
                                                         const Caller& caller,
                                                         size_t prompt) const {
  const Digest& weights = model_->engine->model_fingerprint();
  engine::EngineRequest out;
  out.id = prompt == 0 ? caller.request_id : fmt::format("{}.{}", caller.request_id, prompt);
  out.prompt = request.prompts[prompt];
  out.sampling = request.sampling;
  out.sampling.num_choices = StreamGeneration::EngineChoices(request);
  out.sampling.max_tokens = TokensLeft(request, model_->facts.max_model_len, out.prompt.size());
  if (out.sampling.num_choices > request.sampling.num_choices &&
      !out.sampling.logprobs.has_value()) {
    out.sampling.logprobs = 0;  // best_of ranks by them
  }
  out.priority = request.priority;
  // The tenant comes from the key, never from the request; the client's salt only refines it.
  out.prefix_root =
      RootKey({.model_fingerprint = {reinterpret_cast<const char*>(weights.data()), weights.size()},
               .kv_type = TypeName(model_->engine->kv_geometry().type),
               .adapter = {},
               .tenant = caller.tenant,
               .salt = request.cache_salt});
  out.cache_prompt = request.cache_prompt;
  out.decode = request.decode;
  out.audit_every = request.audit_every;
  out.layer_stats = request.layer_stats;
  out.fast_bytes = request.fast_bytes;
  out.fast_fraction = request.fast_fraction;
  out.buffer_ratio = request.buffer_ratio;
  out.uses_disk = request.uses_disk;
  if (request.retention_seconds > 0) {
    out.retention = engine::Retention{{caller.tenant, request.session}, request.retention_seconds};
  }
  out.max_tokens_given = request.max_tokens_given;
  out.may_stop_early = !request.stop.empty();
  out.report_progress = request.progress;
  out.key_name = caller.key_name;
  out.sender = SenderOf(options_.fair_share, request, caller);
  out.tenant = caller.tenant;
  out.deadline = caller.deadline;
  return out;
}

Result<std::unique_ptr<Generation>> CompletionService::Start(const PreparedRequest& request,
                                                             const Caller& caller) {
  if (std::optional<ApiError> error = Unavailable(); error.has_value()) {
    return Reject(*std::move(error));
  }
  ByteQuota::Lease lease(answer_memory_);
  if (const uint64_t bytes = ParameterBytes(request); !lease.Cover(bytes)) {
    return Reject(AnswerMemoryFull(bytes, answer_memory_));
  }
  const uint32_t waiting = request.progress ? model_->engine->Load().waiting : 0;
  std::vector<std::shared_ptr<engine::OutputStream>> streams;
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    engine::SubmitResult result = model_->engine->Submit(ToEngineRequest(request, caller, i));
    if (const auto* refusal = std::get_if<engine::SubmitRefusal>(&result)) {
      // All prompts of a request or none.
      for (const auto& stream : streams) {
        stream->Cancel(engine::CancelCause::kClientGone);
      }
      return Reject(FromRefusal(*refusal, PromptParam(request), FastBudgetParam(request)));
    }
    streams.push_back(std::get<std::shared_ptr<engine::OutputStream>>(std::move(result)));
  }
  auto generation = std::make_unique<StreamGeneration>(
      request,
      caller.request_id,
      caller.received,
      std::move(streams),
      std::move(lease),
      GenerationDeps{*model_->tokenizer, *metrics_, answer_memory_, clock_});
  if (waiting > 0) {
    generation->ReportQueued(waiting);
  }
  return std::unique_ptr<Generation>(std::move(generation));
}

Result<std::string> CompletionService::Tokenize(std::string_view body) const {
  if (published_ == nullptr) {
    return *Unavailable();
  }
  const WorkTurn turn(large_work_, body.size());
  RequestFields fields;
  fields.developer_is_system = !template_knows_developer_;
  return TokenizeJson(body, {options_, model_->facts, Tools()}, std::move(fields));
}

Result<std::string> CompletionService::Detokenize(std::string_view body) const {
  if (published_ == nullptr) {
    return *Unavailable();
  }
  const WorkTurn turn(large_work_, body.size());
  return DetokenizeJson(body, {options_, model_->facts, Tools()});
}

Result<std::string> CompletionService::ApplyTemplate(std::string_view body, bool render) const {
  if (published_ == nullptr) {
    return *Unavailable();
  }
  const WorkTurn turn(large_work_, body.size());
  RequestFields fields;
  if (MaybeError error = ReadFields(Endpoint::kChat, body, Caller{}, &fields); error.has_value()) {
    return *std::move(error);
  }
  return RenderedPromptJson(fields, {options_, model_->facts, Tools()}, render);
}

Result<std::string> CompletionService::CountInputTokens(std::string_view body) const {
  if (published_ == nullptr) {
    return *Unavailable();
  }
  const WorkTurn turn(large_work_, body.size());
  RequestFields fields;
  if (MaybeError error = ReadFields(Endpoint::kChat, body, Caller{}, &fields); error.has_value()) {
    return *std::move(error);
  }
  if (MaybeError error = BuildPrompts(model_->facts, Tools(), &fields); error.has_value()) {
    return *std::move(error);
  }
  return fmt::format(R"({{"object":"response.input_tokens","input_tokens":{}}})",
                     fields.prepared.prompts.front().size());
}

Result<std::string> CompletionService::ListModels() const {
  if (published_ == nullptr) {
    return *Unavailable();
  }
  return ModelListJson(options_, *model_);
}

Result<std::string> CompletionService::GetModel(std::string_view id) const {
  if (published_ == nullptr) {
    return *Unavailable();
  }
  const auto& names = options_.served_names;
  if (std::find(names.begin(), names.end(), id) == names.end()) {
    return ModelNotFound(id, options_);
  }
  return ModelEntryJson(id, options_, *model_);
}

std::string CompletionService::SystemFingerprint() const {
  return published_ == nullptr ? std::string() : fingerprint_;
}

}  // namespace spindle::serving
