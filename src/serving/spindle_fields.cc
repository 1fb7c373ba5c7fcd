// The `spindle` object of section 9.1. Unknown names are always refused, known ones that this build
// does not offer too: a mistyped or missing budget must not run dense in silence.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "serving/field_handlers.h"

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
constexpr std::array<std::string_view, 6> kKvNames = {"fast_tier_budget_bytes",
                                                      "fast_tier_budget_fraction",
                                                      "buffer_ratio",
                                                      "max_tier",
                                                      "reuse_sparse",
                                                      "retention_seconds"};

ApiError NotAvailable(std::string_view path) {
  return Unsupported(path, "it is not available in this build");
}

ApiError Unknown(std::string_view path) {
  return InvalidRequest(
      "unknown_parameter", Excerpt(path), fmt::format("'{}' is not known.", Excerpt(path)));
}

// An object of which no member is offered yet; an empty one is accepted.
MaybeError RefuseGroup(JsonValue value,
                       std::string_view path,
                       std::span<const std::string_view> known) {
  if (MaybeError error = ExpectType(value, path, JsonType::kObject); error.has_value()) {
    return error;
  }
  MaybeError refused;
  for (auto member = value.begin(); member != value.end(); ++member) {
    const std::string name = member.name();
    const std::string member_path = fmt::format("{}.{}", path, name);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return Unknown(member_path);
    }
    if (!refused.has_value() && !member.value().Is(JsonType::kNull)) {
      refused = NotAvailable(member_path);
    }
  }
  return refused;
}

MaybeError ReadStats(JsonValue value) {
  constexpr std::array<std::string_view, 3> kLevels = {"none", "summary", "per_layer"};
  size_t index = 0;
  if (MaybeError error = ReadChoice(value, "spindle.stats", kLevels, &index); error.has_value()) {
    return error;
  }
  return index == 0 ? MaybeError() : NotAvailable("spindle.stats");
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
    return RefuseGroup(value, "spindle.sparse", kSparseNames);
  }
  if (name == "kv") {
    return RefuseGroup(value, "spindle.kv", kKvNames);
  }
  if (name == "stats") {
    return ReadStats(value);
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
      return Unknown("spindle." + name);
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
