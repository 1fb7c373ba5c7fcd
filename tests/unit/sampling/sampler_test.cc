#include "sampling/sampler.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "unit/sampling/sampler_support.h"

namespace spindle::sampling {
namespace {

constexpr uint32_t kSeed = 20260131;

float Uniform(std::mt19937& random, float low, float high) {
  return std::uniform_real_distribution<float>(low, high)(random);
}

uint32_t Below(std::mt19937& random, uint32_t bound) {
  return static_cast<uint32_t>(random() % bound);
}

bool Chance(std::mt19937& random, uint32_t one_in) {
  return random() % one_in == 0;
}

// Peaked, flat and tied rows.
std::vector<float> RandomLogits(std::mt19937& random, size_t size) {
  std::vector<float> logits(size);
  const auto shape = random() % 3;
  for (float& x : logits) {
    x = shape == 0   ? Uniform(random, -20.0F, 10.0F)
        : shape == 1 ? Uniform(random, -0.5F, 0.5F)
                     : std::round(Uniform(random, -4.0F, 4.0F));
  }
  return logits;
}

SamplingParams RandomParams(std::mt19937& random, uint32_t vocab) {
  SamplingParams params;
  params.seed = random();
  params.max_tokens = 1000;
  params.temperature = Chance(random, 4)   ? 0.0F
                       : Chance(random, 4) ? 1.0F
                                           : Uniform(random, 0.05F, 2.0F);
  params.top_p = Chance(random, 3) ? 1.0F : Chance(random, 8) ? 0.0F : Uniform(random, 0.0F, 1.0F);
  params.top_k = Chance(random, 2) ? 0 : 1 + static_cast<int32_t>(random() % (2 * vocab));
  params.min_p = Chance(random, 2) ? 0.0F : Uniform(random, 0.0F, 0.5F);
  params.presence_penalty = Chance(random, 2) ? 0.0F : Uniform(random, -2.0F, 2.0F);
  params.frequency_penalty = Chance(random, 2) ? 0.0F : Uniform(random, -2.0F, 2.0F);
  params.repetition_penalty = Chance(random, 2) ? 1.0F : Uniform(random, 0.3F, 3.0F);
  params.min_tokens = Chance(random, 3) ? 50 : 0;
  params.ignore_eos = Chance(random, 4);
  if (Chance(random, 3)) {
    params.stop_token_ids = {7, 11};
  }
  for (uint32_t token = 0; token < vocab; ++token) {
    if (Chance(random, 20)) {
      params.logit_bias.emplace_back(token,
                                     Chance(random, 3) ? -100.0F : Uniform(random, -9.0F, 9.0F));
    }
  }
  if (Chance(random, 4)) {
    for (uint32_t token = 3; token < vocab; token += 1 + Below(random, 4)) {
      params.allowed_token_ids.push_back(static_cast<int32_t>(token));
    }
  }
  return params;
}

History RandomHistory(std::mt19937& random, uint32_t vocab) {
  History history;
  for (uint32_t i = Below(random, 60); i > 0; --i) {
    history.prompt.push_back(static_cast<TokenId>(random() % vocab));
  }
  for (uint32_t i = Below(random, 60); i > 0; --i) {
    history.generated.push_back(static_cast<TokenId>(random() % vocab));
  }
  return history;
}

SamplerState StateOf(const SamplingParams& params,
                     const History& history,
                     uint32_t choice,
                     uint32_t vocab) {
  SamplerState state(params, EndTokens(), choice, history.prompt, vocab);
  for (const TokenId token : history.generated) {
    state.Accept(token);
  }
  return state;
}

TEST(Sampler, AgreesWithFullSortsOnRandomCases) {
  std::mt19937 random(kSeed);
  int num_cases = 0;
  for (const uint32_t vocab : {40U, 97U, 1000U, 2003U}) {
    std::vector<Sampler> samplers;
    for (const kernels::KernelTable* table : LogitTables()) {
      samplers.emplace_back(*table, vocab, 20);
    }
    for (int i = 0; i < 320; ++i) {
      const SamplingParams params = RandomParams(random, vocab);
      const History history = RandomHistory(random, vocab);
      const std::vector<float> logits = RandomLogits(random, vocab);
      const uint32_t choice = Below(random, 4);
      const uint64_t position = history.prompt.size() + history.generated.size();
      const std::vector<float> edited = NaiveEdit(params, history, logits);
      if (std::isinf(*std::ranges::max_element(edited))) {
        continue;  // everything is banned: see RefusesARowWithoutAnAllowedToken
      }
      ++num_cases;
      const TokenId expected = NaiveSample(params, history, choice, position, logits);
      for (size_t table = 0; table < samplers.size(); ++table) {
        SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " vocab " << vocab << " case " << i
                                          << " kernels " << LogitTables()[table]->name);
        const SamplerState state = StateOf(params, history, choice, vocab);
        const auto scored = samplers[table].Sample(state, position, logits);
        ASSERT_TRUE(scored.ok()) << scored.status();
        ASSERT_EQ(scored->token, expected);
      }
    }
  }
  EXPECT_GE(num_cases, 1000);
}

TEST(Sampler, LogprobsAreLogSoftmaxOfRawOrProcessedLogits) {
  std::mt19937 random(kSeed + 1);
  constexpr uint32_t kVocab = 300;
  for (const kernels::KernelTable* table : LogitTables()) {
    Sampler sampler(*table, kVocab, 20);
    for (int i = 0; i < 100; ++i) {
      SamplingParams params = RandomParams(random, kVocab);
      params.allowed_token_ids.clear();
      params.logprobs = Below(random, 21);
      params.logprobs_processed = Chance(random, 2);
      const History history = RandomHistory(random, kVocab);
      const std::vector<float> logits = RandomLogits(random, kVocab);
      const auto scored =
          sampler.Sample(StateOf(params, history, 0, kVocab), 3, std::span<const float>(logits));
      ASSERT_TRUE(scored.ok());
      const std::vector<float> row =
          params.logprobs_processed ? NaiveProcessed(params, history, logits) : logits;
      double sum = 0.0;
      for (const float x : row) {
        sum += std::exp(static_cast<double>(x));
      }
      const auto expected = [&](TokenId token) {
        return static_cast<double>(row[static_cast<size_t>(token)]) - std::log(sum);
      };
      // Kernels sum fp32 exponentials: each within a few units of 2^-24 of the exact one; then the
      // result is rounded to fp32 at a magnitude of at most 64.
      constexpr double kTolerance = 16 * 0x1.0p-24 + 64 * 0x1.0p-24;
      EXPECT_NEAR(static_cast<double>(scored->logprob), expected(scored->token), kTolerance);
      const auto sorted = testing::SortedTokens(row.data(), kVocab);
      ASSERT_EQ(scored->top.size(), *params.logprobs);
      for (size_t k = 0; k < scored->top.size(); ++k) {
        EXPECT_EQ(scored->top[k].token, sorted[k].id);
        if (!std::isinf(sorted[k].logit)) {
          EXPECT_NEAR(
              static_cast<double>(scored->top[k].logprob), expected(sorted[k].id), kTolerance);
        }
      }
    }
  }
}

TEST(Sampler, ScoresAGivenTokenUnderRawLogits) {
  Sampler sampler(testing::NaiveLogitKernels(), 4, 2);
  const std::vector<float> logits = {
      std::log(1.0F), std::log(2.0F), std::log(4.0F), std::log(1.0F)};
  const Scored scored = sampler.Score(logits, 3, 2);
  EXPECT_EQ(scored.token, 3);
  EXPECT_NEAR(scored.logprob, std::log(1.0 / 8.0), 1e-6);
  ASSERT_EQ(scored.top.size(), 2U);
  EXPECT_EQ(scored.top[0].token, 2);
  EXPECT_EQ(scored.top[1].token, 1);
}

TEST(Sampler, GreedyTiesGoToTheLowestId) {
  SamplingParams params;
  params.temperature = 0.0F;
  Sampler sampler(testing::NaiveLogitKernels(), 4, 0);
  const std::vector<float> logits = {1.0F, 3.0F, 3.0F, 3.0F};
  EXPECT_EQ(sampler.Sample(StateOf(params, {}, 0, 4), 0, logits)->token, 1);
}

TEST(Sampler, RefusesARowWithoutAnAllowedToken) {
  constexpr uint32_t kVocab = 40;  // holds all end tokens of StateOf
  SamplingParams params;
  params.allowed_token_ids = {2};
  params.min_tokens = 1;  // 2 is an end token
  Sampler sampler(testing::NaiveLogitKernels(), kVocab, 0);
  const std::vector<float> logits(kVocab, 1.0F);
  const auto scored = sampler.Sample(StateOf(params, {}, 0, kVocab), 0, logits);
  EXPECT_EQ(scored.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Sampler, RefusesARowOfNaN) {
  SamplingParams params;
  for (const kernels::KernelTable* table : LogitTables()) {
    Sampler sampler(*table, 40, 0);
    const std::vector<float> logits(40, std::nanf(""));
    const auto scored = sampler.Sample(StateOf(params, {}, 0, 40), 0, logits);
    EXPECT_EQ(scored.status().code(), absl::StatusCode::kInternal) << table->name;
  }
}

TEST(Sampler, TinyTemperaturesAreGreedyWithoutOverflow) {
  SamplingParams params;
  params.temperature = 1e-30F;
  Sampler sampler(testing::NaiveLogitKernels(), 4, 0);
  const std::vector<float> logits = {1.0F, 3.0F, 30.0F, 3.0F};
  EXPECT_EQ(sampler.Sample(StateOf(params, {}, 0, 4), 0, logits)->token, 2);
}

TEST(SamplerState, KnowsStopIdsAndIgnoredEndTokens) {
  SamplingParams params;
  params.stop_token_ids = {9};
  EXPECT_TRUE(StateOf(params, {}, 0, 40).IsStop(2));
  EXPECT_TRUE(StateOf(params, {}, 0, 40).IsStop(9));
  EXPECT_FALSE(StateOf(params, {}, 0, 40).IsStop(3));
  params.ignore_eos = true;
  EXPECT_FALSE(StateOf(params, {}, 0, 40).IsStop(2));
  EXPECT_TRUE(StateOf(params, {}, 0, 40).IsStop(9));
}

}  // namespace
}  // namespace spindle::sampling
