// Logits are a function of the sequence alone: the same bits for any chunking, any neighbours, any
// thread count, and no heap allocation on the way.
#include <cstring>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "integration/logits_support.h"
#include "support/allocation_counter.h"

namespace spindle::test {
namespace {

constexpr uint32_t kVocab = 256;

struct Variant {
  const char* model;
  kernels::ComputeMode mode;
  DType kv_type;
  const char* kernels;
};

void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.model << (variant.mode == kernels::ComputeMode::kExact ? " exact " : " default ")
       << variant.kernels;
}

std::vector<TokenId> RandomPrompt(size_t length, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> tokens(length);
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(random() % kVocab);
  }
  return tokens;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

class LogitsEquality : public testing::TestWithParam<Variant> {
 protected:
  static std::unique_ptr<ModelRig> MakeRig(uint32_t num_threads) {
    const Variant& variant = GetParam();
    if (kernels::FindKernelsByName(variant.kernels) == nullptr) {
      return nullptr;
    }
    RigOptions options;
    options.path = std::string(SPINDLE_TEST_GOLDEN_DIR "/models/") + variant.model;
    options.kernels = variant.kernels;
    options.model.mode = variant.mode;
    options.kv_type = variant.kv_type;
    options.num_threads = num_threads;
    auto rig = ModelRig::Create(options);
    EXPECT_TRUE(rig.ok()) << rig.status();
    return rig.ok() ? std::move(*rig) : nullptr;
  }
};

TEST_P(LogitsEquality, ChunksOfAnySizeGiveTheSameBits) {
  const auto rig = MakeRig(1);
  if (rig == nullptr) {
    GTEST_SKIP() << "this CPU has no " << GetParam().kernels << " kernels";
  }
  const std::vector<TokenId> prompt = RandomPrompt(420, 1);
  const std::vector<float> whole = rig->LogitsOf(prompt, 512);
  ASSERT_EQ(whole.size(), prompt.size() * kVocab);
  for (const uint32_t chunk : {256U, 64U, 37U, 1U}) {
    EXPECT_TRUE(SameBits(whole, rig->LogitsOf(prompt, chunk))) << "chunk " << chunk;
  }
}

TEST_P(LogitsEquality, NeighboursDoNotMatter) {
  const auto rig = MakeRig(1);
  if (rig == nullptr) {
    GTEST_SKIP() << "this CPU has no " << GetParam().kernels << " kernels";
  }
  const std::vector<std::vector<TokenId>> prompts = {
      RandomPrompt(200, 1), RandomPrompt(1, 2), RandomPrompt(65, 3), RandomPrompt(130, 4)};
  std::vector<std::vector<float>> together(prompts.size());
  ASSERT_TRUE(rig->Run(prompts,
                       64,
                       [&together](size_t prompt, uint32_t, std::span<const float> row) {
                         together[prompt].insert(together[prompt].end(), row.begin(), row.end());
                       })
                  .ok());
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_TRUE(SameBits(together[i], rig->LogitsOf(prompts[i], 512))) << "prompt " << i;
  }
}

TEST_P(LogitsEquality, TheNumberOfThreadsDoesNotMatter) {
  const auto one = MakeRig(1);
  if (one == nullptr) {
    GTEST_SKIP() << "this CPU has no " << GetParam().kernels << " kernels";
  }
  const std::vector<TokenId> prompt = RandomPrompt(300, 9);
  const std::vector<float> alone = one->LogitsOf(prompt, 100);
  ASSERT_EQ(alone.size(), prompt.size() * kVocab);
  for (const uint32_t threads : {2U, 4U}) {
    const auto many = MakeRig(threads);
    ASSERT_NE(many, nullptr);
    EXPECT_TRUE(SameBits(alone, many->LogitsOf(prompt, 100))) << threads << " threads";
  }
}

TEST_P(LogitsEquality, UnwantedRowsDoNotChangeWantedOnes) {
  const auto rig = MakeRig(1);
  if (rig == nullptr) {
    GTEST_SKIP() << "this CPU has no " << GetParam().kernels << " kernels";
  }
  const std::vector<TokenId> prompt = RandomPrompt(90, 5);
  const std::vector<float> all = rig->LogitsOf(prompt, 512);
  ASSERT_EQ(all.size(), prompt.size() * kVocab);
  const std::vector<uint32_t> wanted = {3, 64, 89};
  const auto some = rig->LogitsOfRows(prompt, wanted);
  ASSERT_EQ(some.size(), wanted.size() * kVocab);
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_TRUE(SameBits(std::span(all).subspan(wanted[i] * kVocab, kVocab),
                         std::span(some).subspan(i * kVocab, kVocab)));
  }
  EXPECT_TRUE(rig->LogitsOfRows(prompt, {}).empty());
}

using enum kernels::ComputeMode;

INSTANTIATE_TEST_SUITE_P(
    Models,
    LogitsEquality,
    testing::Values(Variant{"llama.gguf", kDefault, DType::kBF16, "auto"},
                    Variant{"llama", kExact, DType::kF32, "auto"},
                    Variant{"llama-wide.gguf", kDefault, DType::kBF16, "auto"},
                    Variant{"llama-rope-yarn.gguf", kDefault, DType::kBF16, "avx512"},
                    Variant{"mistral", kDefault, DType::kBF16, "auto"},
                    Variant{"mistral.gguf", kDefault, DType::kBF16, "avx2"},
                    Variant{"qwen2", kDefault, DType::kBF16, "baseline"},
                    Variant{"qwen2.gguf", kExact, DType::kF32, "avx2"},
                    Variant{"qwen3", kDefault, DType::kF32, "auto"}));

TEST(ForwardPass, AllocatesNothing) {
  RigOptions options;
  options.path = SPINDLE_TEST_GOLDEN_DIR "/models/llama.gguf";
  options.num_threads = 2;
  auto rig = ModelRig::Create(options);
  ASSERT_TRUE(rig.ok()) << rig.status();
  const std::vector<TokenId> prompt = RandomPrompt(200, 3);
  ASSERT_FALSE((*rig)->LogitsOf(prompt, 200).empty());  // the runtime grows to the largest step
  const uint64_t used = (*rig)->AllocationsOfAStep(prompt);
  EXPECT_EQ(used, 0U);
}

TEST(ForwardPass, RefusesStepsOutsideItsLimits) {
  RigOptions options;
  options.path = SPINDLE_TEST_GOLDEN_DIR "/models/llama.gguf";
  options.max_rows = 8;
  options.max_logit_rows = 8;
  auto rig = ModelRig::Create(options);
  ASSERT_TRUE(rig.ok()) << rig.status();
  const auto status = [&rig](const std::vector<TokenId>& tokens) {
    return (*rig)->Run({&tokens, 1}, 16, [](size_t, uint32_t, std::span<const float>) {}).code();
  };
  EXPECT_EQ(status(std::vector<TokenId>(9, 0)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status({kVocab}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status({-1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status({kVocab - 1}), absl::StatusCode::kOk);
}

}  // namespace
}  // namespace spindle::test
