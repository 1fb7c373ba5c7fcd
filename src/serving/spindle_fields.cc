// The `spindle` object of section 9.1. Unknown names are always refused, known ones that this build
// does not offer too: a mistyped or missing budget must not run dense in silence.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "serving/field_handlers.h"
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
constexpr std::array<std::string_view, 7> kKvNames = {"fast_tier_budget_bytes",
                                                      "fast_tier_budget_fraction",
                                                      "buffer_ratio",
                                                      "max_tier",
                                                      "reuse_sparse",
                                                      "retention_seconds",
                                                      "session"};
constexpr std::string_view kRetention = "spindle.kv.retention_seconds";
constexpr std::string_view kSession = "spindle.kv.session";
constexpr int64_t kMaxRetentionSeconds = 86400;

ApiError NotAvailable(std::string_view path) {
  return Unsupported(path, "it is not available in this build");
}

ApiError Unknown(std::string_view path) {
  return InvalidRequest(
      "unknown_parameter", Excerpt(path), fmt::format("'{}' is not known.", Excerpt(path)));
}

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
      return Unknown(path);
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

MaybeError ReadSessionName(JsonValue value, std::string* name) {
  constexpr size_t kMaxLength = 128;
  if (MaybeError error = ReadString(value, kSession, name); error.has_value()) {
    return error;
  }
  const bool well_formed = std::all_of(name->begin(), name->end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           std::string_view("._:-").find(c) != std::string_view::npos;
  });
  if (name->empty() || name->size() > kMaxLength || !well_formed) {
    return InvalidRequest("invalid_value",
                          std::string(kSession),
                          fmt::format("'{}' must be 1 to {} characters of A-Z, a-z, 0-9, '.', '_', "
                                      "':' and '-'.",
                                      kSession,
                                      kMaxLength));
  }
  return std::nullopt;
}

// What KV that outlives its request needs of the caller, the server and the other fields.
MaybeError CheckRetention(std::string_view path, const FieldContext& context) {
  const PreparedRequest& request = context.out->prepared;
  const auto refuse = [path](std::string_view reason) {
    return InvalidRequest("unsupported_combination",
                          std::string(path),
                          fmt::format("'{}' {}.", path, reason));
  };
  if (!context.caller.retention) {
    ApiError error;
    error.http_status = 403;
    error.type = "permission_error";
    error.code = "insufficient_permissions";
    error.param = std::string(path);
    error.message = fmt::format("This API key may not send '{}'.", path);
    return error;
  }
  if (!context.model.keeps_sessions) {
    return Unsupported(path, "this server has no disk tier (--kv-disk-path)");
  }
  if (!request.cache_prompt) {
    return refuse("needs the prefix cache: 'cache_prompt' must not be false");
  }
  const bool several = request.sampling.num_choices > 1 || request.best_of > 1 ||
                       context.out->raw_prompts.size() > 1;
  if (!request.session.empty() && several) {
    return refuse("is for one prompt and one choice");
  }
  return std::nullopt;
}

// Of `kv` only what keeps it beyond the request is offered.
MaybeError ReadKv(JsonValue value, const FieldContext& context) {
  if (MaybeError error = ExpectType(value, "spindle.kv", JsonType::kObject); error.has_value()) {
    return error;
  }
  MaybeError refused;
  std::optional<int64_t> seconds;
  std::string session;
  for (auto member = value.begin(); member != value.end(); ++member) {
    const std::string name = member.name();
    const std::string path = "spindle.kv." + name;
    MaybeError error;
    if (std::find(kKvNames.begin(), kKvNames.end(), name) == kKvNames.end()) {
      error = Unknown(path);
    } else if (member.value().Is(JsonType::kNull)) {
      continue;
    } else if (path == kRetention) {
      error = ReadInteger(
          member.value(), path, IntegerRange{0, kMaxRetentionSeconds}, &seconds.emplace());
    } else if (path == kSession) {
      error = ReadSessionName(member.value(), &session);
    } else if (!refused.has_value()) {
      refused = NotAvailable(path);
    }
    if (error.has_value()) {
      return error;
    }
  }
  if (refused.has_value() || (session.empty() && seconds.value_or(0) == 0)) {
    return refused;
  }
  if (seconds == 0) {
    return InvalidRequest("invalid_value",
                          std::string(kRetention),
                          fmt::format("With '{}', '{}' must be in [1, {}].",
                                      kSession,
                                      kRetention,
                                      kMaxRetentionSeconds));
  }
  PreparedRequest& request = context.out->prepared;
  request.retention_seconds = static_cast<uint64_t>(seconds.value_or(kMaxRetentionSeconds));
  request.session = std::move(session);
  return CheckRetention(request.session.empty() ? kRetention : kSession, context);
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
