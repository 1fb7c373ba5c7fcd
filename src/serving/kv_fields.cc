#include "serving/kv_fields.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace spindle::serving {
namespace {

constexpr std::array<std::string_view, 7> kKvNames = {"fast_tier_budget_bytes",
                                                      "fast_tier_budget_fraction",
                                                      "buffer_ratio",
                                                      "max_tier",
                                                      "reuse_sparse",
                                                      "retention_seconds",
                                                      "session"};
constexpr std::string_view kFastBytes = "spindle.kv.fast_tier_budget_bytes";
constexpr std::string_view kFastFraction = "spindle.kv.fast_tier_budget_fraction";
constexpr std::string_view kRetention = "spindle.kv.retention_seconds";
constexpr std::string_view kSession = "spindle.kv.session";
constexpr int64_t kMaxRetentionSeconds = 86400;
constexpr NumberRange kFractionRange{0, 1, true};
constexpr NumberRange kBufferRatioRange{0, 64};

// What a request says about its KV.
struct KvWishes {
  std::optional<int64_t> fast_bytes;
  std::optional<float> fast_fraction;
  std::optional<float> buffer_ratio;
  bool uses_disk = true;
  std::optional<int64_t> seconds;
  std::string session;
};

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
    return InvalidRequest(
        "unsupported_combination", std::string(path), fmt::format("'{}' {}.", path, reason));
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

MaybeError ReadMaxTier(JsonValue value, std::string_view path, KvWishes* wishes) {
  // `dram` is an older word for the host tier.
  constexpr std::array<std::string_view, 3> kTiers = {"host", "disk", "dram"};
  size_t index = 0;
  if (MaybeError error = ReadChoice(value, path, kTiers, &index); error.has_value()) {
    return error;
  }
  wishes->uses_disk = kTiers[index] == "disk";
  return std::nullopt;
}

MaybeError ReadReuseSparse(JsonValue value, std::string_view path) {
  bool reuses = false;
  if (MaybeError error = ReadBool(value, path, &reuses); error.has_value()) {
    return error;
  }
  return reuses ? NotAvailable(path) : MaybeError();
}

// REQUIRES: one of kKvNames.
MaybeError ReadMember(std::string_view name,
                      JsonValue value,
                      std::string_view path,
                      KvWishes* wishes) {
  if (name == "fast_tier_budget_bytes") {
    return ReadInteger(value, path, IntegerRange{.min = 1}, &wishes->fast_bytes.emplace());
  }
  if (name == "fast_tier_budget_fraction") {
    return ReadNumber(value, path, kFractionRange, &wishes->fast_fraction.emplace());
  }
  if (name == "buffer_ratio") {
    return ReadNumber(value, path, kBufferRatioRange, &wishes->buffer_ratio.emplace());
  }
  if (name == "max_tier") {
    return ReadMaxTier(value, path, wishes);
  }
  if (name == "reuse_sparse") {
    return ReadReuseSparse(value, path);
  }
  if (name == "retention_seconds") {
    return ReadInteger(
        value, path, IntegerRange{0, kMaxRetentionSeconds}, &wishes->seconds.emplace());
  }
  return ReadSessionName(value, &wishes->session);
}

// The sizes it may have in the fast tier.
MaybeError ApplyFastBudget(const KvWishes& wishes, const FieldContext& context) {
  if (wishes.fast_bytes.has_value() && wishes.fast_fraction.has_value()) {
    return InvalidRequest(
        "unsupported_combination",
        std::string(kFastFraction),
        fmt::format("Only one of '{}' and '{}' can be given.", kFastBytes, kFastFraction));
  }
  PreparedRequest& request = context.out->prepared;
  request.fast_bytes = static_cast<uint64_t>(wishes.fast_bytes.value_or(0));
  request.fast_fraction = wishes.fast_fraction.value_or(0.0F);
  request.buffer_ratio = wishes.buffer_ratio;
  request.uses_disk = wishes.uses_disk;
  return std::nullopt;
}

}  // namespace

ApiError NotAvailable(std::string_view path) {
  return Unsupported(path, "it is not available in this build");
}

ApiError UnknownMember(std::string_view path) {
  return InvalidRequest(
      "unknown_parameter", Excerpt(path), fmt::format("'{}' is not known.", Excerpt(path)));
}

MaybeError ReadKv(JsonValue value, const FieldContext& context) {
  if (MaybeError error = ExpectType(value, "spindle.kv", JsonType::kObject); error.has_value()) {
    return error;
  }
  KvWishes wishes;
  for (auto member = value.begin(); member != value.end(); ++member) {
    const std::string name = member.name();
    const std::string path = "spindle.kv." + name;
    if (std::find(kKvNames.begin(), kKvNames.end(), name) == kKvNames.end()) {
      return UnknownMember(path);
    }
    if (member.value().Is(JsonType::kNull)) {
      continue;
    }
    if (MaybeError error = ReadMember(name, member.value(), path, &wishes); error.has_value()) {
      return error;
    }
  }
  if (MaybeError error = ApplyFastBudget(wishes, context); error.has_value()) {
    return error;
  }
  if (wishes.session.empty() && wishes.seconds.value_or(0) == 0) {
    return std::nullopt;
  }
  if (wishes.seconds == 0) {
    return InvalidRequest(
        "invalid_value",
        std::string(kRetention),
        fmt::format(
            "With '{}', '{}' must be in [1, {}].", kSession, kRetention, kMaxRetentionSeconds));
  }
  PreparedRequest& request = context.out->prepared;
  const std::string_view path = wishes.session.empty() ? kRetention : kSession;
  if (!request.uses_disk) {
    return InvalidRequest("unsupported_combination",
                          std::string(path),
                          fmt::format("'{}' keeps KV on disk, which 'spindle.kv.max_tier' rules "
                                      "out.",
                                      path));
  }
  request.retention_seconds = static_cast<uint64_t>(wishes.seconds.value_or(kMaxRetentionSeconds));
  request.session = std::move(wishes.session);
  return CheckRetention(path, context);
}

}  // namespace spindle::serving
