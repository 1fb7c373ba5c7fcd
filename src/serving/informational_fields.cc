// Fields of OpenAI's API that are checked and recorded, handed to the template, or refused.
#include <array>

#include <fmt/format.h>

#include "base/utf8.h"
#include "serving/field_handlers.h"

namespace spindle::serving {
namespace {

constexpr std::string_view kNotInThisBuild = "it is not available in this build";

MaybeError ReadAndDropBool(JsonValue value, std::string_view path) {
  bool ignored = false;
  return ReadBool(value, path, &ignored);
}

// A string of at most `max` characters.
MaybeError ReadShortString(JsonValue value,
                           std::string_view path,
                           uint64_t max,
                           std::string* text) {
  if (MaybeError error = ReadString(value, path, text); error.has_value()) {
    return error;
  }
  if (CountCodePoints(*text) > max) {
    return InvalidRequest("invalid_value",
                          std::string(path),
                          fmt::format("'{}' may have at most {} characters.", path, max));
  }
  return std::nullopt;
}

void AddKwarg(std::string_view name, std::string_view json, std::string* members) {
  if (!members->empty()) {
    members->push_back(',');
  }
  AppendJsonString(name, members);
  members->push_back(':');
  *members += json;
}

// A field that is one of a few words and becomes a template variable of the same name.
MaybeError ReadTemplateWord(JsonValue value,
                            std::string_view name,
                            std::span<const std::string_view> words,
                            const FieldContext& context,
                            std::string_view* word) {
  size_t index = 0;
  if (MaybeError error = ReadChoice(value, name, words, &index); error.has_value()) {
    return error;
  }
  *word = words[index];
  AddKwarg(name, fmt::format("\"{}\"", *word), &context.out->derived_kwargs);
  return std::nullopt;
}

}  // namespace

MaybeError ReadResponseFormat(JsonValue value, const FieldContext& /*context*/) {
  if (MaybeError error = ExpectType(value, "response_format", JsonType::kObject);
      error.has_value()) {
    return error;
  }
  const std::optional<JsonValue> type = value.Find("type");
  if (!type.has_value()) {
    return Missing("response_format.type");
  }
  constexpr std::array<std::string_view, 3> kTypes = {"text", "json_object", "json_schema"};
  size_t index = 0;
  if (MaybeError error = ReadChoice(*type, "response_format.type", kTypes, &index);
      error.has_value()) {
    return error;
  }
  if (index != 0) {
    return Unsupported("response_format", "structured outputs are not available in this build");
  }
  return std::nullopt;
}

MaybeError ReadTools(JsonValue value, const FieldContext& /*context*/) {
  constexpr size_t kMaxTools = 128;
  if (MaybeError error = ExpectType(value, "tools", JsonType::kArray); error.has_value()) {
    return error;
  }
  const size_t count = value.CountChildren();
  if (count == 0 || count > kMaxTools) {
    return InvalidRequest(
        "invalid_value", "tools", fmt::format("'tools' must hold 1 to {} tools.", kMaxTools));
  }
  return Unsupported("tools", kNotInThisBuild);
}

MaybeError ReadToolChoice(JsonValue value, const FieldContext& context) {
  constexpr std::array<std::string_view, 3> kChoices = {"none", "auto", "required"};
  size_t index = 1;
  if (value.Is(JsonType::kString)) {
    if (MaybeError error = ReadChoice(value, "tool_choice", kChoices, &index); error.has_value()) {
      return error;
    }
  } else if (!value.Is(JsonType::kObject)) {
    return WrongType("tool_choice", "a string or an object", value.type());
  }
  if (index != 0 && !context.given.Find("tools").has_value()) {
    return InvalidRequest(
        "invalid_value", "tool_choice", "'tool_choice' other than 'none' needs 'tools'.");
  }
  return std::nullopt;
}

MaybeError ReadParallelToolCalls(JsonValue value, const FieldContext& /*context*/) {
  return ReadAndDropBool(value, "parallel_tool_calls");
}

MaybeError ReadReasoningEffort(JsonValue value, const FieldContext& context) {
  constexpr std::array<std::string_view, 7> kEfforts = {
      "none", "minimal", "low", "medium", "high", "xhigh", "max"};
  std::string_view effort;
  if (MaybeError error = ReadTemplateWord(value, "reasoning_effort", kEfforts, context, &effort);
      error.has_value()) {
    return error;
  }
  if (effort == "none") {
    AddKwarg("enable_thinking", "false", &context.out->derived_kwargs);
  }
  return std::nullopt;
}

MaybeError ReadVerbosity(JsonValue value, const FieldContext& context) {
  constexpr std::array<std::string_view, 3> kVerbosities = {"low", "medium", "high"};
  std::string_view verbosity;
  return ReadTemplateWord(value, "verbosity", kVerbosities, context, &verbosity);
}

MaybeError ReadPrediction(JsonValue value, const FieldContext& /*context*/) {
  if (MaybeError error = ExpectType(value, "prediction", JsonType::kObject); error.has_value()) {
    return error;
  }
  constexpr std::array<std::string_view, 1> kTypes = {"content"};
  const std::optional<JsonValue> type = value.Find("type");
  const std::optional<JsonValue> content = value.Find("content");
  if (!type.has_value()) {
    return Missing("prediction.type");
  }
  size_t index = 0;
  if (MaybeError error = ReadChoice(*type, "prediction.type", kTypes, &index); error.has_value()) {
    return error;
  }
  if (!content.has_value()) {
    return Missing("prediction.content");
  }
  if (!content->Is(JsonType::kString) && !content->Is(JsonType::kArray)) {
    return WrongType("prediction.content", "a string or an array of parts", content->type());
  }
  return std::nullopt;
}

MaybeError ReadMetadata(JsonValue value, const FieldContext& /*context*/) {
  constexpr size_t kMaxPairs = 16;
  constexpr uint64_t kMaxKey = 64;
  constexpr uint64_t kMaxValue = 512;
  if (MaybeError error = ExpectType(value, "metadata", JsonType::kObject); error.has_value()) {
    return error;
  }
  if (value.CountChildren() > kMaxPairs) {
    return InvalidRequest("invalid_value",
                          "metadata",
                          fmt::format("'metadata' may hold at most {} pairs.", kMaxPairs));
  }
  for (auto member = value.begin(); member != value.end(); ++member) {
    const std::string key = member.name();
    if (CountCodePoints(key) > kMaxKey) {
      return InvalidRequest(
          "invalid_value",
          "metadata",
          fmt::format("A key of 'metadata' may have at most {} characters.", kMaxKey));
    }
    std::string ignored;
    if (MaybeError error = ReadShortString(member.value(), "metadata." + key, kMaxValue, &ignored);
        error.has_value()) {
      return error;
    }
  }
  return std::nullopt;
}

MaybeError ReadUser(JsonValue value, const FieldContext& context) {
  std::string user;
  if (MaybeError error = ReadString(value, "user", &user); error.has_value()) {
    return error;
  }
  if (context.out->prepared.user.empty()) {  // else there is a safety_identifier, its successor
    context.out->prepared.user = std::move(user);
  }
  return std::nullopt;
}

MaybeError ReadSafetyIdentifier(JsonValue value, const FieldContext& context) {
  std::string user;
  if (MaybeError error = ReadShortString(value, "safety_identifier", 64, &user);
      error.has_value()) {
    return error;
  }
  if (!user.empty()) {
    context.out->prepared.user = std::move(user);
  }
  return std::nullopt;
}

MaybeError ReadServiceTier(JsonValue value, const FieldContext& /*context*/) {
  constexpr std::array<std::string_view, 6> kTiers = {
      "auto", "default", "flex", "scale", "priority", "fast"};
  size_t index = 0;
  return ReadChoice(value, "service_tier", kTiers, &index);
}

MaybeError ReadStore(JsonValue value, const FieldContext& /*context*/) {
  return ReadAndDropBool(value, "store");
}

MaybeError ReadPromptCacheKey(JsonValue value, const FieldContext& /*context*/) {
  std::string ignored;
  return ReadString(value, "prompt_cache_key", &ignored);
}

MaybeError AcceptAnything(JsonValue /*value*/, const FieldContext& /*context*/) {
  return std::nullopt;
}

MaybeError ReadModalities(JsonValue value, const FieldContext& /*context*/) {
  if (MaybeError error = ExpectType(value, "modalities", JsonType::kArray); error.has_value()) {
    return error;
  }
  size_t i = 0;
  for (auto item = value.begin(); item != value.end(); ++item, ++i) {
    std::string modality;
    const std::string path = fmt::format("modalities[{}]", i);
    if (MaybeError error = ReadString(item.value(), path, &modality); error.has_value()) {
      return error;
    }
    if (modality != "text") {
      return InvalidRequest("unsupported_value", path, "Only the modality 'text' is supported.");
    }
  }
  return std::nullopt;
}

MaybeError RefuseAudio(JsonValue /*value*/, const FieldContext& /*context*/) {
  return Unsupported("audio", "this server produces text only");
}

MaybeError RefuseWebSearch(JsonValue /*value*/, const FieldContext& /*context*/) {
  return Unsupported("web_search_options", "this server makes no outbound connections");
}

MaybeError RefuseFunctions(JsonValue /*value*/, const FieldContext& /*context*/) {
  return Unsupported("functions", "use 'tools' instead");
}

MaybeError RefuseFunctionCall(JsonValue /*value*/, const FieldContext& /*context*/) {
  return Unsupported("function_call", "use 'tool_choice' instead");
}

}  // namespace spindle::serving
