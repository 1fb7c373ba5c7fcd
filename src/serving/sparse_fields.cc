#include "serving/sparse_fields.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "serving/kv_fields.h"
#include "serving/served_model.h"
#include "serving/sparse_names.h"

namespace spindle::serving {
namespace {

using engine::SparseRequest;

constexpr std::array<std::string_view, 16> kNames = {"algorithm",
                                                     "budget_tokens",
                                                     "budget_fraction",
                                                     "top_p_mass",
                                                     "dense_layers",
                                                     "sink_tokens",
                                                     "recent_tokens",
                                                     "min_context",
                                                     "prefill",
                                                     "prefill_params",
                                                     "reselect_interval",
                                                     "layer_multipliers",
                                                     "head_multipliers",
                                                     "fallback",
                                                     "min_mass",
                                                     "params"};
constexpr NumberRange kShareRange{0, 1, true};
constexpr NumberRange kMultiplierRange{0, 1024, true};
constexpr IntegerRange kTokensRange{0, 1 << 30};
constexpr IntegerRange kIntervalRange{1, engine::kMaxReselectInterval};
constexpr NumberRange kMinMassRange{0, 1};
constexpr NumberRange kParamRange{-1e9, 1e9};
constexpr size_t kMaxListLength = 4096;
constexpr size_t kMaxParams = 64;

MaybeError ReadCount(JsonValue value,
                     std::string_view path,
                     const IntegerRange& range,
                     std::optional<uint32_t>* out) {
  int64_t number = 0;
  if (MaybeError error = ReadInteger(value, path, range, &number); error.has_value()) {
    return error;
  }
  *out = static_cast<uint32_t>(number);
  return std::nullopt;
}

// Calls `read(element, path)` for each of an array that is not too long.
template <typename Read>
MaybeError ReadElements(JsonValue value, std::string_view path, const Read& read) {
  if (MaybeError error = ExpectType(value, path, JsonType::kArray); error.has_value()) {
    return error;
  }
  if (value.CountChildren() > kMaxListLength) {
    return InvalidRequest("invalid_value",
                          std::string(path),
                          fmt::format("'{}' must have at most {} elements.", path, kMaxListLength));
  }
  size_t i = 0;
  for (auto element = value.begin(); element != value.end(); ++element, ++i) {
    if (MaybeError error = read(element.value(), fmt::format("{}[{}]", path, i));
        error.has_value()) {
      return error;
    }
  }
  return std::nullopt;
}

MaybeError ReadMultipliers(JsonValue value, std::string_view path, std::vector<float>* out) {
  return ReadElements(value, path, [out](JsonValue element, const std::string& at) {
    return ReadNumber(element, at, kMultiplierRange, &out->emplace_back());
  });
}

MaybeError ReadDenseLayers(JsonValue value,
                           std::string_view path,
                           std::optional<std::vector<int32_t>>* out) {
  std::vector<int32_t>& layers = out->emplace();
  if (value.Is(JsonType::kString)) {
    absl::StatusOr<std::vector<int32_t>> parsed = engine::ParseDenseLayers(value.AsString());
    if (!parsed.ok()) {
      return InvalidRequest(
          "invalid_value",
          std::string(path),
          fmt::format("'{}' must be an array of layer numbers, or text such as 'first:2,last:1'.",
                      path));
    }
    layers = *std::move(parsed);
    return std::nullopt;
  }
  return ReadElements(value, path, [&layers](JsonValue element, const std::string& at) {
    int64_t layer = 0;
    MaybeError error = ReadInteger(element, at, IntegerRange{-65536, 65535}, &layer);
    layers.push_back(static_cast<int32_t>(layer));
    return error;
  });
}

MaybeError ReadFraction(JsonValue value,
                        std::string_view path,
                        const NumberRange& range,
                        std::optional<double>* out) {
  if (MaybeError error = ExpectType(value, path, JsonType::kNumber); error.has_value()) {
    return error;
  }
  if (!range.Contains(value.AsDouble())) {
    return OutOfRange(path, range);
  }
  *out = value.AsDouble();
  return std::nullopt;
}

MaybeError ReadFallback(JsonValue value, std::string_view path, std::optional<bool>* out) {
  constexpr std::array<std::string_view, 2> kFallbacks = {"none", "dense"};
  size_t index = 0;
  MaybeError error = ReadChoice(value, path, kFallbacks, &index);
  *out = index == 1;
  return error;
}

// Numbers by name; which there are depends on the algorithm or method.
MaybeError ReadParams(JsonValue value,
                      std::string_view path,
                      std::vector<std::pair<std::string, double>>* out) {
  if (MaybeError error = ExpectType(value, path, JsonType::kObject); error.has_value()) {
    return error;
  }
  if (value.CountChildren() > kMaxParams) {
    return InvalidRequest("invalid_value",
                          std::string(path),
                          fmt::format("'{}' must have at most {} members.", path, kMaxParams));
  }
  for (auto member = value.begin(); member != value.end(); ++member) {
    const std::string name = member.name();
    const std::string at = fmt::format("{}.{}", path, Excerpt(name));
    if (MaybeError error = ExpectType(member.value(), at, JsonType::kNumber); error.has_value()) {
      return error;
    }
    const double number = member.value().AsDouble();
    if (!kParamRange.Contains(number)) {
      return OutOfRange(at, kParamRange);
    }
    out->emplace_back(name, number);
  }
  return std::nullopt;
}

MaybeError ReadPrefill(JsonValue value, std::string_view path, std::string* out) {
  if (MaybeError error = ReadString(value, path, out); error.has_value()) {
    return error;
  }
  return CheckSparsePrefill(*out, path);
}

MaybeError ReadAlgorithm(JsonValue value, std::string_view path, std::string* out) {
  if (MaybeError error = ReadString(value, path, out); error.has_value()) {
    return error;
  }
  return CheckSparseAlgorithm(*out, path);
}

MaybeError ReadMember(std::string_view name,
                      JsonValue value,
                      std::string_view path,
                      SparseRequest* wishes) {
  if (name == "algorithm") {
    return ReadAlgorithm(value, path, &wishes->algorithm);
  }
  if (name == "budget_tokens") {
    return ReadCount(value, path, kTokensRange, &wishes->budget_tokens);
  }
  if (name == "budget_fraction") {
    return ReadFraction(value, path, kShareRange, &wishes->budget_fraction);
  }
  if (name == "sink_tokens") {
    return ReadCount(value, path, kTokensRange, &wishes->sink_tokens);
  }
  if (name == "recent_tokens") {
    return ReadCount(value, path, kTokensRange, &wishes->recent_tokens);
  }
  if (name == "min_context") {
    return ReadCount(value, path, kTokensRange, &wishes->min_context);
  }
  if (name == "dense_layers") {
    return ReadDenseLayers(value, path, &wishes->dense_layers);
  }
  if (name == "layer_multipliers") {
    return ReadMultipliers(value, path, &wishes->layer_multipliers);
  }
  if (name == "head_multipliers") {
    return ReadMultipliers(value, path, &wishes->head_multipliers);
  }
  if (name == "top_p_mass") {
    return ReadFraction(value, path, kShareRange, &wishes->top_p_mass);
  }
  if (name == "min_mass") {
    return ReadFraction(value, path, kMinMassRange, &wishes->min_mass);
  }
  if (name == "fallback") {
    return ReadFallback(value, path, &wishes->dense_fallback);
  }
  if (name == "reselect_interval") {
    return ReadCount(value, path, kIntervalRange, &wishes->reselect_interval);
  }
  if (name == "params") {
    return ReadParams(value, path, &wishes->params);
  }
  if (name == "prefill") {
    return ReadPrefill(value, path, &wishes->prefill);
  }
  return ReadParams(value, path, &wishes->prefill_params);
}

MaybeError CheckCombination(const SparseRequest& wishes) {
  const bool has_tokens = wishes.budget_tokens.has_value();
  const bool has_fraction = wishes.budget_fraction.has_value();
  if (has_tokens && has_fraction) {
    return InvalidRequest("unsupported_combination",
                          "spindle.sparse.budget_fraction",
                          "Only one of 'spindle.sparse.budget_tokens' and "
                          "'spindle.sparse.budget_fraction' can be given.");
  }
  if (wishes.algorithm == "dense" && (has_tokens || has_fraction)) {
    const std::string path =
        has_tokens ? "spindle.sparse.budget_tokens" : "spindle.sparse.budget_fraction";
    return InvalidRequest("unsupported_combination",
                          path,
                          fmt::format("'{}' has no meaning with the algorithm 'dense'.", path));
  }
  return std::nullopt;
}

Result<SparseRequest> ReadWishes(JsonValue value) {
  if (MaybeError error = ExpectType(value, "spindle.sparse", JsonType::kObject);
      error.has_value()) {
    return *std::move(error);
  }
  SparseRequest wishes;
  for (auto member = value.begin(); member != value.end(); ++member) {
    const std::string name = member.name();
    const std::string path = "spindle.sparse." + name;
    if (std::ranges::find(kNames, name) == kNames.end()) {
      return UnknownMember(path);
    }
    if (member.value().Is(JsonType::kNull)) {
      continue;
    }
    if (MaybeError error = ReadMember(name, member.value(), path, &wishes); error.has_value()) {
      return *std::move(error);
    }
  }
  if (MaybeError error = CheckCombination(wishes); error.has_value()) {
    return *std::move(error);
  }
  return wishes;
}

// Log-probabilities of a prompt take its rows in chunks that are smaller than blocks.
MaybeError CheckPrefill(const PreparedRequest& request, bool is_sparse) {
  if (!is_sparse || !request.sampling.prompt_logprobs.has_value()) {
    return std::nullopt;
  }
  return InvalidRequest("unsupported_combination",
                        "spindle.sparse.prefill",
                        "'spindle.sparse.prefill' must be 'dense' where log-probabilities of the "
                        "prompt are asked for.");
}

// Messages begin with the field's name.
ApiError ToApiError(const absl::Status& status) {
  const std::string message(status.message());
  const size_t end = message.find(' ');
  const std::string path = "spindle.sparse." + message.substr(0, end);
  if (absl::IsUnimplemented(status)) {
    return UnknownMember(path);
  }
  return InvalidRequest(
      absl::IsFailedPrecondition(status) ? "unsupported_combination" : "invalid_value",
      path,
      fmt::format("'{}'{}.", path, message.substr(end)));
}

}  // namespace

MaybeError ReadSparse(JsonValue value, const FieldContext& context) {
  Result<SparseRequest> wishes = ReadWishes(value);
  if (!wishes.ok()) {
    return wishes.error();
  }
  context.out->prepared.sparse = std::move(wishes).value();
  return std::nullopt;
}

Result<SparseRequest> ParseSparse(std::string_view json) {
  JsonDocument document;
  if (const std::optional<JsonError> error = document.Parse(json); error.has_value()) {
    return InvalidRequest("invalid_json",
                          "spindle.sparse",
                          fmt::format("'spindle.sparse' is not JSON: {}.", error->problem));
  }
  return ReadWishes(document.root());
}

MaybeError CheckAudit(const ServingOptions& options, uint32_t audit_every) {
  if (MaybeError error = CheckInteger(audit_every, kAuditEvery, {0, kMaxAuditEvery});
      error.has_value()) {
    return error;
  }
  if (audit_every == 0 || options.allow_audit) {
    return std::nullopt;
  }
  ApiError error = MakeError(
      403,
      "insufficient_permissions",
      fmt::format("'{}' is slow: this server does not allow it (--allow-audit).", kAuditEvery));
  error.param = std::string(kAuditEvery);
  return error;
}

MaybeError ApplySparse(const ServingOptions& options,
                       const ServedModel& model,
                       PreparedRequest* request) {
  if (!request->sparse.has_value() && !options.presets.contains(request->model)) {
    request->decode.reset();  // of another model name, before that was replaced
    return CheckPrefill(*request,
                        !options.sparse.prefill.empty() && options.sparse.prefill != "dense");
  }
  SparseRequest wishes = request->sparse.value_or(SparseRequest());
  wishes.estimates_mass = request->stats;
  absl::StatusOr<engine::SparseDecode> decode = engine::ResolveSparse(
      wishes, options.SparseOf(request->model), model.engine->kv_geometry(), model.algorithms);
  if (absl::IsNotFound(decode.status())) {
    return SparseAlgorithmUnavailable(wishes.algorithm);
  }
  if (!decode.ok()) {
    return ToApiError(decode.status());
  }
  request->decode = *std::move(decode);
  return CheckPrefill(*request, request->decode->prefill != nullptr);
}

}  // namespace spindle::serving
