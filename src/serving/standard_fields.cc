// Sampling and streaming fields of OpenAI's API.
#include <charconv>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "serving/field_handlers.h"

namespace spindle::serving {
namespace {

constexpr size_t kMaxStopBytes = 1024;

MaybeError ReadTokenLimit(JsonValue value, std::string_view name, const FieldContext& context) {
  // A scoring call (no sampled token) exists for completions only.
  const int64_t min = context.endpoint == Endpoint::kCompletions ? 0 : 1;
  int64_t tokens = 0;
  if (MaybeError error = ReadInteger(value, name, IntegerRange{min}, &tokens); error.has_value()) {
    return error;
  }
  std::optional<uint64_t>& limit = context.out->max_tokens;
  const auto wanted = static_cast<uint64_t>(tokens);
  if (limit.has_value() && *limit != wanted) {
    return InvalidRequest("invalid_value",
                          "max_tokens",
                          "'max_tokens' and 'max_completion_tokens' mean the same and must not "
                          "have different values.");
  }
  limit = wanted;
  return std::nullopt;
}

MaybeError ReadStopString(JsonValue value, std::string_view path, const FieldContext& context) {
  std::string text;
  if (MaybeError error = ReadString(value, path, &text); error.has_value()) {
    return error;
  }
  if (text.empty() || text.size() > kMaxStopBytes) {
    return InvalidRequest(
        "invalid_value",
        "stop",
        fmt::format("A stop string in 'stop' must have 1 to {} bytes.", kMaxStopBytes));
  }
  context.out->prepared.stop.push_back(std::move(text));
  return std::nullopt;
}

}  // namespace

MaybeError ReadMaxTokens(JsonValue value, const FieldContext& context) {
  return ReadTokenLimit(value, "max_tokens", context);
}

MaybeError ReadMaxCompletionTokens(JsonValue value, const FieldContext& context) {
  return ReadTokenLimit(value, "max_completion_tokens", context);
}

MaybeError ReadTemperature(JsonValue value, const FieldContext& context) {
  return ReadNumber(
      value, "temperature", kTemperatureRange, &context.out->prepared.sampling.temperature);
}

MaybeError ReadTopP(JsonValue value, const FieldContext& context) {
  return ReadNumber(value, "top_p", kProbabilityRange, &context.out->prepared.sampling.top_p);
}

MaybeError ReadN(JsonValue value, const FieldContext& context) {
  int64_t n = 0;
  if (MaybeError error = ReadInteger(value, "n", IntegerRange{1, context.options.max_n}, &n);
      error.has_value()) {
    return error;
  }
  context.out->prepared.sampling.num_choices = static_cast<uint32_t>(n);
  return std::nullopt;
}

MaybeError ReadStop(JsonValue value, const FieldContext& context) {
  if (value.Is(JsonType::kString)) {
    return ReadStopString(value, "stop", context);
  }
  if (!value.Is(JsonType::kArray)) {
    return WrongType("stop", "a string or an array of strings", value.type());
  }
  if (value.CountChildren() > context.options.max_stop_strings) {
    return InvalidRequest(
        "invalid_value",
        "stop",
        fmt::format("'stop' may hold at most {} strings.", context.options.max_stop_strings));
  }
  size_t i = 0;
  for (auto item = value.begin(); item != value.end(); ++item, ++i) {
    if (MaybeError error = ReadStopString(item.value(), fmt::format("stop[{}]", i), context);
        error.has_value()) {
      return error;
    }
  }
  return std::nullopt;
}

MaybeError ReadSeed(JsonValue value, const FieldContext& context) {
  int64_t seed = 0;
  if (MaybeError error = ReadInteger(value, "seed", IntegerRange{}, &seed); error.has_value()) {
    return error;
  }
  context.out->seed = static_cast<uint64_t>(seed);
  return std::nullopt;
}

MaybeError ReadPresencePenalty(JsonValue value, const FieldContext& context) {
  return ReadNumber(
      value, "presence_penalty", kPenaltyRange, &context.out->prepared.sampling.presence_penalty);
}

MaybeError ReadFrequencyPenalty(JsonValue value, const FieldContext& context) {
  return ReadNumber(
      value, "frequency_penalty", kPenaltyRange, &context.out->prepared.sampling.frequency_penalty);
}

MaybeError ReadLogitBias(JsonValue value, const FieldContext& context) {
  if (MaybeError error = ExpectType(value, "logit_bias", JsonType::kObject); error.has_value()) {
    return error;
  }
  std::map<TokenId, float> biases;
  for (auto member = value.begin(); member != value.end(); ++member) {
    const std::string name = member.name();
    uint32_t id = 0;
    const auto [end, status] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (status != std::errc() || end != name.data() + name.size() ||
        id >= context.model.vocab_size) {
      return InvalidRequest("invalid_value",
                            "logit_bias",
                            fmt::format("A key of 'logit_bias' must be a decimal token id in "
                                        "[0, {}]; it is '{}'.",
                                        context.model.vocab_size - 1,
                                        Excerpt(name)));
    }
    float bias = 0;
    if (MaybeError error =
            ReadNumber(member.value(), fmt::format("logit_bias.{}", id), kBiasRange, &bias);
        error.has_value()) {
      return error;
    }
    biases[static_cast<TokenId>(id)] = bias;
  }
  context.out->prepared.sampling.logit_bias.assign(biases.begin(), biases.end());
  return std::nullopt;
}

MaybeError ReadChatLogprobs(JsonValue value, const FieldContext& context) {
  return ReadBool(value, "logprobs", &context.out->wants_logprobs);
}

MaybeError ReadTopLogprobs(JsonValue value, const FieldContext& context) {
  int64_t count = 0;
  if (MaybeError error =
          ReadInteger(value, "top_logprobs", IntegerRange{0, context.options.max_logprobs}, &count);
      error.has_value()) {
    return error;
  }
  if (count > 0 && !context.out->wants_logprobs) {
    return InvalidRequest(
        "invalid_value", "top_logprobs", "'top_logprobs' above 0 needs 'logprobs': true.");
  }
  context.out->top_logprobs = static_cast<uint32_t>(count);
  return std::nullopt;
}

MaybeError ReadStream(JsonValue value, const FieldContext& context) {
  return ReadBool(value, "stream", &context.out->prepared.stream);
}

MaybeError ReadStreamOptions(JsonValue value, const FieldContext& context) {
  if (MaybeError error = ExpectType(value, "stream_options", JsonType::kObject);
      error.has_value()) {
    return error;
  }
  if (!context.out->prepared.stream) {
    return InvalidRequest(
        "invalid_value", "stream_options", "'stream_options' needs 'stream': true.");
  }
  bool obfuscation = false;  // accepted; padding is never added
  const std::pair<std::string_view, bool*> options[] = {
      {"include_usage", &context.out->prepared.include_usage},
      {"include_obfuscation", &obfuscation},
      {"continuous_usage_stats", &context.out->prepared.continuous_usage},
  };
  for (const auto& [name, target] : options) {
    const std::optional<JsonValue> option = value.Find(name);
    if (!option.has_value() || option->Is(JsonType::kNull)) {
      continue;
    }
    if (MaybeError error = ReadBool(*option, fmt::format("stream_options.{}", name), target);
        error.has_value()) {
      return error;
    }
  }
  return std::nullopt;
}

}  // namespace spindle::serving
