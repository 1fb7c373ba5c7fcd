#include "server/grpc/conversion.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <google/protobuf/util/json_util.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/status_macros.h"
#include "serving/sparse_fields.h"

namespace spindle::server {
namespace {

// Of an allocation: the allocator's words and rounding.
constexpr uint64_t kAllocationBytes = 16;

using serving::InvalidRequest;
using serving::PreparedRequest;
using serving::Result;

template <typename Ids>
std::vector<TokenId> ToTokens(const Ids& ids) {
  std::vector<TokenId> tokens;
  tokens.reserve(static_cast<size_t>(ids.size()));
  for (const uint32_t id : ids) {
    tokens.push_back(static_cast<TokenId>(id));
  }
  return tokens;
}

serving::ApiError NotAvailable(const std::string& field) {
  return InvalidRequest(
      "unsupported_parameter", field, "'" + field + "' is not available in this build.");
}

// As a body of HTTP says it, so that it is checked like one. Values of maps are texts: those that
// are numbers stand for them.
std::string ToJson(const v1::SparseOptions& sparse) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  SPINDLE_CHECK(google::protobuf::util::MessageToJsonString(sparse, &text, options).ok());
  nlohmann::json members = nlohmann::json::parse(text);
  for (const char* const map : {"params", "prefill_params"}) {
    if (!members.contains(map)) {
      continue;
    }
    for (auto& [name, value] : members[map].items()) {
      nlohmann::json number =
          nlohmann::json::parse(value.get<std::string>(), nullptr, /*allow_exceptions=*/false);
      if (number.is_number()) {
        value = std::move(number);
      }
    }
  }
  return members.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::optional<serving::ApiError> RefuseUnsupported(const v1::GenerateRequest& request) {
  if (request.has_constraint()) {
    return NotAvailable("constraint");
  }
  if (!v1::StatsLevel_IsValid(request.output().stats())) {
    return NotAvailable("output.stats");
  }
  return std::nullopt;
}

// The body of a chat says how to sample and when to stop. Which of two sayings holds could not be
// told: fields of the message have no "unset".
std::optional<serving::ApiError> RefuseBesideChat(const v1::GenerateRequest& request) {
  const v1::OutputOptions& output = request.output();
  const std::pair<bool, const char*> fields[] = {
      {request.has_sampling(), "sampling"},
      {request.has_stopping(), "stopping"},
      {request.has_kv(), "kv"},
      {request.has_sparse(), "sparse"},
      {output.logprobs(), "output.logprobs"},
      {output.top_logprobs() != 0, "output.top_logprobs"},
      {output.prompt_logprobs(), "output.prompt_logprobs"},
      {output.audit_every() != 0, "output.audit_every"},
  };
  for (const auto& [given, name] : fields) {
    if (given) {
      return InvalidRequest("unsupported_combination",
                            name,
                            "'" + std::string(name) +
                                "' and 'chat_json' cannot be given together: the body of the chat "
                                "has fields for it.");
    }
  }
  return std::nullopt;
}

// Names of the HTTP API and of the message.
constexpr std::pair<std::string_view, std::string_view> kFieldNames[] = {
    {"temperature", "sampling.temperature"},
    {"top_p", "sampling.top_p"},
    {"top_k", "sampling.top_k"},
    {"min_p", "sampling.min_p"},
    {"seed", "sampling.seed"},
    {"n", "sampling.n"},
    {"presence_penalty", "sampling.presence_penalty"},
    {"frequency_penalty", "sampling.frequency_penalty"},
    {"repetition_penalty", "sampling.repetition_penalty"},
    {"logit_bias", "sampling.logit_bias"},
    {"max_tokens", "stopping.max_tokens"},
    {"min_tokens", "stopping.min_tokens"},
    {"stop", "stopping.stop_strings"},
    {"stop_token_ids", "stopping.stop_token_ids"},
    {"top_logprobs", "output.top_logprobs"},
    {"prompt_logprobs", "output.top_logprobs"},
};

// `path` ("stop_token_ids[3]") with its first name replaced.
std::string GrpcPath(std::string_view path, InputCase input) {
  constexpr std::string_view kSpindle = "spindle.";
  if (path == serving::kAuditEvery) {
    return "output.audit_every";
  }
  if (path.starts_with(kSpindle)) {
    return std::string(path.substr(kSpindle.size()));
  }
  const std::string_view name = path.substr(0, path.find_first_of("[."));
  const std::string rest(path.substr(name.size()));
  if (name == "prompt") {
    return (input == v1::GenerateRequest::kText ? "text" : "token_ids.ids") + rest;
  }
  for (const auto& [http, grpc] : kFieldNames) {
    if (name == http) {
      return std::string(grpc) + rest;
    }
  }
  return std::string(path);
}

void ApplySampling(const v1::Sampling& from,
                   const serving::ServingOptions& defaults,
                   SamplingParams* to) {
  if (from.has_temperature()) {
    to->temperature = from.temperature();
  } else if (defaults.temperature.has_value()) {
    to->temperature = *defaults.temperature;
  }
  if (from.has_top_p()) {
    to->top_p = from.top_p();
  }
  to->top_k = from.top_k();
  to->min_p = from.min_p();
  if (from.has_seed()) {
    to->seed = static_cast<uint64_t>(from.seed());
  }
  to->num_choices = std::max(from.n(), 1U);
  to->presence_penalty = from.presence_penalty();
  to->frequency_penalty = from.frequency_penalty();
  if (from.repetition_penalty() != 0.0F) {
    to->repetition_penalty = from.repetition_penalty();
  }
  for (const auto& [token, bias] : from.logit_bias()) {
    to->logit_bias.emplace_back(static_cast<TokenId>(token), bias);
  }
  std::sort(to->logit_bias.begin(), to->logit_bias.end());
}

// max_tokens 0 stands for the rest of the context; at least one, so that a full context is reported
// as such.
uint32_t ResolveMaxTokens(uint32_t asked, const PreparedRequest& prepared, uint32_t max_model_len) {
  if (asked != 0) {
    return asked;
  }
  size_t longest = 0;
  for (const auto& prompt : prepared.prompts) {
    longest = std::max(longest, prompt.size());
  }
  return longest < max_model_len ? max_model_len - static_cast<uint32_t>(longest) : 1;
}

// More than a body beside it asks for, never less.
void ApplyStats(const v1::OutputOptions& output, PreparedRequest* prepared) {
  prepared->stats = prepared->stats || output.stats() != v1::STATS_LEVEL_NONE;
  prepared->layer_stats = prepared->layer_stats || output.stats() == v1::STATS_LEVEL_PER_LAYER;
}

void ApplyStoppingAndOutput(const v1::GenerateRequest& request,
                            uint32_t max_model_len,
                            PreparedRequest* prepared) {
  const v1::Stopping& stopping = request.stopping();
  SamplingParams& sampling = prepared->sampling;
  sampling.max_tokens = ResolveMaxTokens(stopping.max_tokens(), *prepared, max_model_len);
  sampling.min_tokens = stopping.min_tokens();
  sampling.ignore_eos = stopping.ignore_eos();
  sampling.stop_token_ids = ToTokens(stopping.stop_token_ids());
  prepared->stop = {stopping.stop_strings().begin(), stopping.stop_strings().end()};
  prepared->include_stop = stopping.include_stop_string();
  const v1::OutputOptions& output = request.output();
  if (output.logprobs() || output.prompt_logprobs()) {
    sampling.logprobs = output.top_logprobs();
  }
  if (output.prompt_logprobs()) {
    sampling.prompt_logprobs = output.top_logprobs();
    prepared->echo = true;
  }
  prepared->progress = output.progress();
  ApplyStats(output, prepared);
  prepared->audit_every = output.audit_every();
  prepared->stream = true;
}

serving::KvWishes ToWishes(const v1::KvOptions& kv) {
  serving::KvWishes wishes;
  if (kv.has_fast_tier_budget_bytes()) {
    // More than there can be is refused as such.
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    wishes.fast_tier_budget_bytes =
        static_cast<int64_t>(std::min<uint64_t>(kv.fast_tier_budget_bytes(), kMost));
  }
  if (kv.has_fast_tier_budget_fraction()) {
    wishes.fast_tier_budget_fraction = kv.fast_tier_budget_fraction();
  }
  if (kv.has_buffer_ratio()) {
    wishes.buffer_ratio = kv.buffer_ratio();
  }
  if (kv.has_max_tier()) {
    wishes.max_tier = kv.max_tier();
  }
  wishes.reuse_sparse = kv.reuse_sparse();
  if (kv.has_retention_seconds()) {
    wishes.retention_seconds = kv.retention_seconds();
  }
  if (kv.has_session()) {
    wishes.session = kv.session();
  }
  return wishes;
}

Result<PreparedRequest> PreparePrompt(const v1::GenerateRequest& request,
                                      const serving::CompletionService& service) {
  PreparedRequest prepared;
  prepared.endpoint = serving::Endpoint::kCompletions;
  if (request.input_case() == v1::GenerateRequest::kTokenIds) {
    prepared.prompts.push_back(ToTokens(request.token_ids().ids()));
  } else {
    auto tokens = service.EncodeText(request.text(), /*add_special=*/true, "text");
    if (!tokens.ok()) {
      return tokens.error();
    }
    prepared.prompts.push_back(std::move(tokens).value());
  }
  if (prepared.prompts.front().empty()) {
    return InvalidRequest("invalid_value", "input", "the prompt must hold at least one token");
  }
  ApplySampling(request.sampling(), service.options(), &prepared.sampling);
  return prepared;
}

void ToLogprob(const serving::TokenLogprob& from, v1::TokenLogprob* to) {
  to->set_token(static_cast<uint32_t>(from.token));
  to->set_text(from.bytes);
  if (from.logprob.has_value()) {
    to->set_logprob(*from.logprob);
  }
  for (const serving::AlternativeLogprob& alternative : from.top) {
    v1::AlternativeLogprob* added = to->add_top();
    added->set_token(static_cast<uint32_t>(alternative.token));
    added->set_text(alternative.bytes);
    added->set_logprob(alternative.logprob);
  }
}

// Delta and Choice have the same members. Returns what it added in memory.
template <typename Message>
uint64_t FillText(const serving::DeltaEvent& delta, const OutputView& view, Message* out) {
  uint64_t added_bytes = 0;
  // Texts and lists double their room when they grow.
  if (view.text && !delta.is_echo) {
    out->mutable_text()->append(delta.text);
    added_bytes += 2 * delta.text.size();
  }
  if (view.token_ids && !delta.is_echo) {
    for (const TokenId id : delta.token_ids) {
      out->add_token_ids(static_cast<uint32_t>(id));
    }
    added_bytes += 2 * sizeof(uint32_t) * delta.token_ids.size();
  }
  for (const serving::TokenLogprob& logprob : delta.logprobs) {
    v1::TokenLogprob* const added = out->add_logprobs();
    ToLogprob(logprob, added);
    // Every message and text is an allocation of its own.
    added_bytes += added->SpaceUsedLong() + (2 + 2 * logprob.top.size()) * kAllocationBytes +
                   2 * sizeof(void*);
  }
  return added_bytes;
}

void ToFinished(const serving::FinishedEvent& from, v1::Finished* to) {
  to->set_index(from.choice);
  switch (from.reason) {
    case engine::FinishReason::kStop:
      to->set_reason(v1::FINISH_REASON_STOP);
      break;
    case engine::FinishReason::kLength:
      to->set_reason(v1::FINISH_REASON_LENGTH);
      break;
    case engine::FinishReason::kAborted:
      to->set_reason(v1::FINISH_REASON_ABORTED);
      break;
    case engine::FinishReason::kError:
      to->set_reason(v1::FINISH_REASON_ERROR);
      break;
  }
  if (from.stop_string.has_value()) {
    to->set_stop_string(*from.stop_string);
  } else if (from.stop_token.has_value()) {
    to->set_stop_token(static_cast<uint32_t>(*from.stop_token));
  }
}

void ToUsage(const serving::Usage& from, v1::Usage* to) {
  to->set_prompt_tokens(from.prompt_tokens);
  to->set_completion_tokens(from.completion_tokens);
  to->set_cached_tokens(from.cached_tokens);
}

void ToSparseUse(const engine::RequestStats& from, v1::SparseUse* to) {
  const sparse::DecodeUse& use = from.sparse;
  to->set_algorithm(from.algorithm);
  to->set_decode_steps(from.generated_tokens);
  to->set_dense_steps(use.sparse_rows > 0 ? use.dense_rows : from.generated_tokens);
  to->set_fallback_steps(use.fallback_rows);
  to->set_attended_fraction_mean(use.MeanShare());
  to->set_attended_fraction_min(use.share_min);
  to->set_attended_fraction_max(use.MaxShare());
  to->set_estimated_fraction_mean(use.MeanEstimated());
  if (use.mass_rows > 0) {
    to->set_est_mass_mean(use.MeanMass());
    to->set_est_mass_min(use.mass_min);
  }
  const sparse::PrefillUse& prefill = from.prefill;
  to->set_prefill(from.prefill_method);
  to->set_prefill_sparse_blocks(prefill.sparse_blocks);
  to->set_prefill_attended_fraction_mean(prefill.MeanShare());
  to->set_prefill_attended_fraction_min(prefill.share_min);
  to->set_prefill_attended_fraction_max(prefill.MaxShare());
  if (const engine::AuditUse& audit = from.audit; audit.steps > 0) {
    v1::SparseUse::Audit* const out = to->mutable_audit();
    out->set_steps(audit.steps);
    out->set_top1_agreement(static_cast<double>(audit.same_top) / audit.steps);
    out->set_mean_kl(audit.kl_sum / audit.steps);
    out->set_max_logit_diff(audit.max_logit_diff);
  }
}

void ToStats(const engine::RequestStats& from, v1::Stats* to) {
  to->set_queue_ms(1e3 * ToSeconds(from.queue_time));
  to->set_prefill_ms(1e3 * ToSeconds(from.prefill_time));
  to->set_ttft_ms(1e3 * ToSeconds(from.time_to_first_token));
  to->set_decode_ms(1e3 * ToSeconds(from.decode_time));
  to->set_preemptions(from.preemptions);
  to->set_load_ms(1e3 * ToSeconds(from.load_time));
  v1::KvUse* kv = to->mutable_kv();
  kv->set_page_tokens(from.kv.page_tokens);
  kv->set_pages(from.kv.pages);
  kv->set_bytes(from.kv.bytes);
  kv->set_disk_bytes(from.kv.disk_bytes);
  kv->set_host_cached_tokens(from.cached_tokens - std::min(from.disk_tokens, from.cached_tokens));
  kv->set_disk_cached_tokens(from.disk_tokens);
  ToSparseUse(from, to->mutable_sparse());
  for (size_t i = 0; i < from.layers.size(); ++i) {
    const sparse::LayerUse& use = from.layers[i];
    v1::LayerUse* const layer = to->add_per_layer();
    layer->set_layer(static_cast<uint32_t>(i));
    layer->set_attended_fraction_mean(use.MeanShare());
    layer->set_hit_rate(use.HitRate());
    if (use.mass_rows > 0) {
      layer->set_est_mass_mean(use.MeanMass());
    }
  }
}

v1::Choice* ChoiceAt(uint32_t index, v1::GenerateResult* result) {
  while (result->choices_size() <= static_cast<int>(index)) {
    const auto next = static_cast<uint32_t>(result->choices_size());
    result->add_choices()->set_index(next);
  }
  return result->mutable_choices(static_cast<int>(index));
}

}  // namespace

OutputView ViewOf(const v1::GenerateRequest& request) {
  const v1::OutputOptions& options = request.output();
  return {.text = !options.has_text() || options.text(),
          .token_ids = options.token_ids(),
          .input = request.input_case()};
}

serving::ApiError WithGrpcNames(serving::ApiError error, InputCase input) {
  if (input == v1::GenerateRequest::kChatJson) {
    return error;
  }
  if (error.param.has_value()) {
    error.param = GrpcPath(*error.param, input);
  }
  // Messages quote names: 'top_p'.
  std::string message;
  std::string_view rest = error.message;
  for (size_t open = rest.find('\''); open != rest.npos; open = rest.find('\'')) {
    const size_t close = rest.find('\'', open + 1);
    if (close == rest.npos) {
      break;
    }
    message += rest.substr(0, open + 1);
    message += GrpcPath(rest.substr(open + 1, close - open - 1), input);
    message += '\'';
    rest.remove_prefix(close + 1);
  }
  message += rest;
  error.message = std::move(message);
  return error;
}

Result<PreparedRequest> PrepareGenerate(const v1::GenerateRequest& request,
                                        const serving::Caller& caller,
                                        const serving::CompletionService& service) {
  if (const auto refused = RefuseUnsupported(request)) {
    return *refused;
  }
  if (request.input_case() == v1::GenerateRequest::INPUT_NOT_SET) {
    return InvalidRequest(
        "missing_required_parameter", "input", "one of text, token_ids and chat_json is required");
  }
  const bool chat = request.input_case() == v1::GenerateRequest::kChatJson;
  if (chat) {
    if (const auto refused = RefuseBesideChat(request)) {
      return *refused;
    }
  }
  Result<PreparedRequest> prepared =
      chat ? service.Prepare(serving::Endpoint::kChat, request.chat_json(), caller)
           : PreparePrompt(request, service);
  if (!prepared.ok()) {
    return WithGrpcNames(prepared.error(), request.input_case());
  }
  PreparedRequest& value = prepared.value();
  if (!request.model().empty()) {
    value.model = request.model();
  }
  if (chat) {
    value.progress = value.progress || request.output().progress();
    ApplyStats(request.output(), &value);
  } else {
    ApplyStoppingAndOutput(request, service.max_model_len(), &value);
    if (request.has_sparse()) {
      Result<engine::SparseRequest> wishes = serving::ParseSparse(ToJson(request.sparse()));
      if (!wishes.ok()) {
        return WithGrpcNames(wishes.error(), request.input_case());
      }
      value.sparse = std::move(wishes).value();
    }
    if (const auto refused = service.ApplyKv(ToWishes(request.kv()), caller, &value)) {
      return WithGrpcNames(*refused, request.input_case());
    }
  }
  if (request.priority() != 0) {
    value.priority = request.priority();
  }
  if (!request.cache_salt().empty()) {
    value.cache_salt = request.cache_salt();
  }
  Result<PreparedRequest> valid = service.Validate(std::move(value));
  return valid.ok() ? std::move(valid)
                    : Result<PreparedRequest>(WithGrpcNames(valid.error(), request.input_case()));
}

bool ToMessage(const serving::GenerationEvent& event,
               const std::string& request_id,
               const OutputView& view,
               v1::GenerateEvent* out) {
  out->Clear();
  out->set_request_id(request_id);
  if (const auto* started = std::get_if<serving::StartedEvent>(&event)) {
    out->mutable_started()->set_prompt_tokens(started->usage.prompt_tokens);
    out->mutable_started()->set_cached_tokens(started->usage.cached_tokens);
  } else if (const auto* progress = std::get_if<serving::ProgressEvent>(&event)) {
    v1::Progress* message = out->mutable_progress();
    message->set_phase(progress->queued ? "queued" : "prefill");
    message->set_queue_position(progress->queue_position);
    message->set_processed_tokens(progress->processed_tokens);
    message->set_total_tokens(progress->total_tokens);
    message->set_cached_tokens(progress->cached_tokens);
  } else if (const auto* delta = std::get_if<serving::DeltaEvent>(&event)) {
    out->mutable_delta()->set_index(delta->choice);
    FillText(*delta, view, out->mutable_delta());
  } else if (const auto* finished = std::get_if<serving::FinishedEvent>(&event)) {
    ToFinished(*finished, out->mutable_finished());
  } else if (const auto* usage = std::get_if<serving::UsageEvent>(&event)) {
    ToUsage(usage->usage, out->mutable_usage()->mutable_usage());
    ToStats(usage->stats, out->mutable_usage()->mutable_stats());
  } else {
    return false;
  }
  return true;
}

uint64_t Accumulate(const serving::GenerationEvent& event,
                    const OutputView& view,
                    v1::GenerateResult* result) {
  if (const auto* delta = std::get_if<serving::DeltaEvent>(&event)) {
    return FillText(*delta, view, ChoiceAt(delta->choice, result));
  }
  if (const auto* finished = std::get_if<serving::FinishedEvent>(&event)) {
    ToFinished(*finished, ChoiceAt(finished->choice, result)->mutable_finished());
  } else if (const auto* usage = std::get_if<serving::UsageEvent>(&event)) {
    ToUsage(usage->usage, result->mutable_usage());
    ToStats(usage->stats, result->mutable_stats());
  }
  return 0;
}

}  // namespace spindle::server
