#include "serving/request_parser.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "serving/body_limits.h"
#include "serving/field_handlers.h"
#include "serving/refused_fields.h"

namespace spindle::serving {
namespace {

// Reported as the model's own check; listed so that they are known.
MaybeError AlreadyRead(JsonValue /*value*/, const FieldContext& /*context*/) {
  return std::nullopt;
}

struct Row {
  FieldRule rule;
  std::optional<Endpoint> only = {};  // unset: of both endpoints
};

constexpr Endpoint kChat = Endpoint::kChat;
constexpr Endpoint kCompletions = Endpoint::kCompletions;

constexpr Row kRows[] = {
    // 3.1, and 5 in the place that 3.1 gives the field
    {{"model", AlreadyRead}},
    {{"messages", ReadMessages, MessagesMissing}, kChat},
    {{"prompt", ReadPrompt, PromptMissing}, kCompletions},
    {{"max_completion_tokens", ReadMaxCompletionTokens}},
    {{"max_tokens", ReadMaxTokens}},
    {{"temperature", ReadTemperature}},
    {{"top_p", ReadTopP}},
    {{"n", ReadN}},
    {{"stop", ReadStop}},
    {{"seed", ReadSeed}},
    {{"presence_penalty", ReadPresencePenalty}},
    {{"frequency_penalty", ReadFrequencyPenalty}},
    {{"logit_bias", ReadLogitBias}},
    {{"logprobs", ReadChatLogprobs}, kChat},
    {{"logprobs", ReadCompletionLogprobs}, kCompletions},
    {{"top_logprobs", ReadTopLogprobs}, kChat},
    {{"top_logprobs", RefuseChatTopLogprobs}, kCompletions},
    {{"response_format", ReadResponseFormat}},
    {{"tools", ReadTools}, kChat},
    {{"tools", RefuseChatTools}, kCompletions},
    {{"tool_choice", ReadToolChoice}, kChat},
    {{"tool_choice", RefuseChatToolChoice}, kCompletions},
    {{"parallel_tool_calls", ReadParallelToolCalls}, kChat},
    {{"stream", ReadStream}},
    {{"stream_options", ReadStreamOptions}},
    {{"reasoning_effort", ReadReasoningEffort}, kChat},
    {{"verbosity", ReadVerbosity}, kChat},
    {{"prediction", ReadPrediction}, kChat},
    {{"echo", ReadEcho}, kCompletions},
    {{"suffix", ReadSuffix}, kCompletions},
    {{"best_of", ReadBestOf}, kCompletions},
    {{"add_special_tokens", ReadAddSpecialTokens}, kCompletions},
    {{"metadata", ReadMetadata}},
    {{"user", ReadUser}},
    {{"safety_identifier", ReadSafetyIdentifier}},
    {{"service_tier", ReadServiceTier}},
    {{"store", ReadStore}},
    {{"prompt_cache_key", ReadPromptCacheKey}},
    {{"prompt_cache_retention", AcceptAnything}},
    {{"prompt_cache_options", AcceptAnything}},
    {{"moderation", AcceptAnything}},
    {{"modalities", ReadModalities}, kChat},
    {{"audio", RefuseAudio}},
    {{"web_search_options", RefuseWebSearch}},
    {{"functions", RefuseFunctions}},
    {{"function_call", RefuseFunctionCall}},
    // 3.3
    {{"top_k", ReadTopK}},
    {{"min_p", ReadMinP}},
    {{"repetition_penalty", ReadRepetitionPenalty}},
    {{"repeat_penalty", ReadRepeatPenalty}},
    {{"typical_p", ReadTypicalP}},
    {{"min_tokens", ReadMinTokens}},
    {{"stop_token_ids", ReadStopTokenIds}},
    {{"ignore_eos", ReadIgnoreEos}},
    {{"include_stop_str_in_output", ReadIncludeStop}},
    {{"skip_special_tokens", ReadSkipSpecialTokens}},
    {{"bad_words", ReadBadWords}},
    {{"allowed_token_ids", ReadAllowedTokenIds}},
    {{"truncate_prompt_tokens", ReadTruncatePromptTokens}},
    {{"add_generation_prompt", ReadAddGenerationPrompt}, kChat},
    {{"continue_final_message", ReadContinueFinalMessage}, kChat},
    {{"chat_template_kwargs", ReadChatTemplateKwargs}, kChat},
    {{"chat_template", ReadChatTemplate}, kChat},
    {{"return_token_ids", ReadReturnTokenIds}},
    {{"cache_salt", ReadCacheSalt}},
    {{"cache_prompt", ReadCachePrompt}},
    {{"priority", ReadPriority}},
    {{"request_id", ReadRequestId}},
    {{"structured_outputs", RefuseStructuredOutputs}},
    {{"grammar", RefuseGrammar}},
    {{"json_schema", RefuseJsonSchema}},
    {{"adapter", RefuseAdapter}},
    // 9.1
    {{"spindle", ReadSpindle}},
};

template <size_t... kIndices>
constexpr auto RefusedRows(std::index_sequence<kIndices...> /*indices*/) {
  return std::array{Row{{kRefusedFields[kIndices].name, ReadRefusedField<kIndices>},
                        kRefusedFields[kIndices].only}...};
}

constexpr auto kRefusedRows = RefusedRows(std::make_index_sequence<kRefusedFields.size()>());

template <Endpoint kEndpoint>
constexpr auto SelectRules() {
  constexpr auto kBelongs = [](const Row& row) {
    return row.only.value_or(kEndpoint) == kEndpoint;
  };
  constexpr auto kNumRules =
      static_cast<size_t>(std::count_if(std::begin(kRows), std::end(kRows), kBelongs) +
                          std::count_if(kRefusedRows.begin(), kRefusedRows.end(), kBelongs));
  std::array<FieldRule, kNumRules> rules{};
  size_t count = 0;
  const auto add = [&rules, &count, kBelongs](const Row& row) {
    if (kBelongs(row)) {
      rules[count++] = row.rule;
    }
  };
  for (const Row& row : kRows) {
    add(row);
  }
  for (const Row& row : kRefusedRows) {
    add(row);
  }
  return rules;
}

constexpr auto kChatRules = SelectRules<kChat>();
constexpr auto kCompletionRules = SelectRules<kCompletions>();

std::span<const FieldRule> RulesOf(Endpoint endpoint) {
  if (endpoint == kChat) {
    return kChatRules;
  }
  return kCompletionRules;
}

// A name that is safe in a response header.
std::string HeaderSafe(std::string_view name) {
  constexpr size_t kMaxName = 64;
  std::string safe(name.substr(0, kMaxName));
  for (char& c : safe) {
    const bool good = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '.' || c == '-';
    if (!good) {
      c = '_';
    }
  }
  return safe;
}

MaybeError HandleUnknown(const FieldContext& context) {
  for (const std::string& name : context.given.unknown()) {
    if (context.options.unknown_fields == UnknownFields::kReject) {
      return InvalidRequest(
          "unknown_parameter", Excerpt(name), fmt::format("'{}' is not known.", Excerpt(name)));
    }
    context.out->prepared.ignored_fields.push_back(HeaderSafe(name));
  }
  return std::nullopt;
}

}  // namespace

MaybeError ParseBody(std::string_view body, const ModelFacts& model, JsonDocument* document) {
  if (const std::optional<JsonError> error =
          document->Parse(body, kMaxJsonDepth, MaxJsonNodes(model.max_model_len));
      error.has_value()) {
    return InvalidRequest(
        "invalid_json",
        "",
        fmt::format(
            "The request body is not valid JSON: {} at byte {}.", error->problem, error->offset));
  }
  if (!document->root().Is(JsonType::kObject)) {
    return InvalidRequest("invalid_type",
                          "",
                          fmt::format("The request body must be a JSON object, not {}.",
                                      JsonTypeName(document->root().type())));
  }
  return std::nullopt;
}

ApiError ModelNotFound(std::string_view name, const ServingOptions& options) {
  ApiError error = MakeError(404,
                             "model_not_found",
                             fmt::format("The model '{}' is not served here; this server has '{}'.",
                                         Excerpt(name),
                                         fmt::join(options.served_names, "', '")));
  error.param = "model";
  return error;
}

MaybeError ResolveModel(const std::optional<JsonValue>& model,
                        const ServingOptions& options,
                        std::string* name) {
  if (!model.has_value()) {
    if (options.served_names.size() != 1) {
      return Missing("model");
    }
    *name = options.served_names.front();
    return std::nullopt;
  }
  if (MaybeError error = ReadString(*model, "model", name); error.has_value()) {
    return error;
  }
  const auto& names = options.served_names;
  if (std::find(names.begin(), names.end(), *name) == names.end()) {
    return ModelNotFound(*name, options);
  }
  return std::nullopt;
}

MaybeError ParseRequest(std::string_view body, const ParseInput& input, RequestFields* fields) {
  JsonDocument document;
  if (MaybeError error = ParseBody(body, input.model, &document); error.has_value()) {
    return error;
  }
  fields->json_nodes = document.num_nodes();
  const std::span<const FieldRule> rules = RulesOf(input.endpoint);
  const FieldIndex given(document.root(), rules);
  fields->prepared.endpoint = input.endpoint;
  if (MaybeError error = ResolveModel(given.Find("model"), input.options, &fields->prepared.model);
      error.has_value()) {
    return error;
  }
  const FieldContext context{
      input.options, input.model, input.caller, given, input.endpoint, fields};
  for (size_t i = 0; i < rules.size(); ++i) {
    MaybeError error;
    if (const std::optional<JsonValue> value = given.at(i); value.has_value()) {
      error = rules[i].read(*value, context);
    } else if (rules[i].absent != nullptr) {
      error = rules[i].absent(context);
    }
    if (error.has_value()) {
      return error;
    }
  }
  return HandleUnknown(context);
}

}  // namespace spindle::serving
