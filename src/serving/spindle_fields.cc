// The `spindle` object of section 9.1. Unknown names are always refused, known ones that this build
// does not offer too: a mistyped or missing budget must not run dense in silence.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "serving/field_handlers.h"
#include "serving/kv_fields.h"
#include "serving/sparse_names.h"

namespace spindle::serving {
namespace {

constexpr std::array<std::string_view, 16> kSparseNames = {"algorithm",
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

// Members of `sparse` that say how much to select.
bool IsBudget(std::string_view name) {
  return name == "budget_tokens" || name == "budget_fraction" || name == "top_p_mass";
}

MaybeError ReadAlgorithm(JsonValue value, std::string_view path) {
  std::string name;
  if (MaybeError error = ReadString(value, path, &name); error.has_value()) {
    return error;
  }
  return CheckSparseAlgorithm(name, path);
}

// The algorithm that the model runs anyway may be named; nothing can be set about it.
MaybeError ReadSparse(JsonValue value) {
  if (MaybeError error = ExpectType(value, "spindle.sparse", JsonType::kObject);
      error.has_value()) {
    return error;
  }
  std::string refused;
  bool asks_dense = false;
  for (auto member = value.begin(); member != value.end(); ++member) {
    const std::string name = member.name();
    const std::string path = "spindle.sparse." + name;
    if (std::find(kSparseNames.begin(), kSparseNames.end(), name) == kSparseNames.end()) {
      return UnknownMember(path);
    }
    const JsonValue wanted = member.value();
    if (wanted.Is(JsonType::kNull)) {
      continue;
    }
    if (name == "algorithm") {
      if (MaybeError error = ReadAlgorithm(wanted, path); error.has_value()) {
        return error;
      }
      asks_dense = wanted.AsString() == "dense";
    } else if (refused.empty()) {
      refused = name;
    }
  }
  if (refused.empty()) {
    return std::nullopt;
  }
  const std::string path = "spindle.sparse." + refused;
  if (asks_dense && IsBudget(refused)) {
    return InvalidRequest("unsupported_combination",
                          path,
                          fmt::format("'{}' has no meaning with the algorithm 'dense'.", path));
  }
  return NotAvailable(path);
}

MaybeError ReadStats(JsonValue value, const FieldContext& context) {
  constexpr std::array<std::string_view, 3> kLevels = {"none", "summary", "per_layer"};
  size_t index = 0;
  if (MaybeError error = ReadChoice(value, "spindle.stats", kLevels, &index); error.has_value()) {
    return error;
  }
  if (kLevels[index] == "per_layer") {
    return Unsupported("spindle.stats", "'per_layer' is not available in this build");
  }
  context.out->prepared.stats = kLevels[index] == "summary";
  return std::nullopt;
}

MaybeError ReadAuditEvery(JsonValue value) {
  int64_t steps = 0;
  if (MaybeError error = ReadInteger(value, "spindle.audit_every", IntegerRange{0}, &steps);
      error.has_value()) {
    return error;
  }
  return steps == 0 ? MaybeError() : NotAvailable("spindle.audit_every");
}

MaybeError ReadMember(std::string_view name, JsonValue value, const FieldContext& context) {
  if (name == "sparse") {
    return ReadSparse(value);
  }
  if (name == "kv") {
    return ReadKv(value, context);
  }
  if (name == "stats") {
    return ReadStats(value, context);
  }
  if (name == "progress") {
    return ReadBool(value, "spindle.progress", &context.out->prepared.progress);
  }
  return ReadAuditEvery(value);
}

}  // namespace

MaybeError ReadSpindle(JsonValue value, const FieldContext& context) {
  constexpr std::array<std::string_view, 5> kNames = {
      "sparse", "kv", "stats", "progress", "audit_every"};
  if (MaybeError error = ExpectType(value, "spindle", JsonType::kObject); error.has_value()) {
    return error;
  }
  std::array<std::optional<JsonValue>, kNames.size()> members;
  for (auto member = value.begin(); member != value.end(); ++member) {
    const std::string name = member.name();
    const auto known = std::find(kNames.begin(), kNames.end(), name);
    if (known == kNames.end()) {
      return UnknownMember("spindle." + name);
    }
    members[static_cast<size_t>(known - kNames.begin())] = member.value();
  }
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (!members[i].has_value() || members[i]->Is(JsonType::kNull)) {
      continue;
    }
    if (MaybeError error = ReadMember(kNames[i], *members[i], context); error.has_value()) {
      return error;
    }
  }
  return std::nullopt;
}

}  // namespace spindle::serving
