#include "engine/engine_core.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "support/engine_world.h"

namespace spindle::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Client;
using testing::EngineWorld;
using testing::ExpectedTokens;
using testing::kFakeEndToken;
using testing::MakePrompt;
using testing::MakeRequest;

// A greedy request that does not end by itself.
EngineRequest Endless(std::vector<TokenId> prompt, uint32_t max_tokens) {
  EngineRequest request = MakeRequest(std::move(prompt), max_tokens);
  request.sampling.ignore_eos = true;
  request.sampling.logit_bias = {{kFakeEndToken, -100.0F}};
  return request;
}

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
  EXPECT_GT(client->received.done->stats.time_to_first_token, Duration::zero());
  EXPECT_TRUE(world.core.CheckIntegrity().ok());
  EXPECT_EQ(world.store->Stats().owned_stripes, 0U);
}

TEST(EngineCore, EndTokenStopsAndIsMarked) {
  EngineWorld world({});
  EngineRequest request = MakeRequest(MakePrompt(20, 1), 500);
  auto client = world.Submit(request);
  world.RunUntilIdle(client);
  const auto& received = client->received;
  ASSERT_EQ(received.finished[0], FinishReason::kStop) << "choose a prompt that ends by itself";
  EXPECT_EQ(received.tokens[0].back(), kFakeEndToken);
  const auto last = std::ranges::find(received.events,
                                      StreamEvent::Kind::kFinished,
                                      [](const StreamEvent& event) { return event.kind; });
  EXPECT_EQ(last->stop_token, kFakeEndToken);
  EXPECT_TRUE(std::prev(last)->is_end_token);
  EXPECT_EQ(std::ranges::count(received.events, true, &StreamEvent::is_end_token), 1);
}

TEST(EngineCore, MinTokensAndStopIds) {
  EngineWorld world({});
  EngineRequest request = MakeRequest(MakePrompt(20, 1), 500);
  request.sampling.ignore_eos = true;
  request.sampling.stop_token_ids = {17, 23, 31};
  request.sampling.min_tokens = 30;
  auto client = world.Submit(request);
  world.RunUntilIdle(client);
  const std::vector<TokenId>& tokens = client->received.tokens[0];
  ASSERT_GT(tokens.size(), 30U);
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    EXPECT_EQ(std::ranges::count(request.sampling.stop_token_ids, tokens[i]), 0);
  }
  EXPECT_EQ(client->received.finished[0], FinishReason::kStop);
}

TEST(EngineCore, PrefillGoesInChunksBesideDecoding) {
  EngineWorld::Options options;
  options.engine.max_num_batched_tokens = 128;
  EngineWorld world(options);
  auto decoding = world.Submit(Endless(MakePrompt(10, 1), 100));
  world.core.Step();
  auto prefilling = world.Submit(Endless(MakePrompt(400, 2), 5));
  std::vector<std::pair<uint32_t, uint32_t>> chunks;  // position, rows
  world.runner.before_forward = [&](const model::StepInput& input) {
    ASSERT_EQ(input.sequences.front().num_rows, 1U) << "decode rows come first";
    if (input.sequences.size() == 2) {
      chunks.emplace_back(input.sequences[1].first_position, input.sequences[1].num_rows);
    }
  };
  for (int i = 0; i < 6; ++i) {
    world.core.Step();
  }
  // 127 rows are left beside the decoding one: chunks of 64, and the last one ends the prompt.
  const std::vector<std::pair<uint32_t, uint32_t>> expected = {
      {0, 64}, {64, 64}, {128, 64}, {192, 64}, {256, 64}, {320, 80}};
  EXPECT_EQ(chunks, expected);
}

TEST(EngineCore, LaterTurnReusesPromptAndGeneratedStripes) {
  EngineWorld world({});
  EngineRequest first = Endless(MakePrompt(100, 1), 100);
  first.may_stop_early = false;
  auto client = world.Submit(first);
  world.RunUntilIdle(client);
  // 100 prompt and 99 generated tokens have KV: three stripes.
  std::vector<TokenId> next_turn = first.prompt;
  next_turn.insert(
      next_turn.end(), client->received.tokens[0].begin(), client->received.tokens[0].end());
  next_turn.push_back(5);
  const EngineRequest second = Endless(next_turn, 10);
  auto later = world.Submit(second);
  world.RunUntilIdle(later);
  EXPECT_EQ(later->received.done->stats.cached_tokens, 192U);
  EXPECT_EQ(later->received.tokens[0], ExpectedTokens(next_turn, second.sampling, 0));
}

TEST(EngineCore, CachedTokensLeaveOneToCompute) {
  EngineWorld world({});
  const EngineRequest request = Endless(MakePrompt(128, 1), 3);
  auto first = world.Submit(request);
  world.RunUntilIdle(first);
  auto second = world.Submit(request);
  world.RunUntilIdle(second);
  EXPECT_EQ(second->received.done->stats.cached_tokens, 64U);
  EXPECT_EQ(second->received.tokens[0], first->received.tokens[0]);
}

TEST(EngineCore, CachePromptFalseNeitherReadsNorAdds) {
  EngineWorld world({});
  EngineRequest request = Endless(MakePrompt(200, 1), 3);
  request.cache_prompt = false;
  auto first = world.Submit(request);
  world.RunUntilIdle(first);
  EXPECT_EQ(world.store->Stats().prefix_entries, 0U);
  request.cache_prompt = true;
  auto second = world.Submit(request);
  world.RunUntilIdle(second);
  EXPECT_EQ(second->received.done->stats.cached_tokens, 0U);
  request.cache_prompt = false;
  auto third = world.Submit(request);
  world.RunUntilIdle(third);
  EXPECT_EQ(third->received.done->stats.cached_tokens, 0U);
}

TEST(EngineCore, OtherRootsShareNothing) {
  EngineWorld world({});
  EngineRequest request = Endless(MakePrompt(200, 1), 3);
  auto first = world.Submit(request);
  world.RunUntilIdle(first);
  request.prefix_root[0] = 1;
  auto second = world.Submit(request);
  world.RunUntilIdle(second);
  EXPECT_EQ(second->received.done->stats.cached_tokens, 0U);
}

// A consumer that stops at a token: what came after it is neither counted nor cached.
TEST(EngineCore, SurplusAfterAStopIsNotPublished) {
  EngineWorld world({});
  const EngineRequest request = Endless(MakePrompt(60, 1), 200);
  auto client = world.Submit(request);
  for (int i = 0; i < 80; ++i) {
    world.core.Step();  // 80 tokens: two stripes are full, but nobody has looked at them
  }
  EXPECT_EQ(world.store->Stats().prefix_entries, 0U);
  while (client->received.tokens[0].size() < 10) {
    client->Read(1);
  }
  client->stream().StopChoice(0, 10);
  world.RunUntilIdle(client);
  ASSERT_TRUE(client->done());
  EXPECT_EQ(client->received.finished[0], FinishReason::kStop);
  EXPECT_EQ(client->received.done->stats.generated_tokens, 10U);
  EXPECT_EQ(world.store->Stats().prefix_entries, 1U) << "60 + 10 kept tokens: one stripe";
}

TEST(EngineCore, ExaminedStripesArePublishedWhileRunning) {
  EngineWorld world({});
  auto client = world.Submit(Endless(MakePrompt(60, 1), 200));
  for (int i = 0; i < 80; ++i) {
    world.core.Step();
    client->Read();
  }
  EXPECT_EQ(world.store->Stats().prefix_entries, 2U);
}

TEST(EngineCore, TwinWaitsForTheSharedPrefix) {
  EngineWorld::Options options;
  options.engine.max_num_batched_tokens = 64;
  EngineWorld world(options);
  const EngineRequest request = Endless(MakePrompt(300, 1), 4);
  auto first = world.Submit(request);
  auto second = world.Submit(request);
  const uint64_t rows_before = world.runner.num_rows;
  world.RunUntilIdle(first, second);
  EXPECT_EQ(second->received.done->stats.cached_tokens, 256U);
  EXPECT_EQ(first->received.tokens[0], second->received.tokens[0]);
  EXPECT_EQ(world.runner.num_rows - rows_before, 300U + 44U + 2 * 3U);
}

TEST(EngineCore, ChoicesShareThePromptAndDrawTheirOwnStreams) {
  EngineWorld world({});
  EngineRequest request = Endless(MakePrompt(300, 1), 40);
  request.sampling.temperature = 1.0F;
  request.sampling.seed = 99;
  request.sampling.num_choices = 3;
  auto client = world.Submit(request);
  world.core.Step();
  // Four sealed stripes are shared, the open one is copied per choice.
  EXPECT_EQ(world.store->Stats().owned_stripes, 4U + 3U);
  world.RunUntilIdle(client);
  for (uint32_t choice = 0; choice < 3; ++choice) {
    EXPECT_EQ(client->received.tokens[choice],
              ExpectedTokens(request.prompt, request.sampling, choice));
  }
  EXPECT_NE(client->received.tokens[0], client->received.tokens[1]);
  EXPECT_EQ(world.runner.num_rows, 300U + 3 * 39U) << "the prompt is computed once";
  request.sampling.num_choices = 1;
  auto alone = world.Submit(request);
  world.RunUntilIdle(alone);
  EXPECT_EQ(alone->received.tokens[0], client->received.tokens[0]);
}

TEST(EngineCore, MoreChoicesThanSlotsTakeTurns) {
  EngineWorld::Options options;
  options.engine.max_num_seqs = 2;
  EngineWorld world(options);
  for (const bool cache : {true, false}) {
    EngineRequest request = Endless(MakePrompt(150, 1), 12);
    request.sampling.temperature = 1.0F;
    request.sampling.num_choices = 5;
    request.cache_prompt = cache;
    auto client = world.Submit(request);
    world.RunUntilIdle(client);
    for (uint32_t choice = 0; choice < 5; ++choice) {
      EXPECT_EQ(client->received.tokens[choice],
                ExpectedTokens(request.prompt, request.sampling, choice));
    }
  }
}

TEST(EngineCore, ScoringOnlyEndsWithLengthAndNoToken) {
  EngineWorld world({});
  EngineRequest request = MakeRequest(MakePrompt(130, 1), 0);
  request.sampling.prompt_logprobs = 2;
  request.sampling.num_choices = 2;
  auto client = world.Submit(request);
  world.RunUntilIdle(client);
  ASSERT_TRUE(client->done());
  EXPECT_EQ(client->received.prompt_logprobs.size(), 130U);
  EXPECT_EQ(client->received.finished[0], FinishReason::kLength);
  EXPECT_EQ(client->received.finished[1], FinishReason::kLength);
  EXPECT_TRUE(client->received.tokens[0].empty());
}

TEST(EngineCore, ReportsPrefillProgress) {
  EngineWorld::Options options;
  options.engine.max_num_batched_tokens = 64;
  EngineWorld world(options);
  EngineRequest request = MakeRequest(MakePrompt(150, 1), 1);
  request.report_progress = true;
  auto client = world.Submit(request);
  world.RunUntilIdle(client);
  std::vector<uint32_t> processed;
  for (const StreamEvent& event : client->received.events) {
    if (event.kind == StreamEvent::Kind::kPrefill) {
      processed.push_back(event.processed);
      EXPECT_EQ(event.stats.prompt_tokens, 150U);
    }
  }
  EXPECT_EQ(processed, (std::vector<uint32_t>{64, 128, 150}));
}

TEST(EngineCore, CancelEndsWithinAStepAndFreesAllPages) {
  EngineWorld world({});
  auto client = world.Submit(Endless(MakePrompt(500, 1), 400));
  for (int i = 0; i < 5; ++i) {
    world.core.Step();
  }
  EXPECT_GT(world.store->Stats().owned_stripes, 0U);
  client->stream().Cancel(CancelCause::kClientGone);
  const uint64_t steps = world.runner.num_steps;
  world.core.Step();
  client->Read();
  ASSERT_TRUE(client->done());
  EXPECT_EQ(client->received.done->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(client->received.finished[0], FinishReason::kAborted);
  EXPECT_EQ(world.runner.num_steps, steps);
  EXPECT_EQ(world.store->Stats().owned_stripes, 0U);
}

TEST(EngineCore, QueuedRequestsEndWithDoneOnly) {
  EngineWorld::Options options;
  options.engine.max_num_seqs = 1;
  options.engine.queue_timeout = milliseconds(100);
  EngineWorld world(options);
  auto running = world.Submit(Endless(MakePrompt(10, 1), 3000));
  world.core.Step();
  auto queued = world.Submit(Endless(MakePrompt(10, 2), 10));
  auto cancelled = world.Submit(Endless(MakePrompt(10, 3), 10));
  cancelled->stream().Cancel(CancelCause::kAdmin);
  world.core.Step();
  cancelled->Read();
  ASSERT_TRUE(cancelled->done());
  EXPECT_EQ(cancelled->received.events.size(), 1U);
  world.clock.Advance(milliseconds(101));
  world.core.Step();
  queued->Read();
  running->Read();
  ASSERT_TRUE(queued->done());
  EXPECT_EQ(queued->received.events.size(), 1U);
  EXPECT_EQ(queued->received.done->cause, EndCause::kQueueTimeout);
  EXPECT_EQ(queued->received.done->status.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(running->done()) << "a started request has no queue limit";
}

TEST(EngineCore, DeadlineAndRequestTimeout) {
  EngineWorld::Options options;
  options.engine.request_timeout = seconds(5);
  EngineWorld world(options);
  EngineRequest request = Endless(MakePrompt(10, 1), 3000);
  auto limited = world.Submit(request);
  request.deadline = world.clock.Now() + seconds(1);
  auto dated = world.Submit(request);
  world.core.Step();
  world.clock.Advance(seconds(1));
  world.core.Step();
  dated->Read();
  limited->Read();
  ASSERT_TRUE(dated->done());
  EXPECT_EQ(dated->received.done->cause, EndCause::kDeadline);
  EXPECT_FALSE(limited->done());
  world.clock.Advance(seconds(4));
  world.core.Step();
  limited->Read();
  ASSERT_TRUE(limited->done());
  EXPECT_EQ(limited->received.done->cause, EndCause::kRequestTimeout);
  EXPECT_EQ(limited->received.done->status.code(), absl::StatusCode::kDeadlineExceeded);
  request.deadline = world.clock.Now();
  EXPECT_EQ(world.Submit(request), nullptr);
  EXPECT_EQ(world.refusal->kind, SubmitRefusal::Kind::kDeadlinePassed);
}

TEST(EngineCore, SlowReaderPausesThenResumesOrIsCancelled) {
  EngineWorld::Options options;
  options.engine.stream_capacity_events = 70;
  options.engine.stream_stall_timeout = seconds(60);
  EngineWorld world(options);
  const EngineRequest request = Endless(MakePrompt(10, 1), 200);
  auto client = world.Submit(request);
  world.RunUntilIdle();
  EXPECT_EQ(world.runner.num_steps, 70U);
  EXPECT_EQ(world.metrics.stream_stalls.Value(), 1.0);
  client->Read(50);
  world.RunUntilIdle();
  EXPECT_GT(world.runner.num_steps, 100U);
  EXPECT_LT(world.runner.num_steps, 140U);
  const EngineCore::Outcome outcome = world.core.Step();
  ASSERT_TRUE(outcome.wake_at.has_value());
  world.clock.Advance(seconds(60));
  EXPECT_LE(*outcome.wake_at, world.clock.Now());
  world.core.Step();
  client->Read();
  ASSERT_TRUE(client->done());
  EXPECT_EQ(client->received.done->cause, EndCause::kSlowReader);
}

TEST(EngineCore, PreemptionContinuesTheSameText) {
  EngineWorld::Options options;
  options.num_stripes = 16;
  EngineWorld world(options);
  const EngineRequest first = Endless(MakePrompt(60, 1), 600);
  const EngineRequest second = Endless(MakePrompt(60, 2), 600);
  auto a = world.Submit(first);
  auto b = world.Submit(second);
  world.RunUntilIdle(a, b);
  EXPECT_EQ(a->received.tokens[0], ExpectedTokens(first.prompt, first.sampling, 0));
  EXPECT_EQ(b->received.tokens[0], ExpectedTokens(second.prompt, second.sampling, 0));
  EXPECT_EQ(a->received.done->stats.preemptions, 0U) << "the older one stays";
  EXPECT_GE(b->received.done->stats.preemptions, 1U);
  EXPECT_EQ(world.metrics.preemptions.Value(),
            static_cast<double>(b->received.done->stats.preemptions));
}

TEST(EngineCore, OnlyTheSequenceThatOutgrowsTheStoreFails) {
  EngineWorld::Options options;
  options.num_stripes = 8;
  EngineWorld world(options);
  auto big = world.Submit(Endless(MakePrompt(60, 1), 600));
  const EngineRequest request = Endless(MakePrompt(60, 2), 100);
  auto small = world.Submit(request);
  world.RunUntilIdle(big, small);
  EXPECT_EQ(big->received.done->cause, EndCause::kOutOfMemory);
  EXPECT_EQ(big->received.done->status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(big->received.finished[0], FinishReason::kError);
  EXPECT_TRUE(small->received.done->status.ok());
  EXPECT_EQ(small->received.tokens[0], ExpectedTokens(request.prompt, request.sampling, 0));
}

TEST(EngineCore, RefusesWhatCanNeverRun) {
  EngineWorld::Options options;
  options.num_stripes = 8;
  options.max_model_len = 1000;
  EngineWorld world(options);
  EXPECT_EQ(world.Submit(MakeRequest(MakePrompt(900, 1), 101)), nullptr);
  EXPECT_EQ(world.refusal->kind, SubmitRefusal::Kind::kContextExceeded);
  EXPECT_EQ(world.Submit(MakeRequest(MakePrompt(512, 1), 10)), nullptr);
  EXPECT_EQ(world.refusal->kind, SubmitRefusal::Kind::kNeverFits);
  EXPECT_EQ(world.refusal->needed_bytes, 9 * world.store->geometry().stripe_bytes());
  EXPECT_EQ(world.refusal->capacity_bytes, 8 * world.store->geometry().stripe_bytes());
  EngineRequest given = MakeRequest(MakePrompt(100, 1), 500);
  EXPECT_NE(world.Submit(given), nullptr) << "a default limit need not fit";
  given.max_tokens_given = true;
  EXPECT_EQ(world.Submit(given), nullptr);
}

TEST(EngineCore, FullQueueRefusesOrDisplaces) {
  EngineWorld::Options options;
  options.engine.max_queue_size = 2;
  EngineWorld world(options);
  EngineRequest request = Endless(MakePrompt(10, 1), 10);
  auto first = world.Submit(request);
  request.priority = 50;
  auto second = world.Submit(request);
  EXPECT_EQ(world.Submit(request), nullptr);
  EXPECT_EQ(world.refusal->kind, SubmitRefusal::Kind::kQueueFull);
  EXPECT_GE(world.refusal->retry_after, seconds(1));
  EXPECT_LE(world.refusal->retry_after, seconds(60));
  request.priority = -5;
  auto urgent = world.Submit(request);
  ASSERT_NE(urgent, nullptr);
  world.RunUntilIdle(first, second, urgent);
  EXPECT_TRUE(first->received.done->status.ok());
  EXPECT_TRUE(urgent->received.done->status.ok());
  EXPECT_EQ(second->received.done->cause, EndCause::kDisplaced);
  EXPECT_EQ(second->received.done->status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GE(second->received.done->retry_after, seconds(1));
  EXPECT_FALSE(second->received.started);
}

TEST(EngineCore, QueueTokensAreBoundedButAnEmptyQueueTakesOne) {
  EngineWorld::Options options;
  options.engine.max_queue_tokens = 100;
  EngineWorld world(options);
  EXPECT_NE(world.Submit(MakeRequest(MakePrompt(150, 1), 1)), nullptr);
  EXPECT_EQ(world.Submit(MakeRequest(MakePrompt(1, 1), 1)), nullptr);
}

TEST(EngineCore, UrgentClassesGoFirstAndAgingEndsTheWait) {
  EngineWorld::Options options;
  options.engine.max_num_seqs = 1;
  EngineWorld world(options);
  auto running = world.Submit(Endless(MakePrompt(10, 1), 5));
  world.core.Step();
  EngineRequest request = Endless(MakePrompt(10, 2), 2);
  request.priority = 90;
  auto low = world.Submit(request);
  world.core.Step();
  world.clock.Advance(seconds(41));  // four classes up
  request.priority = -90;
  auto high = world.Submit(request);
  while (!low->done()) {
    world.core.Step();
    low->Read();
    high->Read();
    ASSERT_FALSE(high->done());
  }
  world.RunUntilIdle(running, low, high);
  EXPECT_TRUE(high->done());
}

// One sequence at a time: order of completion is order of admission.
TEST(EngineCore, SendersTakeTurns) {
  for (const bool shares : {false, true}) {
    EngineWorld::Options options;
    options.engine.max_num_seqs = 1;
    EngineWorld world(options);
    std::vector<std::string> ended;
    std::vector<std::pair<std::string, decltype(world.Submit(EngineRequest()))>> clients;
    const auto submit = [&](const std::string& sender, uint32_t prompt_tokens) {
      EngineRequest request =
          Endless(MakePrompt(prompt_tokens, static_cast<uint32_t>(clients.size() + 1)), 5);
      request.sender = shares ? sender : "";
      clients.emplace_back(sender, world.Submit(request));
    };
    for (int i = 0; i < 4; ++i) {
      submit("many", 40);
    }
    submit("long", 200);
    submit("short", 10);
    submit("short", 10);
    while (ended.size() < clients.size()) {
      world.core.Step();
      for (auto& [sender, client] : clients) {
        if (client == nullptr) {
          continue;
        }
        client->Read();
        if (client->done()) {
          ended.push_back(sender);
          client = nullptr;
        }
      }
    }
    const std::vector<std::string> by_arrival = {
        "many", "many", "many", "many", "long", "short", "short"};
    // All begin level; a prompt costs its tokens, an answer 20. Behind one request of each come
    // short (30), many (60, twice 120), and so on.
    const std::vector<std::string> by_turns = {
        "many", "long", "short", "short", "many", "many", "many"};
    EXPECT_EQ(ended, shares ? by_turns : by_arrival);
    EXPECT_TRUE(world.core.CheckIntegrity().ok());
  }
}

// A flood grows no older while it is served, so it does not rise above the requests of others.
TEST(EngineCore, AFloodDoesNotAgeWhileItIsServed) {
  EngineWorld::Options options;
  options.engine.max_num_seqs = 1;
  EngineWorld world(options);
  EngineRequest request = Endless(MakePrompt(10, 1), 2);
  request.sender = "flood";
  std::vector<decltype(world.Submit(request))> flood;
  for (int i = 0; i < 6; ++i) {
    flood.push_back(world.Submit(request));
  }
  const auto run_until_done = [&world](auto& client) {
    while (!client->done()) {
      world.core.Step();
      client->Read();
    }
  };
  world.core.Step();
  world.clock.Advance(seconds(100));  // what waits would be in the first class by now
  run_until_done(flood[0]);
  world.core.Step();  // the second one begins
  request.sender = "other";
  auto other = world.Submit(request);
  run_until_done(other);
  flood[1]->Read();
  flood[2]->Read();
  EXPECT_TRUE(flood[1]->done());
  EXPECT_FALSE(flood[2]->done());
  for (auto& client : flood) {
    world.RunUntilIdle(client);
  }
  EXPECT_TRUE(flood.back()->done());
}

TEST(EngineCore, LookAheadIsBounded) {
  EngineWorld::Options options;
  options.num_stripes = 40;
  EngineWorld world(options);
  auto holder = world.Submit(Endless(MakePrompt(600, 1), 700));
  world.core.Step();
  world.core.Step();
  auto head = world.Submit(Endless(MakePrompt(1600, 2), 10));  // does not fit beside the holder
  std::vector<std::unique_ptr<Client>> small;
  for (uint64_t i = 0; i < 12; ++i) {
    small.push_back(world.Submit(Endless(MakePrompt(10, 10 + i), 2)));
    for (int step = 0; step < 6; ++step) {
      world.core.Step();
    }
    small.back()->Read();
  }
  const auto served =
      std::ranges::count_if(small, [](const auto& client) { return client->done(); });
  EXPECT_EQ(served, 8) << "past the same head at most 8 times";
  world.RunUntilIdle(holder, head);
  EXPECT_TRUE(head->received.done->status.ok());
}

TEST(EngineCore, AFailedForwardEndsItsBatchOnly) {
  EngineWorld world({});
  auto broken = world.Submit(Endless(MakePrompt(10, 1), 5));
  world.runner.fail_next = absl::InternalError("injected");
  world.core.Step();
  auto healthy = world.Submit(Endless(MakePrompt(10, 2), 5));
  world.RunUntilIdle(broken, healthy);
  EXPECT_EQ(broken->received.done->status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(broken->received.done->cause, EndCause::kInternal);
  EXPECT_TRUE(healthy->received.done->status.ok());
  EXPECT_TRUE(world.core.CheckIntegrity().ok());
}

TEST(EngineCore, NothingAllowedIsTheRequestsOwnError) {
  EngineWorld world({});
  EngineRequest request = MakeRequest(MakePrompt(10, 1), 5);
  request.sampling.allowed_token_ids = {kFakeEndToken};
  request.sampling.min_tokens = 2;
  auto client = world.Submit(request);
  world.RunUntilIdle(client);
  EXPECT_EQ(client->received.done->cause, EndCause::kNoTokenAllowed);
  EXPECT_EQ(client->received.done->status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(EngineCore, LogprobsTravelWithTheirTokens) {
  EngineWorld world({});
  EngineRequest request = Endless(MakePrompt(10, 1), 5);
  request.sampling.logprobs = 3;
  auto client = world.Submit(request);
  world.RunUntilIdle(client);
  std::vector<TokenId> history = request.prompt;
  std::vector<float> logits(testing::kFakeVocab);
  for (const StreamEvent& event : client->received.events) {
    if (event.kind != StreamEvent::Kind::kToken) {
      continue;
    }
    testing::FakeModel::Logits(testing::FakeModel::Hash(history), logits);
    const auto sorted = testing::SortedTokens(logits.data(), testing::kFakeVocab);
    ASSERT_EQ(event.top.size(), 3U);
    for (size_t k = 0; k < 3; ++k) {
      EXPECT_EQ(event.top[k].token, sorted[k].id);
    }
    EXPECT_LT(event.logprob, 0.0F);
    history.push_back(event.token);
  }
}

}  // namespace
}  // namespace spindle::engine
