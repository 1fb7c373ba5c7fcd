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
constexpr size_t kMaxListLength = 4096;

MaybeError ReadTokens(JsonValue value, std::string_view path, std::optional<uint32_t>* out) {
  int64_t number = 0;
  if (MaybeError error = ReadInteger(value, path, kTokensRange, &number); error.has_value()) {
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

MaybeError ReadFraction(JsonValue value, std::string_view path, std::optional<double>* out) {
  float share = 0;
  if (MaybeError error = ReadNumber(value, path, kShareRange, &share); error.has_value()) {
    return error;
  }
  *out = double{share};
  return std::nullopt;
}

// Fields that say nothing when they have their default, and are not offered otherwise.
MaybeError ReadFixed(std::string_view name, JsonValue value, std::string_view path) {
  if (name == "reselect_interval") {
    int64_t steps = 0;
    if (MaybeError error = ReadInteger(value, path, IntegerRange{1, 64}, &steps);
        error.has_value()) {
      return error;
    }
    return steps == 1 ? MaybeError() : NotAvailable(path);
  }
  if (name == "prefill" || name == "fallback") {
    constexpr std::array<std::string_view, 3> kPrefills = {"dense", "xattention", "tri_shape"};
    constexpr std::array<std::string_view, 2> kFallbacks = {"none", "dense"};
    size_t index = 0;
    MaybeError error = name == "prefill" ? ReadChoice(value, path, kPrefills, &index)
                                         : ReadChoice(value, path, kFallbacks, &index);
    return error.has_value() || index == 0 ? std::move(error) : MaybeError(NotAvailable(path));
  }
  if (name == "params" || name == "prefill_params") {
    if (MaybeError error = ExpectType(value, path, JsonType::kObject); error.has_value()) {
      return error;
    }
    for (auto member = value.begin(); member != value.end(); ++member) {
      return UnknownMember(fmt::format("{}.{}", path, std::string(member.name())));
    }
    return std::nullopt;
  }
  return NotAvailable(path);  // top_p_mass, min_mass
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
    return ReadTokens(value, path, &wishes->budget_tokens);
  }
  if (name == "budget_fraction") {
    return ReadFraction(value, path, &wishes->budget_fraction);
  }
  if (name == "sink_tokens") {
    return ReadTokens(value, path, &wishes->sink_tokens);
  }
  if (name == "recent_tokens") {
    return ReadTokens(value, path, &wishes->recent_tokens);
  }
  if (name == "min_context") {
    return ReadTokens(value, path, &wishes->min_context);
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
  return ReadFixed(name, value, path);
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

}  // namespace

MaybeError ReadSparse(JsonValue value, const FieldContext& context) {
  if (MaybeError error = ExpectType(value, "spindle.sparse", JsonType::kObject);
      error.has_value()) {
    return error;
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
      return error;
    }
  }
  if (MaybeError error = CheckCombination(wishes); error.has_value()) {
    return error;
  }
  context.out->prepared.sparse = std::move(wishes);
  return std::nullopt;
}

MaybeError ApplySparse(const ServingOptions& options,
                       const ServedModel& model,
                       PreparedRequest* request) {
  if (!request->sparse.has_value()) {
    return std::nullopt;
  }
  absl::StatusOr<engine::SparseDecode> decode = engine::ResolveSparse(
      *request->sparse, options.sparse, model.engine->kv_geometry(), model.facts.max_model_len);
  if (!decode.ok()) {
    return InvalidRequest(
        "invalid_value",
        "spindle.sparse",
        fmt::format("'spindle.sparse': {}.", std::string(decode.status().message())));
  }
  request->decode = *std::move(decode);
  return std::nullopt;
}

}  // namespace spindle::serving
