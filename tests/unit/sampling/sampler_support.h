// A sampler by full sort, to compare the product's with, and the kernel tables to run it on.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "kernels/registry.h"
#include "sampling/philox.h"
#include "sampling/sampler.h"
#include "support/logit_kernels.h"

namespace spindle::sampling {

inline const std::vector<TokenId>& EndTokens() {
  static const std::vector<TokenId> tokens = {2, 5};
  return tokens;
}

// Every kernel table that this machine can run, and the naive one of the tests.
inline std::vector<const kernels::KernelTable*> LogitTables() {
  using kernels::Isa;
  std::vector<const kernels::KernelTable*> tables = {&testing::NaiveLogitKernels()};
  for (const Isa isa : {Isa::kReference, Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (const kernels::KernelTable* table = kernels::FindKernels(isa); table != nullptr) {
      tables.push_back(table);
    }
  }
  return tables;
}

struct History {
  std::vector<TokenId> prompt;
  std::vector<TokenId> generated;
};

// Bias, bans and penalties, token by token.
inline std::vector<float> NaiveEdit(const SamplingParams& params,
                                    const History& history,
                                    std::span<const float> logits) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  std::set<TokenId> stops(params.stop_token_ids.begin(), params.stop_token_ids.end());
  if (!params.ignore_eos) {
    stops.insert(EndTokens().begin(), EndTokens().end());
  }
  std::vector<float> edited(logits.begin(), logits.end());
  for (size_t i = 0; i < edited.size(); ++i) {
    const auto token = static_cast<TokenId>(i);
    float& x = edited[i];
    if (!params.allowed_token_ids.empty() &&
        !std::ranges::binary_search(params.allowed_token_ids, token)) {
      x = kNever;
    }
    for (const auto& [id, bias] : params.logit_bias) {
      if (id == token) {
        x = bias == -100.0F ? kNever : x + bias;
      }
    }
    if (history.generated.size() < params.min_tokens && stops.contains(token)) {
      x = kNever;
    }
    const auto in_prompt = std::ranges::count(history.prompt, token);
    const auto generated = std::ranges::count(history.generated, token);
    if (in_prompt + generated > 0) {
      x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
    }
    if (generated > 0) {
      x -= params.frequency_penalty * static_cast<float>(generated);
      x -= params.presence_penalty;
    }
  }
  return edited;
}

// Scaled by temperature.
inline std::vector<float> NaiveProcessed(const SamplingParams& params,
                                         const History& history,
                                         std::span<const float> logits) {
  std::vector<float> row = NaiveEdit(params, history, logits);
  if (params.temperature > 0.0F && params.temperature != 1.0F) {
    const float max = *std::ranges::max_element(row);
    for (float& x : row) {
      x = (x - max) * (1.0F / params.temperature);
    }
  }
  return row;
}

struct Weighted {
  TokenId token;
  double weight;
};

// The tokens that may be drawn, with their weights, most likely first.
inline std::vector<Weighted> NaiveKept(const SamplingParams& params,
                                       const History& history,
                                       std::span<const float> logits) {
  const std::vector<float> row = NaiveProcessed(params, history, logits);
  std::vector<kernels::ScoredToken> sorted =
      testing::SortedTokens(row.data(), static_cast<uint32_t>(row.size()));
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < sorted.size()) {
    sorted.resize(static_cast<size_t>(params.top_k));
  }
  std::vector<Weighted> kept;
  double total = 0.0;
  for (const kernels::ScoredToken& token : sorted) {
    const double weight =
        std::exp(static_cast<double>(token.logit) - static_cast<double>(sorted.front().logit));
    kept.push_back({token.id, weight});
    total += weight;
  }
  if (params.top_p < 1.0F) {
    double mass = 0.0;
    size_t count = 0;
    while (count < kept.size()) {
      mass += kept[count++].weight;
      if (mass >= static_cast<double>(params.top_p) * total) {
        break;
      }
    }
    kept.resize(count);
  }
  std::erase_if(kept, [&](const Weighted& each) {
    return each.weight == 0.0 ||
           (each.token != kept.front().token && each.weight < static_cast<double>(params.min_p));
  });
  return kept;
}

inline TokenId NaiveSample(const SamplingParams& params,
                           const History& history,
                           uint32_t choice,
                           uint64_t position,
                           std::span<const float> logits) {
  if (params.temperature == 0.0F) {
    const std::vector<float> row = NaiveEdit(params, history, logits);
    return static_cast<TokenId>(std::ranges::max_element(row) - row.begin());
  }
  const std::vector<Weighted> kept = NaiveKept(params, history, logits);
  double mass = 0.0;
  for (const Weighted& each : kept) {
    mass += each.weight;
  }
  double target = UniformAt(params.seed, choice, position) * mass;
  for (const Weighted& each : kept) {
    target -= each.weight;
    if (target < 0.0) {
      return each.token;
    }
  }
  return kept.back().token;
}

}  // namespace spindle::sampling
