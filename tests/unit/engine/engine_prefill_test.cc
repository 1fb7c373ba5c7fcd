// Sparse prefill in the engine: blocks come whole whatever the batch, the cache and the memory do,
// and nobody takes over what was computed in another way.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sparse/algorithm_registry.h"
#include "sparse/prefill_registry.h"
#include "support/engine_world.h"
#include "support/temp_folder.h"

namespace spindle::engine {
namespace {

using testing::EngineWorld;
using testing::ExpectedTokens;
using testing::kFakeEndToken;
using testing::MakePrompt;
using testing::MakeRequest;

constexpr uint32_t kBlock = sparse::kPrefillBlockTokens;

// Sparse from block 2 on.
SparseDecode SparsePrompts(const char* algorithm = "dense", double recent = 128) {
  SparseDecode decode;
  decode.prefill = std::make_shared<const sparse::PrefillPolicy>(
      sparse::FindPrefillMethod("tri_shape"), std::vector<double>{0, recent, 128});
  if (std::string(algorithm) != "dense") {
    decode.algorithm = algorithm;
    decode.method[0] = 1;
    decode.policy = std::make_shared<const sparse::SparsePolicy>(
        sparse::FindAlgorithm(algorithm), sparse::SparseSettings{.min_context = 0});
  }
  return decode;
}

EngineRequest SparseAsk(const std::vector<TokenId>& prompt,
                        uint32_t max_tokens = 4,
                        const SparseDecode& decode = SparsePrompts()) {
  EngineRequest request = MakeRequest(prompt, max_tokens);
  request.sampling.ignore_eos = true;
  request.sampling.logit_bias = {{kFakeEndToken, -100.0F}};
  request.decode = decode;
  return request;
}

// Looks at every step; counts rows of sparse blocks.
class BlockWatch {
 public:
  explicit BlockWatch(EngineWorld& world) {
    world.runner.before_forward = [this](const model::StepInput& input) {
      for (const sparse::SequenceRows& rows : input.sequences) {
        Look(rows);
      }
    };
  }

  uint32_t sparse_rows = 0;
  uint32_t num_rows = 0;

 private:
  void Look(const sparse::SequenceRows& rows) {
    num_rows += rows.num_rows;
    if (rows.prefill == nullptr) {
      return;
    }
    const uint32_t begin = rows.prefill->SparseBegin();
    const uint32_t end = rows.prefill->SparseEnd(rows.decode_begin);
    for (const uint32_t border : {rows.first_position, rows.first_position + rows.num_rows}) {
      EXPECT_TRUE(border <= begin || border >= end || border % kBlock == 0) << border;
    }
    const uint32_t first = std::max(begin, rows.first_position);
    const uint32_t last = std::min(end, rows.first_position + rows.num_rows);
    sparse_rows += first < last ? last - first : 0;
  }
};

uint32_t CachedTokens(EngineWorld& world, const EngineRequest& request) {
  auto client = world.Submit(request);
  world.RunUntilIdle(client);
  EXPECT_EQ(client->received.tokens[0], ExpectedTokens(request.prompt, request.sampling, 0));
  return client->received.done->stats.cached_tokens;
}

TEST(EnginePrefill, BlocksComeWholeInAnyStep) {
  for (const uint32_t rows : {64U, 100U, 191U, 300U, 512U, 1500U}) {
    EngineWorld::Options options;
    options.engine.max_num_batched_tokens = rows;
    EngineWorld world(options);
    BlockWatch watch(world);
    const EngineRequest decoding = SparseAsk(MakePrompt(40, 9), 60, {});
    auto company = world.Submit(decoding);
    world.core.Step();
    const EngineRequest request = SparseAsk(MakePrompt(1300, 1));
    const EngineRequest other = SparseAsk(MakePrompt(700, 2), 4, SparsePrompts("streaming"));
    auto first = world.Submit(request);
    auto second = world.Submit(other);
    world.RunUntilIdle(company, first, second);
    EXPECT_EQ(first->received.tokens[0], ExpectedTokens(request.prompt, request.sampling, 0));
    EXPECT_EQ(second->received.tokens[0], ExpectedTokens(other.prompt, other.sampling, 0));
    EXPECT_EQ(company->received.tokens[0], ExpectedTokens(decoding.prompt, decoding.sampling, 0));
    EXPECT_EQ(watch.sparse_rows, (1152U - 256) + (512U - 256)) << rows;
  }
}

// Cached: what is computed alike, in whole blocks, and never a dense end.
TEST(EnginePrefill, WhoSharesWhat) {
  EngineWorld world({});
  BlockWatch watch(world);
  const std::vector<TokenId> prompt = MakePrompt(1000, 1);
  const EngineRequest dense = SparseAsk(prompt, 4, {});
  const EngineRequest sparse = SparseAsk(prompt);
  EXPECT_EQ(CachedTokens(world, dense), 0U);
  EXPECT_EQ(CachedTokens(world, sparse), 256U) << "before its first sparse block";
  EXPECT_EQ(watch.sparse_rows, 512U);
  EXPECT_EQ(CachedTokens(world, sparse), 768U) << "up to its dense end";
  EXPECT_EQ(watch.sparse_rows, 512U);
  EXPECT_EQ(CachedTokens(world, dense), 960U) << "its own";
  EXPECT_EQ(CachedTokens(world, SparseAsk(prompt, 4, SparsePrompts("streaming"))), 768U)
      << "the algorithm of decoding does not matter to a prompt";
  EXPECT_EQ(CachedTokens(world, SparseAsk(prompt, 4, SparsePrompts("dense", 1))), 128U)
      << "another setting begins earlier";
  // A prompt that goes on after 700 tokens: whole blocks.
  std::vector<TokenId> branch(prompt.begin(), prompt.begin() + 700);
  branch.insert(branch.end(), 400, 3);
  EXPECT_EQ(CachedTokens(world, SparseAsk(branch)), 640U);
  // A dense prompt of an odd number of stripes is of use up to an even one.
  const std::vector<TokenId> odd = MakePrompt(200, 5);
  std::vector<TokenId> longer = odd;
  longer.insert(longer.end(), 700, 4);
  EXPECT_EQ(CachedTokens(world, SparseAsk(odd, 4, {})), 0U);
  EXPECT_EQ(CachedTokens(world, SparseAsk(longer)), 128U);
  EXPECT_EQ(CachedTokens(world, SparseAsk(longer, 4, {})), 256U)
      << "the sparse request's dense begin";
}

// What follows a sparse prompt is not what a dense prompt with the same tokens holds.
TEST(EnginePrefill, AnswersAreNotShared) {
  EngineWorld world({});
  EngineRequest turn = SparseAsk(MakePrompt(1000, 1), 200);
  turn.may_stop_early = false;
  auto client = world.Submit(turn);
  world.RunUntilIdle(client);
  std::vector<TokenId> next = turn.prompt;
  next.insert(next.end(), client->received.tokens[0].begin(), client->received.tokens[0].end());
  next.push_back(5);
  EXPECT_EQ(CachedTokens(world, SparseAsk(next)), 768U);
  EXPECT_EQ(CachedTokens(world, SparseAsk(next, 4, {})), 256U);
}

TEST(EnginePrefill, PreemptionComputesTheSameBlocksAgain) {
  EngineWorld::Options options;
  options.num_stripes = 34;  // admits both with 256 tokens of output each, but not with 600
  EngineWorld world(options);
  BlockWatch watch(world);
  const EngineRequest first = SparseAsk(MakePrompt(700, 1), 600);
  const EngineRequest second = SparseAsk(MakePrompt(700, 2), 600, SparsePrompts("streaming"));
  auto a = world.Submit(first);
  auto b = world.Submit(second);
  world.RunUntilIdle(a, b);
  EXPECT_EQ(a->received.tokens[0], ExpectedTokens(first.prompt, first.sampling, 0));
  EXPECT_EQ(b->received.tokens[0], ExpectedTokens(second.prompt, second.sampling, 0));
  EXPECT_GE(b->received.done->stats.preemptions, 1U);
  EXPECT_GE(watch.sparse_rows, 2 * 256U);
}

TEST(EnginePrefill, ChoicesShareTheirPromptAndItsEnd) {
  EngineWorld world({});
  BlockWatch watch(world);
  EngineRequest request = SparseAsk(MakePrompt(1000, 1), 20);
  request.sampling.num_choices = 3;
  request.sampling.temperature = 1;
  auto client = world.Submit(request);
  world.RunUntilIdle(client);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(client->received.tokens[i], ExpectedTokens(request.prompt, request.sampling, i));
  }
  EXPECT_EQ(watch.sparse_rows, 512U);
  EXPECT_LT(watch.num_rows, 1000U + 3 * 20);
}

TEST(EnginePrefill, MoreChoicesThanSlotsBeginAtTheDenseEnd) {
  EngineWorld::Options options;
  options.engine.max_num_seqs = 1;
  EngineWorld world(options);
  BlockWatch watch(world);
  EngineRequest request = SparseAsk(MakePrompt(1000, 1), 20);
  request.sampling.num_choices = 2;
  request.cache_prompt = false;
  auto client = world.Submit(request);
  world.RunUntilIdle(client);
  EXPECT_EQ(client->received.tokens[1], ExpectedTokens(request.prompt, request.sampling, 1));
  EXPECT_EQ(watch.sparse_rows, 512U);
  EXPECT_LE(watch.num_rows, 1000U + 20 + (1000 - 960) + 20) << "behind its private stripes";
}

TEST(EnginePrefill, TheDiskKeepsWhatOthersMayUse) {
  const test::TempFolder folder;
  kv::disk::DiskOptions disk;
  disk.path = folder.path();
  disk.capacity_bytes = uint64_t{256} << 20;
  disk.segment_bytes = uint64_t{1} << 20;
  disk.min_free_bytes = 0;
  disk.min_free_fraction = 0;
  disk.io_mode = kv::disk::IoMode::kInline;
  EngineWorld::Options options;
  options.disk = disk;
  options.files = &kv::disk::SystemFiles();
  const std::vector<TokenId> prompt = MakePrompt(3000, 1);
  for (const bool is_warm : {false, true}) {
    EngineWorld world(options);
    EngineRequest request = SparseAsk(prompt);
    auto client = world.Submit(request);
    for (int step = 0; step < 10000 && !client->done(); ++step) {
      world.core.Step();
      client->Read();
    }
    ASSERT_TRUE(client->done());
    for (int step = 0; step < 1000 && world.disk->HoldsHostStripes(); ++step) {
      world.core.Step();
    }
    const RequestStats& stats = client->received.done->stats;
    EXPECT_EQ(client->received.tokens[0], ExpectedTokens(prompt, request.sampling, 0));
    EXPECT_EQ(stats.disk_tokens, is_warm ? 2816U : 0U);
    if (is_warm) {
      EXPECT_EQ(CachedTokens(world, SparseAsk(prompt, 4, {})), 256U) << "of no use to a dense one";
    }
    EXPECT_TRUE(world.core.CheckIntegrity().ok()) << world.core.CheckIntegrity();
    world.CloseDisk();
  }
}

}  // namespace
}  // namespace spindle::engine
