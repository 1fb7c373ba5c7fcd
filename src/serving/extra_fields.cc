// Fields whose names are shared with vLLM, SGLang and llama.cpp.
#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/client_name.h"
#include "base/utf8.h"
#include "serving/field_handlers.h"

namespace spindle::serving {
namespace {

constexpr std::string_view kNoStructuredOutputs =
    "structured outputs are not available in this build";

MaybeError ReadPenaltyAlias(JsonValue value,
                            std::string_view name,
                            std::string_view other,
                            const FieldContext& context) {
  float penalty = 1.0F;
  if (MaybeError error = ReadNumber(value, name, kRepetitionPenaltyRange, &penalty);
      error.has_value()) {
    return error;
  }
  float& current = context.out->prepared.sampling.repetition_penalty;
  // The rule of repetition_penalty runs first; only the alias can meet another value.
  if (name == "repeat_penalty" && context.given.Find(other).has_value() && current != penalty) {
    return InvalidRequest(
        "invalid_value",
        std::string(name),
        fmt::format(
            "'{}' and '{}' mean the same and must not have different values.", name, other));
  }
  current = penalty;
  return std::nullopt;
}

}  // namespace

MaybeError ReadTopK(JsonValue value, const FieldContext& context) {
  int64_t top_k = 0;
  if (MaybeError error = ReadInteger(value, "top_k", IntegerRange{-1}, &top_k); error.has_value()) {
    return error;
  }
  // More than the vocabulary is the same as all of it.
  const auto vocab_size = static_cast<int64_t>(context.model.vocab_size);
  context.out->prepared.sampling.top_k = static_cast<int32_t>(std::min(top_k, vocab_size));
  return std::nullopt;
}

MaybeError ReadMinP(JsonValue value, const FieldContext& context) {
  return ReadNumber(value, "min_p", kProbabilityRange, &context.out->prepared.sampling.min_p);
}

MaybeError ReadRepetitionPenalty(JsonValue value, const FieldContext& context) {
  return ReadPenaltyAlias(value, "repetition_penalty", "repeat_penalty", context);
}

MaybeError ReadRepeatPenalty(JsonValue value, const FieldContext& context) {
  return ReadPenaltyAlias(value, "repeat_penalty", "repetition_penalty", context);
}

MaybeError ReadTypicalP(JsonValue value, const FieldContext& /*context*/) {
  float typical_p = 1.0F;
  if (MaybeError error = ReadNumber(value, "typical_p", kProbabilityRange, &typical_p);
      error.has_value()) {
    return error;
  }
  if (typical_p < 1.0F) {
    return Unsupported("typical_p", "typical sampling is not offered; only 1 (off) is accepted");
  }
  return std::nullopt;
}

MaybeError ReadMinTokens(JsonValue value, const FieldContext& context) {
  const auto max = static_cast<int64_t>(context.model.max_model_len);
  int64_t min_tokens = 0;
  if (MaybeError error = ReadInteger(value, "min_tokens", IntegerRange{0, max}, &min_tokens);
      error.has_value()) {
    return error;
  }
  context.out->prepared.sampling.min_tokens = static_cast<uint32_t>(min_tokens);
  if (context.out->max_tokens.has_value() &&
      static_cast<uint64_t>(min_tokens) > *context.out->max_tokens) {
    return InvalidRequest(
        "invalid_value", "min_tokens", "'min_tokens' must not be above the token limit.");
  }
  return std::nullopt;
}

MaybeError ReadStopTokenIds(JsonValue value, const FieldContext& context) {
  std::vector<TokenId>& ids = context.out->prepared.sampling.stop_token_ids;
  if (MaybeError error = ReadTokenIds(value, "stop_token_ids", context.model.vocab_size, &ids);
      error.has_value()) {
    return error;
  }
  KeepDistinct(&ids);
  return std::nullopt;
}

MaybeError ReadIgnoreEos(JsonValue value, const FieldContext& context) {
  return ReadBool(value, "ignore_eos", &context.out->prepared.sampling.ignore_eos);
}

MaybeError ReadIncludeStop(JsonValue value, const FieldContext& context) {
  return ReadBool(value, "include_stop_str_in_output", &context.out->prepared.include_stop);
}

MaybeError ReadSkipSpecialTokens(JsonValue value, const FieldContext& context) {
  return ReadBool(value, "skip_special_tokens", &context.out->prepared.skip_special_tokens);
}

MaybeError ReadBadWords(JsonValue value, const FieldContext& /*context*/) {
  if (MaybeError error = ExpectType(value, "bad_words", JsonType::kArray); error.has_value()) {
    return error;
  }
  if (value.CountChildren() > 0) {
    return Unsupported("bad_words", "use 'logit_bias' with -100 to ban single tokens");
  }
  return std::nullopt;
}

MaybeError ReadAllowedTokenIds(JsonValue value, const FieldContext& context) {
  std::vector<TokenId> ids;
  if (MaybeError error = ReadTokenIds(value, "allowed_token_ids", context.model.vocab_size, &ids);
      error.has_value()) {
    return error;
  }
  if (ids.empty()) {
    return InvalidRequest("invalid_value",
                          "allowed_token_ids",
                          "'allowed_token_ids' must hold at least one token id.");
  }
  KeepDistinct(&ids);
  context.out->prepared.sampling.allowed_token_ids = std::move(ids);
  return std::nullopt;
}

MaybeError ReadTruncatePromptTokens(JsonValue value, const FieldContext& context) {
  int64_t tokens = 0;
  if (MaybeError error = ReadInteger(value, "truncate_prompt_tokens", IntegerRange{-1}, &tokens);
      error.has_value()) {
    return error;
  }
  if (tokens == 0) {
    return InvalidRequest("invalid_value",
                          "truncate_prompt_tokens",
                          "'truncate_prompt_tokens' must be -1 (what fits the context) or at "
                          "least 1.");
  }
  context.out->truncate_prompt_tokens = tokens;
  return std::nullopt;
}

MaybeError ReadAddGenerationPrompt(JsonValue value, const FieldContext& context) {
  return ReadBool(value, "add_generation_prompt", &context.out->add_generation_prompt);
}

MaybeError ReadContinueFinalMessage(JsonValue value, const FieldContext& context) {
  bool continues = false;
  if (MaybeError error = ReadBool(value, "continue_final_message", &continues); error.has_value()) {
    return error;
  }
  if (continues && IsTrue(context.given, "add_generation_prompt")) {
    return InvalidRequest("invalid_value",
                          "continue_final_message",
                          "'continue_final_message' and 'add_generation_prompt' must not both be "
                          "true.");
  }
  context.out->continue_final_message = continues;
  if (continues) {
    context.out->add_generation_prompt = false;
  }
  return std::nullopt;
}

MaybeError ReadChatTemplateKwargs(JsonValue value, const FieldContext& context) {
  constexpr std::array<std::string_view, 5> kReserved = {
      "messages", "tools", "bos_token", "eos_token", "add_generation_prompt"};
  if (MaybeError error = ExpectType(value, "chat_template_kwargs", JsonType::kObject);
      error.has_value()) {
    return error;
  }
  for (auto member = value.begin(); member != value.end(); ++member) {
    const std::string name = member.name();
    if (std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end()) {
      return InvalidRequest("invalid_value",
                            "chat_template_kwargs." + name,
                            fmt::format("'{}' is set by the server and must not be in "
                                        "'chat_template_kwargs'.",
                                        name));
    }
  }
  const std::string object = value.Normalized();
  context.out->explicit_kwargs =
      value.CountChildren() == 0 ? "" : object.substr(1, object.size() - 2);
  return std::nullopt;
}

MaybeError ReadChatTemplate(JsonValue value, const FieldContext& context) {
  std::string source;
  if (MaybeError error = ReadString(value, "chat_template", &source); error.has_value()) {
    return error;
  }
  if (!context.options.trust_request_chat_template) {
    return Unsupported("chat_template",
                       "the server accepts templates of requests only with "
                       "--trust-request-chat-template");
  }
  context.out->chat_template = std::move(source);
  return std::nullopt;
}

MaybeError ReadReturnTokenIds(JsonValue value, const FieldContext& context) {
  return ReadBool(value, "return_token_ids", &context.out->prepared.return_token_ids);
}

MaybeError ReadCacheSalt(JsonValue value, const FieldContext& context) {
  constexpr uint64_t kMaxSalt = 256;
  std::string salt;
  if (MaybeError error = ReadString(value, "cache_salt", &salt); error.has_value()) {
    return error;
  }
  if (salt.empty() || CountCodePoints(salt) > kMaxSalt) {
    return InvalidRequest("invalid_value",
                          "cache_salt",
                          fmt::format("'cache_salt' must have 1 to {} characters.", kMaxSalt));
  }
  context.out->prepared.cache_salt = std::move(salt);
  return std::nullopt;
}

MaybeError ReadCachePrompt(JsonValue value, const FieldContext& context) {
  return ReadBool(value, "cache_prompt", &context.out->prepared.cache_prompt);
}

MaybeError ReadPriority(JsonValue value, const FieldContext& context) {
  int64_t priority = 0;
  if (MaybeError error = ReadInteger(value, "priority", kPriorityRange, &priority);
      error.has_value()) {
    return error;
  }
  if (priority < context.caller.min_priority) {
    ApiError error = MakeError(403,
                               "insufficient_permissions",
                               fmt::format("This API key may not send a 'priority' below {}.",
                                           context.caller.min_priority));
    error.param = "priority";
    return error;
  }
  context.out->prepared.priority = static_cast<int32_t>(priority);
  return std::nullopt;
}

MaybeError ReadRequestId(JsonValue value, const FieldContext& context) {
  std::string id;
  if (MaybeError error = ReadString(value, "request_id", &id); error.has_value()) {
    return error;
  }
  if (!IsClientName(id)) {
    return BadClientName("request_id");
  }
  context.out->prepared.request_id = std::move(id);
  return std::nullopt;
}

MaybeError RefuseStructuredOutputs(JsonValue /*value*/, const FieldContext& /*context*/) {
  return Unsupported("structured_outputs", kNoStructuredOutputs);
}

MaybeError RefuseGrammar(JsonValue /*value*/, const FieldContext& /*context*/) {
  return Unsupported("grammar", kNoStructuredOutputs);
}

MaybeError RefuseJsonSchema(JsonValue /*value*/, const FieldContext& /*context*/) {
  return Unsupported("json_schema", kNoStructuredOutputs);
}

MaybeError RefuseAdapter(JsonValue /*value*/, const FieldContext& /*context*/) {
  return Unsupported("adapter", "adapters are not available in this build");
}

}  // namespace spindle::serving
