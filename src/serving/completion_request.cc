// Fields that only /v1/completions has, or has differently.
#include <utility>

#include <fmt/format.h>

#include "serving/field_handlers.h"

namespace spindle::serving {
namespace {

enum class PromptKind : uint8_t { kText, kTokenId, kTokenList, kOther };

PromptKind KindOf(JsonValue item) {
  switch (item.type()) {
    case JsonType::kString:
      return PromptKind::kText;
    case JsonType::kNumber:
      return PromptKind::kTokenId;
    case JsonType::kArray:
      return PromptKind::kTokenList;
    default:
      return PromptKind::kOther;
  }
}

MaybeError ReadPromptItem(JsonValue item, size_t i, PromptKind kind, const FieldContext& context) {
  const std::string path = fmt::format("prompt[{}]", i);
  if (KindOf(item) != kind) {
    return WrongType(path, "of the same kind as the first item of 'prompt'", item.type());
  }
  std::vector<RawPrompt>& prompts = context.out->raw_prompts;
  if (kind == PromptKind::kText) {
    prompts.emplace_back(item.AsString());
    return std::nullopt;
  }
  std::vector<TokenId> ids;
  if (MaybeError error = ReadTokenIds(item, path, context.model.vocab_size, &ids);
      error.has_value()) {
    return error;
  }
  if (ids.empty()) {
    return InvalidRequest("invalid_value", path, fmt::format("'{}' must not be empty.", path));
  }
  prompts.emplace_back(std::move(ids));
  return std::nullopt;
}

}  // namespace

MaybeError ReadPrompt(JsonValue value, const FieldContext& context) {
  constexpr std::string_view kForms =
      "a string, an array of strings, an array of token ids or an array of such arrays";
  if (value.Is(JsonType::kString)) {
    context.out->raw_prompts.emplace_back(value.AsString());
    return std::nullopt;
  }
  if (!value.Is(JsonType::kArray)) {
    return WrongType("prompt", kForms, value.type());
  }
  if (!(value.begin() != value.end())) {
    return InvalidRequest("invalid_value", "prompt", "'prompt' must not be an empty array.");
  }
  const JsonValue first = value.begin().value();
  const PromptKind kind = KindOf(first);
  if (kind == PromptKind::kOther) {
    return WrongType("prompt[0]", "a string, a token id or an array of token ids", first.type());
  }
  if (kind == PromptKind::kTokenId) {
    std::vector<TokenId> ids;
    MaybeError error = ReadTokenIds(value, "prompt", context.model.vocab_size, &ids);
    context.out->raw_prompts.emplace_back(std::move(ids));
    return error;
  }
  if (value.CountChildren() > context.options.max_prompts) {
    return InvalidRequest(
        "invalid_value",
        "prompt",
        fmt::format("'prompt' may hold at most {} prompts.", context.options.max_prompts));
  }
  context.out->prompt_is_list = true;
  size_t i = 0;
  for (auto item = value.begin(); item != value.end(); ++item, ++i) {
    if (MaybeError error = ReadPromptItem(item.value(), i, kind, context); error.has_value()) {
      return error;
    }
  }
  return std::nullopt;
}

MaybeError PromptMissing(const FieldContext& /*context*/) {
  return Missing("prompt");
}

MaybeError ReadCompletionLogprobs(JsonValue value, const FieldContext& context) {
  int64_t count = 0;
  if (MaybeError error =
          ReadInteger(value, "logprobs", IntegerRange{0, context.options.max_logprobs}, &count);
      error.has_value()) {
    return error;
  }
  context.out->wants_logprobs = true;
  context.out->top_logprobs = static_cast<uint32_t>(count);
  return std::nullopt;
}

MaybeError ReadEcho(JsonValue value, const FieldContext& context) {
  return ReadBool(value, "echo", &context.out->prepared.echo);
}

MaybeError ReadSuffix(JsonValue value, const FieldContext& /*context*/) {
  std::string suffix;
  if (MaybeError error = ReadString(value, "suffix", &suffix); error.has_value()) {
    return error;
  }
  if (!suffix.empty()) {
    return Unsupported("suffix", "the model has no fill-in-the-middle tokens");
  }
  return std::nullopt;
}

MaybeError ReadBestOf(JsonValue value, const FieldContext& context) {
  constexpr int64_t kMaxBestOf = 20;
  int64_t best_of = 0;
  if (MaybeError error = ReadInteger(value, "best_of", IntegerRange{1, kMaxBestOf}, &best_of);
      error.has_value()) {
    return error;
  }
  PreparedRequest& prepared = context.out->prepared;
  const uint32_t n = prepared.sampling.num_choices;
  if (best_of < n || best_of > context.options.max_n) {
    return InvalidRequest(
        "invalid_value",
        "best_of",
        fmt::format("'best_of' must be at least 'n' and at most {}.", context.options.max_n));
  }
  if (best_of > n && prepared.stream) {
    return InvalidRequest("invalid_value", "best_of", "'best_of' above 'n' cannot be streamed.");
  }
  prepared.best_of = static_cast<uint32_t>(best_of);
  return std::nullopt;
}

MaybeError ReadAddSpecialTokens(JsonValue value, const FieldContext& context) {
  return ReadBool(value, "add_special_tokens", &context.out->add_special_tokens);
}

MaybeError RefuseChatTools(JsonValue /*value*/, const FieldContext& /*context*/) {
  return Unsupported("tools", "use /v1/chat/completions for tools");
}

MaybeError RefuseChatToolChoice(JsonValue value, const FieldContext& /*context*/) {
  if (value.Is(JsonType::kString) && value.AsString() == "none") {
    return std::nullopt;
  }
  return Unsupported("tool_choice", "use /v1/chat/completions for tools");
}

MaybeError RefuseChatTopLogprobs(JsonValue value, const FieldContext& /*context*/) {
  int64_t count = 0;
  if (MaybeError error = ReadInteger(value, "top_logprobs", IntegerRange{0}, &count);
      error.has_value()) {
    return error;
  }
  return count == 0 ? MaybeError()
                    : Unsupported("top_logprobs", "'logprobs' is a number for completions");
}

}  // namespace spindle::serving
