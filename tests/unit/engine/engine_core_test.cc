#include "engine/engine_core.h"

#include <gtest/gtest.h>

#include "support/engine_world.h"

namespace spindle::engine {
namespace {

using testing::Client;
using testing::EngineWorld;
using testing::ExpectedTokens;
using testing::MakePrompt;
using testing::MakeRequest;

TEST(EngineCore, RunsARequestFromPromptToDone) {
  EngineWorld world({});
  const EngineRequest request = MakeRequest(MakePrompt(150, 1), 20);
  auto client = world.Submit(request);
  ASSERT_NE(client, nullptr);
  world.RunUntilIdle(client);
  ASSERT_TRUE(client->done());
  EXPECT_TRUE(client->received.done->status.ok());
  EXPECT_EQ(client->received.done->cause, EndCause::kCompleted);
  EXPECT_TRUE(client->received.started);
  EXPECT_EQ(client->received.tokens[0], ExpectedTokens(request.prompt, request.sampling, 0));
  EXPECT_EQ(client->received.done->stats.prompt_tokens, 150U);
  EXPECT_EQ(client->received.done->stats.generated_tokens, client->received.tokens[0].size());
  EXPECT_TRUE(world.core.CheckIntegrity().ok());
  EXPECT_EQ(world.store->Stats().owned_stripes, 0U);
}

}  // namespace
}  // namespace spindle::engine
