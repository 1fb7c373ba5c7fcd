#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/status_macros.h"
#include "sampling/philox.h"

namespace spindle::sampling {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();
constexpr float kBanBias = -100.0F;  // the API's value for "never"
// Below this the probability of every token that is not the arg-max (or within 1e-3 of it) rounds
// to zero in double precision, and 1 / temperature would overflow: greedy.
constexpr float kGreedyTemperature = 1e-5F;
// First size of the sorted prefix. Model distributions hold > 0.9 of their mass in far fewer
// tokens; growth by 8 keeps the number of passes over the row ≤ 5 for any vocabulary.
constexpr uint32_t kFirstPrefix = 64;
constexpr uint32_t kPrefixGrowth = 8;

uint32_t Size(std::span<const float> row) {
  return static_cast<uint32_t>(row.size());
}

}  // namespace

Sampler::Sampler(const kernels::KernelTable& kernels,
                 uint32_t vocab_size,
                 uint32_t max_alternatives)
    : kernels_(&kernels),
      edited_(vocab_size),
      scaled_(vocab_size),
      candidates_(vocab_size),
      scratch_(vocab_size),
      top_(std::min(max_alternatives, vocab_size)) {}

absl::StatusOr<Scored> Sampler::Sample(const SamplerState& state,
                                       uint64_t position,
                                       std::span<const float> logits) {
  SPINDLE_CHECK(logits.size() == edited_.size());
  const SamplingParams& params = state.params();
  std::span<const float> row = Edit(state, logits);
  const kernels::LogitSummary summary = kernels_->summarize(row.data(), Size(row));
  if (summary.argmax < 0) {
    return absl::InternalError("the model produced no finite logit");
  }
  if (summary.max == kBanned) {
    return absl::InvalidArgumentError(
        "logit_bias, allowed_token_ids and min_tokens together leave no token to sample");
  }
  TokenId token = summary.argmax;
  float max = summary.max;
  if (params.temperature >= kGreedyTemperature) {
    if (params.temperature != 1.0F) {
      row = Scale(row, max, params.temperature);
      max = 0.0F;
    }
    token = Draw(params, UniformAt(params.seed, state.choice(), position), row, max);
  }
  if (!params.logprobs.has_value()) {
    return Scored{token, 0.0F, {}};
  }
  return Score(params.logprobs_processed ? row : logits, token, *params.logprobs);
}

Scored Sampler::Score(std::span<const float> logits, TokenId token, uint32_t num_alternatives) {
  const kernels::LogitSummary summary = kernels_->summarize(logits.data(), Size(logits));
  const double log_sum = static_cast<double>(summary.max) + std::log(summary.sum_exp);
  const auto logprob = [log_sum](float logit) {
    return static_cast<float>(static_cast<double>(logit) - log_sum);
  };
  const size_t wanted = std::min<size_t>(num_alternatives, top_.size());
  size_t num_top = 0;
  if (wanted > 0) {
    for (const kernels::ScoredToken& each : Largest(logits, static_cast<uint32_t>(wanted))) {
      top_[num_top++] = {each.id, logprob(each.logit)};
    }
  }
  return Scored{token,
                logprob(logits[static_cast<size_t>(token)]),
                std::span<const ScoredLogprob>(top_).first(num_top)};
}

std::span<const float> Sampler::Edit(const SamplerState& state, std::span<const float> logits) {
  if (!state.EditsLogits()) {
    return logits;
  }
  ApplyBans(state, logits);
  ApplyPenalties(state);
  return edited_;
}

void Sampler::ApplyBans(const SamplerState& state, std::span<const float> logits) {
  const SamplingParams& params = state.params();
  if (params.allowed_token_ids.empty()) {
    std::ranges::copy(logits, edited_.begin());
  } else {
    std::ranges::fill(edited_, kBanned);
    for (const TokenId token : params.allowed_token_ids) {
      const auto index = static_cast<size_t>(token);
      edited_[index] = logits[index];
    }
  }
  for (const auto& [token, bias] : params.logit_bias) {
    const auto index = static_cast<size_t>(token);
    edited_[index] = bias == kBanBias ? kBanned : edited_[index] + bias;
  }
  if (state.StopsBanned()) {
    for (const TokenId token : state.end_tokens()) {
      edited_[static_cast<size_t>(token)] = kBanned;
    }
    for (const TokenId token : params.stop_token_ids) {
      edited_[static_cast<size_t>(token)] = kBanned;
    }
  }
}

void Sampler::ApplyPenalties(const SamplerState& state) {
  const SamplingParams& params = state.params();
  for (const TokenCounts::Entry& entry : state.counts()) {
    float& logit = edited_[static_cast<size_t>(entry.token)];
    logit = logit > 0.0F ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (entry.generated > 0) {
      logit -= params.frequency_penalty * static_cast<float>(entry.generated);
      logit -= params.presence_penalty;
    }
  }
}

std::span<const float> Sampler::Scale(std::span<const float> row, float max, float temperature) {
  const float inverse = 1.0F / temperature;
  for (size_t i = 0; i < row.size(); ++i) {
    scaled_[i] = (row[i] - max) * inverse;
  }
  return scaled_;
}

TokenId Sampler::Draw(const SamplingParams& params,
                      double uniform,
                      std::span<const float> row,
                      float max) {
  const uint32_t vocab = Size(row);
  const bool has_top_k = params.top_k > 0 && static_cast<uint32_t>(params.top_k) < vocab;
  const uint32_t limit = has_top_k ? static_cast<uint32_t>(params.top_k) : vocab;
  const bool truncates = params.top_p < 1.0F || params.min_p > 0.0F;
  const auto weight = [max](const kernels::ScoredToken& token) {
    return std::exp(static_cast<double>(token.logit) - static_cast<double>(max));
  };
  // Mass of everything that top-p and the draw refer to: the top-k tokens, or the whole row.
  double total = 0.0;
  if (has_top_k) {
    for (const kernels::ScoredToken& token : Largest(row, limit)) {
      total += weight(token);
    }
  } else {
    total = kernels_->summarize(row.data(), vocab).sum_exp;
  }
  for (uint32_t size = has_top_k ? limit : std::min(kFirstPrefix, limit);;
       size = std::min(size * kPrefixGrowth, limit)) {
    const std::span<const kernels::ScoredToken> prefix = Largest(row, size);
    const bool complete = size == limit || prefix.size() < size;
    // The kept tokens are a prefix of the sorted row: walk it to its end, or without truncation to
    // the drawn token.
    double mass = 0.0;
    size_t kept = 0;
    bool ended = false;
    while (!ended && kept < prefix.size()) {
      const double w = weight(prefix[kept]);
      if (kept > 0 && (w < static_cast<double>(params.min_p) || w == 0.0)) {
        ended = true;
        break;
      }
      mass += w;
      ++kept;
      ended = truncates ? params.top_p < 1.0F && mass >= static_cast<double>(params.top_p) * total
                        : mass > uniform * total;
    }
    if (!ended && !complete) {
      continue;
    }
    if (!truncates) {
      return prefix[kept - 1].id;
    }
    double target = uniform * mass;
    for (size_t i = 0; i + 1 < kept; ++i) {
      target -= weight(prefix[i]);
      if (target < 0.0) {
        return prefix[i].id;
      }
    }
    return prefix[kept - 1].id;
  }
}

std::span<const kernels::ScoredToken> Sampler::Largest(std::span<const float> row, uint32_t count) {
  const uint32_t found =
      kernels_->top_k(row.data(), Size(row), count, candidates_.data(), scratch_.data());
  return std::span<const kernels::ScoredToken>(candidates_).first(found);
}

}  // namespace spindle::sampling
