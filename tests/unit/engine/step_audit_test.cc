// Audited rows: what is compared, which rows are taken, and that nothing else changes.
#include "engine/step_audit.h"

#include <cmath>

#include <gtest/gtest.h>

#include "sparse/algorithm_registry.h"
#include "support/engine_world.h"

namespace spindle::engine {
namespace {

using testing::EngineWorld;
using testing::ExpectedTokens;
using testing::kFakeEndToken;
using testing::MakePrompt;
using testing::MakeRequest;

TEST(StepAuditTest, ComparesDistributions) {
  const std::vector<float> dense = {0.0F, std::log(3.0F), std::log(4.0F)};  // 1/8, 3/8, 4/8
  const std::vector<float> sparse = {5.0F, 5.0F, 5.0F + std::log(2.0F)};    // 1/4, 1/4, 2/4
  const Divergence divergence = Compare(dense, sparse);
  EXPECT_NEAR(divergence.kl, 0.125 * std::log(0.5) + 0.375 * std::log(1.5), 1e-6);
  EXPECT_NEAR(divergence.max_logit_diff, 5.0 + std::log(2.0) - std::log(4.0) + std::log(2.0), 1e-6);
  EXPECT_TRUE(divergence.same_top);
  EXPECT_FALSE(Compare(dense, std::vector<float>{1.0F, 9.0F, 2.0F}).same_top);
  const Divergence none = Compare(dense, dense);
  EXPECT_EQ(none.kl, 0);
  EXPECT_EQ(none.max_logit_diff, 0);
  EXPECT_TRUE(none.same_top);
}

TEST(StepAuditTest, TokensThatTheStandardRulesOutAddNothing) {
  const float ruled_out = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(Compare(std::vector<float>{1.0F, ruled_out}, std::vector<float>{1.0F, ruled_out}).kl,
            0);
}

EngineRequest SparseRequestOf(uint32_t max_tokens, uint32_t audit_every) {
  EngineRequest request = MakeRequest(MakePrompt(150, 1), max_tokens);
  request.sampling.ignore_eos = true;
  request.sampling.logit_bias = {{kFakeEndToken, -100.0F}};
  request.audit_every = audit_every;
  SparseDecode decode;
  decode.algorithm = "streaming";
  decode.policy = std::make_shared<const sparse::SparsePolicy>(
      sparse::FindAlgorithm("streaming"), sparse::SparseSettings{.min_context = 0});
  request.decode = decode;
  return request;
}

TEST(StepAuditTest, EveryKthRowOfGeneratedTokensIsComputedDenselyToo) {
  EngineWorld world({});
  uint32_t num_dense = 0;
  world.runner.before_forward = [&num_dense](const model::StepInput& input) {
    for (const sparse::SequenceRows& rows : input.sequences) {
      if (rows.policy == nullptr) {
        EXPECT_EQ(rows.num_rows, 1U);
        EXPECT_EQ(rows.kept, nullptr);
        EXPECT_EQ(rows.use, nullptr);
        ++num_dense;
      }
    }
  };
  const EngineRequest audited = SparseRequestOf(20, 3);
  const EngineRequest plain = SparseRequestOf(11, 0);
  auto client = world.Submit(audited);
  auto other = world.Submit(plain);
  world.RunUntilIdle(client);
  world.RunUntilIdle(other);
  // 19 rows of generated tokens: the 3rd, 6th … 18th.
  EXPECT_EQ(num_dense, 6U);
  const RequestStats& stats = client->received.done->stats;
  EXPECT_EQ(stats.audit.steps, 6U);
  EXPECT_EQ(stats.audit.same_top, 6U);  // the fake computes the same
  EXPECT_EQ(stats.audit.kl_sum, 0);
  EXPECT_EQ(other->received.done->stats.audit.steps, 0U);
  EXPECT_EQ(client->received.tokens[0], ExpectedTokens(audited.prompt, audited.sampling, 0));
  EXPECT_EQ(other->received.tokens[0], ExpectedTokens(plain.prompt, plain.sampling, 0));
}

TEST(StepAuditTest, AFailedAuditEndsWhatTheStepWasFor) {
  EngineWorld world({});
  auto client = world.Submit(SparseRequestOf(20, 2));
  world.runner.before_forward = [&world](const model::StepInput& input) {
    if (input.sequences.front().policy == nullptr) {
      world.runner.fail_next = absl::InternalError("no");
    }
  };
  world.RunUntilIdle(client);
  EXPECT_EQ(client->received.done->cause, EndCause::kInternal);
  EXPECT_TRUE(world.core.CheckIntegrity().ok());
}

}  // namespace
}  // namespace spindle::engine
