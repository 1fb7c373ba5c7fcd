// Generated tokens of sparse sequences that are computed again: few of them in a step, since each
// chooses for itself.
#include <algorithm>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "engine/scheduler_policy.h"
#include "sparse/algorithm_registry.h"
#include "support/engine_world.h"

namespace spindle::engine {
namespace {

using testing::EngineWorld;
using testing::ExpectedTokens;
using testing::kFakeEndToken;
using testing::MakePrompt;
using testing::MakeRequest;

EngineRequest Streaming(uint32_t seed, uint32_t max_tokens) {
  EngineRequest request = MakeRequest(MakePrompt(200, seed), max_tokens);
  request.sampling.ignore_eos = true;
  request.sampling.logit_bias = {{kFakeEndToken, -100.0F}};
  SparseDecode decode;
  decode.algorithm = "streaming";
  decode.method[0] = 1;
  decode.policy = std::make_shared<const sparse::SparsePolicy>(
      sparse::FindAlgorithm("streaming"), sparse::SparseSettings{.min_context = 0});
  request.decode = decode;
  return request;
}

// The most rows of generated tokens that any step has computed beside those that decode.
class ReplayWatch {
 public:
  explicit ReplayWatch(EngineWorld& world) {
    world.runner.before_forward = [this](const model::StepInput& input) {
      uint32_t replayed = 0;
      for (const sparse::SequenceRows& rows : input.sequences) {
        const uint32_t end = rows.first_position + rows.num_rows;
        const uint32_t begin = std::max(rows.first_position, rows.decode_begin);
        if (rows.policy != nullptr && rows.num_rows > 1 && end > begin) {
          replayed += end - begin;
        }
      }
      most = std::max(most, replayed);
      total += replayed;
    };
  }

  uint32_t most = 0;
  uint32_t total = 0;
};

TEST(SparseReplay, AStepComputesFewChoicesAgainAndTheTextIsTheSame) {
  for (const bool chunked : {true, false}) {
    EngineWorld::Options options;
    options.num_stripes = 40;  // admits all four with the output that is expected, not with 600
    options.engine.chunked_prefill = chunked;
    EngineWorld world(options);
    ReplayWatch watch(world);
    std::vector<EngineRequest> requests;
    for (uint32_t i = 0; i < 4; ++i) {
      requests.push_back(Streaming(i + 1, 600));
    }
    auto a = world.Submit(requests[0]);
    auto b = world.Submit(requests[1]);
    auto c = world.Submit(requests[2]);
    auto d = world.Submit(requests[3]);
    world.RunUntilIdle(a, b, c, d);
    uint32_t preemptions = 0;
    uint32_t i = 0;
    for (const auto* client : {&a, &b, &c, &d}) {
      const EngineRequest& request = requests[i++];
      EXPECT_EQ((*client)->received.tokens[0], ExpectedTokens(request.prompt, request.sampling, 0));
      preemptions += (*client)->received.done->stats.preemptions;
    }
    EXPECT_GE(preemptions, 1U);
    EXPECT_GT(watch.total, kMaxReplayRows) << "or the bound was not tried";
    EXPECT_LE(watch.most, kMaxReplayRows);
  }
}

}  // namespace
}  // namespace spindle::engine
