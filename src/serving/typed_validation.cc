#include "serving/typed_validation.h"

#include <algorithm>
#include <unordered_set>

#include <fmt/format.h>

#include "base/utf8.h"
#include "serving/request_parser.h"

namespace spindle::serving {
namespace {

MaybeError CheckNumber(float value, std::string_view path, const NumberRange& range) {
  return range.Contains(static_cast<double>(value)) ? MaybeError() : OutOfRange(path, range);
}

MaybeError CheckTokenIds(const std::vector<TokenId>& ids,
                         std::string_view path,
                         const ModelFacts& model) {
  const IntegerRange range{0, static_cast<int64_t>(model.vocab_size) - 1};
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < range.min || ids[i] > range.max) {
      return OutOfRange(fmt::format("{}[{}]", path, i), range);
    }
  }
  return std::nullopt;
}

MaybeError CheckModel(const ServingOptions& options, PreparedRequest* request) {
  const auto& names = options.served_names;
  if (request->model.empty()) {
    return ResolveModel(std::nullopt, options, &request->model);
  }
  return std::find(names.begin(), names.end(), request->model) == names.end()
             ? ModelNotFound(request->model, options)
             : MaybeError();
}

MaybeError CheckPrompts(const ModelFacts& model, const PreparedRequest& request) {
  if (request.prompts.empty()) {
    return Missing("prompt");
  }
  for (const std::vector<TokenId>& prompt : request.prompts) {
    if (prompt.empty()) {
      return InvalidRequest("invalid_value", "prompt", "'prompt' must have at least one token.");
    }
    if (MaybeError error = CheckTokenIds(prompt, "prompt", model); error.has_value()) {
      return error;
    }
  }
  return std::nullopt;
}

MaybeError CheckNumbers(const ServingOptions& options, const PreparedRequest& request) {
  const SamplingParams& s = request.sampling;
  const MaybeError checks[] = {
      CheckNumber(s.temperature, "temperature", kTemperatureRange),
      CheckNumber(s.top_p, "top_p", kProbabilityRange),
      CheckInteger(s.num_choices, "n", {1, options.max_n}),
      CheckNumber(s.presence_penalty, "presence_penalty", kPenaltyRange),
      CheckNumber(s.frequency_penalty, "frequency_penalty", kPenaltyRange),
      CheckInteger(s.logprobs.value_or(0), "top_logprobs", {0, options.max_logprobs}),
      CheckInteger(s.prompt_logprobs.value_or(0), "prompt_logprobs", {0, options.max_logprobs}),
      CheckInteger(s.top_k, "top_k", {-1}),
      CheckNumber(s.min_p, "min_p", kProbabilityRange),
      CheckNumber(s.repetition_penalty, "repetition_penalty", kRepetitionPenaltyRange),
      CheckInteger(request.priority, "priority", kPriorityRange),
  };
  for (const MaybeError& error : checks) {
    if (error.has_value()) {
      return error;
    }
  }
  return std::nullopt;
}

MaybeError CheckStops(const ServingOptions& options, const PreparedRequest& request) {
  constexpr size_t kMaxBytes = 1024;
  if (request.stop.size() > options.max_stop_strings) {
    return InvalidRequest(
        "invalid_value",
        "stop",
        fmt::format("'stop' may hold at most {} strings.", options.max_stop_strings));
  }
  for (const std::string& text : request.stop) {
    if (text.empty() || text.size() > kMaxBytes) {
      return InvalidRequest(
          "invalid_value",
          "stop",
          fmt::format("A stop string in 'stop' must have 1 to {} bytes.", kMaxBytes));
    }
  }
  return std::nullopt;
}

MaybeError CheckBias(const ModelFacts& model, const PreparedRequest& request) {
  std::unordered_set<TokenId> seen;
  for (const auto& [id, bias] : request.sampling.logit_bias) {
    if (id < 0 || static_cast<uint32_t>(id) >= model.vocab_size || !seen.insert(id).second) {
      return InvalidRequest(
          "invalid_value",
          "logit_bias",
          fmt::format("Token ids in 'logit_bias' must be distinct and in [0, {}].",
                      model.vocab_size - 1));
    }
    if (MaybeError error = CheckNumber(bias, fmt::format("logit_bias.{}", id), kBiasRange);
        error.has_value()) {
      return error;
    }
  }
  return std::nullopt;
}

}  // namespace

MaybeError CheckTyped(const ServingOptions& options,
                      const ModelFacts& model,
                      PreparedRequest* request) {
  if (MaybeError error = CheckModel(options, request); error.has_value()) {
    return error;
  }
  SamplingParams& sampling = request->sampling;
  const MaybeError checks[] = {
      CheckPrompts(model, *request),
      CheckNumbers(options, *request),
      CheckStops(options, *request),
      CheckBias(model, *request),
      CheckTokenIds(sampling.stop_token_ids, "stop_token_ids", model),
      CheckTokenIds(sampling.allowed_token_ids, "allowed_token_ids", model),
  };
  for (const MaybeError& error : checks) {
    if (error.has_value()) {
      return error;
    }
  }
  KeepDistinct(&sampling.allowed_token_ids);
  KeepDistinct(&sampling.stop_token_ids);
  constexpr uint64_t kMaxSalt = 256;
  if (CountCodePoints(request->cache_salt) > kMaxSalt) {
    return InvalidRequest("invalid_value",
                          "cache_salt",
                          fmt::format("'cache_salt' must have 1 to {} characters.", kMaxSalt));
  }
  return std::nullopt;
}

}  // namespace spindle::serving
