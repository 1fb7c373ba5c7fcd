#include "serving/kv_fields.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/client_name.h"

namespace spindle::serving {
namespace {

constexpr std::string_view kFastBytes = "spindle.kv.fast_tier_budget_bytes";
constexpr std::string_view kFastFraction = "spindle.kv.fast_tier_budget_fraction";
constexpr std::string_view kBufferRatio = "spindle.kv.buffer_ratio";
constexpr std::string_view kMaxTier = "spindle.kv.max_tier";
constexpr std::string_view kReuseSparse = "spindle.kv.reuse_sparse";
constexpr std::string_view kRetention = "spindle.kv.retention_seconds";
constexpr std::string_view kSession = "spindle.kv.session";
constexpr std::array<std::string_view, 7> kMembers = {
    kFastBytes, kFastFraction, kBufferRatio, kMaxTier, kReuseSparse, kRetention, kSession};
constexpr int64_t kMaxRetentionSeconds = 86400;
constexpr IntegerRange kFastBytesRange{.min = 1};
constexpr IntegerRange kRetentionRange{0, kMaxRetentionSeconds};
constexpr NumberRange kFractionRange{0, 1, true};
constexpr NumberRange kBufferRatioRange{0, 64};

MaybeError ReadDouble(JsonValue value, std::string_view path, std::optional<double>* out) {
  if (MaybeError error = ExpectType(value, path, JsonType::kNumber); error.has_value()) {
    return error;
  }
  *out = value.AsDouble();
  return std::nullopt;
}

// REQUIRES: one of kMembers.
MaybeError ReadMember(std::string_view path, JsonValue value, KvWishes* wishes) {
  if (path == kFastBytes) {
    return ReadInteger(value, path, kFastBytesRange, &wishes->fast_tier_budget_bytes.emplace());
  }
  if (path == kFastFraction) {
    return ReadDouble(value, path, &wishes->fast_tier_budget_fraction);
  }
  if (path == kBufferRatio) {
    return ReadDouble(value, path, &wishes->buffer_ratio);
  }
  if (path == kMaxTier) {
    return ReadString(value, path, &wishes->max_tier.emplace());
  }
  if (path == kReuseSparse) {
    return ReadBool(value, path, &wishes->reuse_sparse);
  }
  if (path == kRetention) {
    return ReadInteger(value, path, kRetentionRange, &wishes->retention_seconds.emplace());
  }
  return ReadString(value, path, &wishes->session.emplace());
}

// The sizes it may have in the fast tier.
MaybeError ApplyFastBudget(const KvWishes& wishes, PreparedRequest* request) {
  if (wishes.fast_tier_budget_bytes.has_value()) {
    const int64_t bytes = *wishes.fast_tier_budget_bytes;
    if (MaybeError error = CheckInteger(bytes, kFastBytes, kFastBytesRange); error.has_value()) {
      return error;
    }
    request->fast_bytes = static_cast<uint64_t>(bytes);
  }
  if (wishes.fast_tier_budget_fraction.has_value()) {
    if (MaybeError error = NarrowNumber(*wishes.fast_tier_budget_fraction,
                                        kFastFraction,
                                        kFractionRange,
                                        &request->fast_fraction);
        error.has_value()) {
      return error;
    }
    if (wishes.fast_tier_budget_bytes.has_value()) {
      return InvalidRequest(
          "unsupported_combination",
          std::string(kFastFraction),
          fmt::format("Only one of '{}' and '{}' can be given.", kFastBytes, kFastFraction));
    }
  }
  if (wishes.buffer_ratio.has_value()) {
    return NarrowNumber(
        *wishes.buffer_ratio, kBufferRatio, kBufferRatioRange, &request->buffer_ratio.emplace());
  }
  return std::nullopt;
}

MaybeError ApplyTier(const KvWishes& wishes, PreparedRequest* request) {
  // `dram` is an older word for the host tier.
  constexpr std::array<std::string_view, 3> kTiers = {"host", "disk", "dram"};
  if (wishes.max_tier.has_value()) {
    size_t index = 0;
    if (MaybeError error = FindChoice(*wishes.max_tier, kMaxTier, kTiers, &index);
        error.has_value()) {
      return error;
    }
    request->uses_disk = kTiers[index] == "disk";
  }
  return wishes.reuse_sparse ? NotAvailable(kReuseSparse) : MaybeError();
}

// What KV that outlives its request needs of the caller, the server and the other fields.
MaybeError CheckRetention(std::string_view path,
                          const ModelFacts& model,
                          const Caller& caller,
                          size_t num_prompts,
                          const PreparedRequest& request) {
  const auto refuse = [path](std::string_view reason) {
    return InvalidRequest(
        "unsupported_combination", std::string(path), fmt::format("'{}' {}.", path, reason));
  };
  if (!request.uses_disk) {
    return refuse("keeps KV on disk, which 'spindle.kv.max_tier' rules out");
  }
  if (!caller.retention) {
    ApiError error = MakeError(
        403, "insufficient_permissions", fmt::format("This API key may not send '{}'.", path));
    error.param = std::string(path);
    return error;
  }
  if (!model.keeps_sessions) {
    return Unsupported(path, "this server has no disk tier (--kv-disk-path)");
  }
  if (!request.cache_prompt) {
    return refuse("needs the prefix cache: 'cache_prompt' must not be false");
  }
  const bool several = request.sampling.num_choices > 1 || request.best_of > 1 || num_prompts > 1;
  if (!request.session.empty() && several) {
    return refuse("is for one prompt and one choice");
  }
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

std::string_view FastBudgetParam(const PreparedRequest& request) {
  return request.fast_fraction > 0 ? kFastFraction : kFastBytes;
}

MaybeError ReadKv(JsonValue value, const FieldContext& context) {
  if (MaybeError error = ExpectType(value, "spindle.kv", JsonType::kObject); error.has_value()) {
    return error;
  }
  KvWishes wishes;
  for (auto member = value.begin(); member != value.end(); ++member) {
    const std::string path = "spindle.kv." + member.name();
    if (std::ranges::find(kMembers, path) == kMembers.end()) {
      return UnknownMember(path);
    }
    if (member.value().Is(JsonType::kNull)) {
      continue;
    }
    if (MaybeError error = ReadMember(path, member.value(), &wishes); error.has_value()) {
      return error;
    }
  }
  return ApplyKv(wishes,
                 context.model,
                 context.caller,
                 context.out->raw_prompts.size(),
                 &context.out->prepared);
}

MaybeError ApplyKv(const KvWishes& wishes,
                   const ModelFacts& model,
                   const Caller& caller,
                   size_t num_prompts,
                   PreparedRequest* request) {
  if (MaybeError error = ApplyFastBudget(wishes, request); error.has_value()) {
    return error;
  }
  if (MaybeError error = ApplyTier(wishes, request); error.has_value()) {
    return error;
  }
  const bool named = wishes.session.has_value();
  if (named && !IsClientName(*wishes.session)) {
    return BadClientName(kSession);
  }
  const int64_t seconds =
      wishes.retention_seconds.value_or(named ? kMaxRetentionSeconds : int64_t{0});
  if (MaybeError error = CheckInteger(seconds, kRetention, kRetentionRange); error.has_value()) {
    return error;
  }
  if (seconds == 0 && !named) {
    return std::nullopt;
  }
  if (seconds == 0) {
    return InvalidRequest(
        "invalid_value",
        std::string(kRetention),
        fmt::format(
            "With '{}', '{}' must be in [1, {}].", kSession, kRetention, kMaxRetentionSeconds));
  }
  request->retention_seconds = static_cast<uint64_t>(seconds);
  request->session = wishes.session.value_or("");
  return CheckRetention(named ? kSession : kRetention, model, caller, num_prompts, *request);
}

}  // namespace spindle::serving
