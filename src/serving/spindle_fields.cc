// The `spindle` object. Unknown names are always refused, known ones that this build does not offer
// too: a mistyped or missing budget must not run dense in silence.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "serving/field_handlers.h"
#include "serving/kv_fields.h"
#include "serving/sparse_fields.h"

namespace spindle::serving {
namespace {

MaybeError ReadStats(JsonValue value, const FieldContext& context) {
  constexpr std::array<std::string_view, 3> kLevels = {"none", "summary", "per_layer"};
  size_t index = 0;
  if (MaybeError error = ReadChoice(value, "spindle.stats", kLevels, &index); error.has_value()) {
    return error;
  }
  context.out->prepared.stats = kLevels[index] != "none";
  context.out->prepared.layer_stats = kLevels[index] == "per_layer";
  return std::nullopt;
}

MaybeError ReadAuditEvery(JsonValue value, const FieldContext& context) {
  int64_t steps = 0;
  if (MaybeError error = ReadInteger(value, kAuditEvery, IntegerRange{0, kMaxAuditEvery}, &steps);
      error.has_value()) {
    return error;
  }
  context.out->prepared.audit_every = static_cast<uint32_t>(steps);
  return CheckAudit(context.options, context.out->prepared.audit_every);
}

MaybeError ReadMember(std::string_view name, JsonValue value, const FieldContext& context) {
  if (name == "sparse") {
    return ReadSparse(value, context);
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
  return ReadAuditEvery(value, context);
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
