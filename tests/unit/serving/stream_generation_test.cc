#include "serving/stream_generation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/utf8.h"
#include "serving/answer_memory.h"
#include "unit/serving/serving_fakes.h"

namespace spindle::serving {
namespace {

using engine::CancelCause;
using engine::EndCause;
using engine::FinishReason;
using testing::ElementsAre;

// A generation over scripted streams, and what its consumer has seen.
class GenerationTest : public testing::Test {
 protected:
  static constexpr uint64_t kMemoryBytes = 100'000;

  void Begin(PreparedRequest request) {
    if (request.prompts.empty()) {
      request.prompts = {{kBos, 'h', 'i'}};
    }
    std::vector<std::shared_ptr<engine::OutputStream>> handed;
    for (size_t i = 0; i < request.prompts.size(); ++i) {
      streams_.push_back(std::make_shared<FakeStream>());
      handed.push_back(streams_.back());
    }
    generation_ =
        std::make_unique<StreamGeneration>(request,
                                           "req-1",
                                           clock_.Now(),
                                           std::move(handed),
                                           ByteQuota::Lease(memory_),
                                           GenerationDeps{tokenizer_, metrics_, memory_, clock_});
  }

  FakeStream& stream(size_t i = 0) { return *streams_[i]; }

  std::vector<GenerationEvent> PollAll(size_t max_events = 100) {
    std::vector<GenerationEvent> events;
    generation_->Poll(max_events, &events);
    for (const GenerationEvent& event : events) {
      if (const auto* delta = std::get_if<DeltaEvent>(&event)) {
        texts_.resize(std::max<size_t>(texts_.size(), delta->choice + 1));
        texts_[delta->choice] += delta->text;
        logprobs_.insert(logprobs_.end(), delta->logprobs.begin(), delta->logprobs.end());
        ids_.insert(ids_.end(), delta->token_ids.begin(), delta->token_ids.end());
      } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
        finished_.push_back(*finished);
      } else if (const auto* usage = std::get_if<UsageEvent>(&event)) {
        usage_ = *usage;
      } else if (const auto* error = std::get_if<ErrorEvent>(&event)) {
        error_ = error->error;
      }
    }
    return events;
  }

  [[nodiscard]] std::string Exposed() { return registry_.Expose(true); }

  VirtualClock clock_;
  FakeTokenizer tokenizer_;
  metrics::Registry registry_{metrics::Labels{}};
  ServingMetrics metrics_{registry_};
  ByteQuota memory_{kMemoryBytes, kSmallAnswerBytes};
  std::vector<std::shared_ptr<FakeStream>> streams_;
  std::unique_ptr<StreamGeneration> generation_;
  std::vector<std::string> texts_;
  std::vector<TokenLogprob> logprobs_;
  std::vector<TokenId> ids_;
  std::vector<FinishedEvent> finished_;
  std::optional<UsageEvent> usage_;
  std::optional<ApiError> error_;
};

using StreamGenerationTest = GenerationTest;

TEST_F(StreamGenerationTest, DeliversStartedDeltasFinishedAndUsageInOrder) {
  Begin({});
  stream().AddStarted(3, 2);
  stream().AddToken(kFirstWord);
  stream().AddToken(kFirstWord + 1);
  stream().AddToken(kEos);
  stream().AddFinished(FinishReason::kStop, 0, kEos);
  stream().AddDone();
  const std::vector<GenerationEvent> events = PollAll();
  ASSERT_EQ(events.size(), 5U);
  const auto* started = std::get_if<StartedEvent>(&events[0]);
  ASSERT_NE(started, nullptr);
  EXPECT_EQ(started->usage.prompt_tokens, 3U);
  EXPECT_EQ(started->usage.cached_tokens, 2U);
  EXPECT_EQ(std::get<DeltaEvent>(events[1]).text, "hello");
  EXPECT_THAT(std::get<DeltaEvent>(events[1]).token_ids, ElementsAre(kFirstWord));
  EXPECT_TRUE(std::get<DeltaEvent>(events[1]).logprobs.empty());
  EXPECT_EQ(std::get<DeltaEvent>(events[2]).text, " world");
  const auto& finished = std::get<FinishedEvent>(events[3]);
  EXPECT_EQ(finished.reason, FinishReason::kStop);
  EXPECT_FALSE(finished.stop_string.has_value());
  EXPECT_FALSE(finished.stop_token.has_value()) << "the end of a turn is no stop reason";
  const auto& usage = std::get<UsageEvent>(events[4]);
  EXPECT_EQ(usage.usage.completion_tokens, 3U) << "the end token counts";
  EXPECT_EQ(usage.stats.generated_tokens, 3U);
  EXPECT_TRUE(generation_->Done());
  EXPECT_FALSE(stream().cancelled().has_value());
}

TEST_F(StreamGenerationTest, PollDeliversAtMostWhatIsAskedForAndLeavesTheRestInTheStream) {
  Begin({});
  stream().AddStarted(3);
  for (int i = 0; i < 10; ++i) {
    stream().AddToken('a');
  }
  EXPECT_EQ(PollAll(3).size(), 3U);
  EXPECT_EQ(stream().num_waiting(), 8U) << "the bound of the stream is what pauses decoding";
  EXPECT_EQ(PollAll(100).size(), 8U);
  EXPECT_EQ(PollAll(100).size(), 0U);
  EXPECT_FALSE(generation_->Done());
}

TEST_F(StreamGenerationTest, AStopStringAcrossTokensEndsTheChoiceAndDropsTheSurplus) {
  PreparedRequest request;
  request.stop = {"lo wor"};
  request.sampling.logprobs = 2;
  Begin(request);
  stream().AddStarted(3);
  stream().AddToken('h');
  stream().AddToken('e');
  stream().AddToken('l');
  stream().AddToken('l');
  stream().AddToken('o');
  stream().AddToken(kFirstWord + 1);  // " world" completes the stop
  stream().AddToken('x');             // surplus
  stream().AddFinished(FinishReason::kLength);
  stream().AddDone();
  PollAll();
  EXPECT_EQ(texts_[0], "hel");
  ASSERT_EQ(finished_.size(), 1U);
  EXPECT_EQ(finished_[0].reason, FinishReason::kStop);
  EXPECT_EQ(finished_[0].stop_string, "lo wor");
  EXPECT_THAT(stream().stops(), ElementsAre(std::pair(0U, 6U)));
  EXPECT_EQ(usage_->usage.completion_tokens, 6U);
  EXPECT_EQ(logprobs_.size(), 3U) << "tokens wholly inside the stop are left out";
}

TEST_F(StreamGenerationTest, ATokenCutByAStopKeepsItsLogprobWhole) {
  PreparedRequest request;
  request.stop = {"rld"};
  request.include_stop = false;
  request.sampling.logprobs = 0;
  Begin(request);
  stream().AddStarted(3);
  stream().AddToken(kFirstWord);
  stream().AddToken(kFirstWord + 1);
  PollAll();
  EXPECT_EQ(texts_[0], "hello wo");
  ASSERT_EQ(logprobs_.size(), 2U);
  EXPECT_EQ(logprobs_[1].bytes, " world");
}

TEST_F(StreamGenerationTest, IncludeStopKeepsTheMatch) {
  PreparedRequest request;
  request.stop = {"rl"};
  request.include_stop = true;
  Begin(request);
  stream().AddStarted(3);
  stream().AddToken(kFirstWord + 1);
  PollAll();
  EXPECT_EQ(texts_[0], " worl");
  EXPECT_EQ(finished_[0].stop_string, "rl");
}

TEST_F(StreamGenerationTest, HeldTextIsDeliveredWithTheFinish) {
  PreparedRequest request;
  request.stop = {"abc"};
  Begin(request);
  stream().AddStarted(3);
  stream().AddToken('a');
  stream().AddToken('b');
  EXPECT_EQ(PollAll().size(), 1U);
  stream().AddFinished(FinishReason::kLength);
  stream().AddDone();
  PollAll();
  EXPECT_EQ(texts_[0], "ab");
  EXPECT_EQ(finished_[0].reason, FinishReason::kLength);
  EXPECT_EQ(usage_->usage.completion_tokens, 2U);
}

TEST_F(StreamGenerationTest, AStopTokenIsTheStopReason) {
  PreparedRequest request;
  request.sampling.stop_token_ids = {'z'};
  Begin(request);
  stream().AddStarted(3);
  stream().AddToken('a');
  stream().AddFinished(FinishReason::kStop, 0, 'z');
  stream().AddDone();
  PollAll();
  EXPECT_EQ(finished_[0].stop_token, 'z');
}

TEST_F(StreamGenerationTest, ControlTokensAreShownOnlyWhenAskedFor) {
  for (const bool skip : {true, false}) {
    streams_.clear();
    texts_.clear();
    PreparedRequest request;
    request.skip_special_tokens = skip;
    Begin(request);
    stream().AddStarted(3);
    stream().AddToken('a');
    stream().AddToken(kTurnBegin);
    stream().AddToken('b');
    PollAll();
    EXPECT_EQ(texts_[0], skip ? "ab" : "a<|im_start|>b");
  }
}

TEST_F(StreamGenerationTest, LogprobsAreBoundedAndCarryBytesAndAlternatives) {
  PreparedRequest request;
  request.sampling.logprobs = 2;
  Begin(request);
  stream().AddStarted(3);
  stream().AddToken(kFirstWord + 2, 0, -std::numeric_limits<float>::infinity());  // E2 82
  stream().AddToken(kFirstWord + 3, 0, -20000.0F);                                // AC !
  stream().AddToken('x', 0, -0.25F);
  PollAll();
  ASSERT_EQ(logprobs_.size(), 3U);
  EXPECT_EQ(texts_[0], "\xE2\x82\xAC!x");
  EXPECT_EQ(logprobs_[0].logprob, -9999.0F);
  EXPECT_EQ(logprobs_[1].logprob, -9999.0F);
  EXPECT_EQ(logprobs_[2].logprob, -0.25F);
  EXPECT_EQ(logprobs_[0].bytes, "\xE2\x82");
  EXPECT_EQ(logprobs_[2].text_offset, 2U);
  ASSERT_EQ(logprobs_[2].top.size(), 2U);
  EXPECT_EQ(logprobs_[2].top[1].bytes, "</s>");
  EXPECT_EQ(logprobs_[2].top[1].logprob, -1.25F);
}

TEST_F(StreamGenerationTest, ChoiceIndexIsPromptTimesNPlusJ) {
  PreparedRequest request;
  request.prompts = {{'a'}, {'b', 'c'}};
  request.sampling.num_choices = 2;
  Begin(request);
  for (size_t i = 0; i < 2; ++i) {
    stream(i).AddStarted(static_cast<uint32_t>(i) + 1, 1);
    for (const uint32_t j : {0U, 1U}) {
      stream(i).AddToken(static_cast<TokenId>('0' + 2 * i + j), j);
      stream(i).AddFinished(FinishReason::kLength, j);
    }
    stream(i).AddDone();
  }
  PollAll();
  EXPECT_THAT(texts_, ElementsAre("0", "1", "2", "3"));
  EXPECT_EQ(finished_.size(), 4U);
  EXPECT_EQ(usage_->usage.prompt_tokens, 3U);
  EXPECT_EQ(usage_->usage.cached_tokens, 2U);
  EXPECT_EQ(usage_->usage.completion_tokens, 4U);
}

TEST_F(StreamGenerationTest, EchoComesFirstInEveryChoiceWithPromptLogprobs) {
  PreparedRequest request;
  request.endpoint = Endpoint::kCompletions;
  request.prompts = {{kBos, kFirstWord, 'x'}};
  request.prompt_texts = {"hellox"};
  request.echo = true;
  request.sampling.num_choices = 2;
  request.sampling.logprobs = 1;
  request.sampling.prompt_logprobs = 1;
  Begin(request);
  stream().AddStarted(3);
  stream().AddPromptLogprob(kBos, std::numeric_limits<float>::quiet_NaN());
  stream().AddPromptLogprob(kFirstWord, -1.0F);
  EXPECT_EQ(PollAll().size(), 1U) << "the echo waits for the last prompt token";
  stream().AddPromptLogprob('x', -2.0F);
  stream().AddToken('y', 1);
  const std::vector<GenerationEvent> events = PollAll();
  ASSERT_EQ(events.size(), 3U);
  for (const uint32_t j : {0U, 1U}) {
    const auto& delta = std::get<DeltaEvent>(events[j]);
    EXPECT_TRUE(delta.is_echo);
    EXPECT_EQ(delta.choice, j);
    EXPECT_EQ(delta.text, "hellox");
    ASSERT_EQ(delta.logprobs.size(), 3U);
    EXPECT_FALSE(delta.logprobs[0].logprob.has_value());
    EXPECT_TRUE(delta.logprobs[0].top.empty());
    EXPECT_EQ(delta.logprobs[1].logprob, -1.0F);
    EXPECT_EQ(delta.logprobs[1].text_offset, 0U);
    EXPECT_EQ(delta.logprobs[2].text_offset, 5U);
  }
  EXPECT_EQ(std::get<DeltaEvent>(events[2]).logprobs[0].text_offset, 6U);
}

TEST_F(StreamGenerationTest, ALongEchoComesInPartsAsItsLogprobsDo) {
  constexpr size_t kTokens = 100;
  PreparedRequest request;
  request.endpoint = Endpoint::kCompletions;
  request.prompts = {std::vector<TokenId>(kTokens, 'a')};
  request.prompt_texts = {std::string(kTokens, 'a')};
  request.echo = true;
  request.sampling.num_choices = 3;
  request.sampling.logprobs = 0;
  request.sampling.prompt_logprobs = 0;
  Begin(request);
  stream().AddStarted(kTokens);
  for (size_t i = 0; i < kTokens; ++i) {
    stream().AddPromptLogprob('a', -1.0F);
  }
  stream().AddToken('b', 2);
  EXPECT_EQ(PollAll(2).size(), 2U);
  EXPECT_GE(stream().num_waiting(), kTokens / 2) << "a part is taken when it is asked for";
  PollAll(1000);
  const std::string text(kTokens, 'a');
  EXPECT_THAT(texts_, ElementsAre(text, text, text + "b"));
  ASSERT_EQ(logprobs_.size(), 3 * kTokens + 1);
  std::vector<uint64_t> offsets;
  for (const TokenLogprob& token : logprobs_) {
    offsets.push_back(token.text_offset);
  }
  std::ranges::sort(offsets);
  for (size_t i = 0; i < offsets.size(); ++i) {
    EXPECT_EQ(offsets[i], i / 3);
  }
}

TEST_F(StreamGenerationTest, TheBestChoicesComeWithTheirEcho) {
  PreparedRequest request;
  request.endpoint = Endpoint::kCompletions;
  request.prompts = {{'h', 'i'}};
  request.prompt_texts = {"hi"};
  request.echo = true;
  request.best_of = 3;
  request.sampling.num_choices = 2;
  request.sampling.logprobs = 0;
  request.sampling.prompt_logprobs = 0;
  Begin(request);
  stream().AddStarted(2);
  stream().AddPromptLogprob('h', -1.0F);
  stream().AddPromptLogprob('i', -1.0F);
  const float logprobs[] = {-3.0F, -1.0F, -2.0F};
  for (const uint32_t j : {0U, 1U, 2U}) {
    stream().AddToken(static_cast<TokenId>('a' + j), j, logprobs[j]);
    stream().AddFinished(FinishReason::kLength, j);
  }
  stream().AddDone();
  PollAll();
  EXPECT_THAT(texts_, ElementsAre("hib", "hic"));
  EXPECT_EQ(logprobs_.size(), 6U);
  ASSERT_EQ(finished_.size(), 2U);
  EXPECT_TRUE(usage_.has_value());
  EXPECT_TRUE(generation_->Done());
}

TEST_F(StreamGenerationTest, WhatIsKeptForARankingHasABound) {
  PreparedRequest request;
  request.endpoint = Endpoint::kCompletions;
  request.best_of = 2;
  request.sampling.logprobs = 2;
  Begin(request);
  stream().AddStarted(3);
  uint64_t most = 0;
  for (int i = 0; i < 1000 && !error_.has_value(); ++i) {
    stream().AddToken('a', static_cast<uint32_t>(i % 2));
    PollAll();
    most = std::max(most, memory_.used_bytes());
  }
  ASSERT_TRUE(error_.has_value());
  EXPECT_EQ(error_->code, "answer_too_large");
  EXPECT_EQ(error_->http_status, 400);
  EXPECT_GT(most, kMemoryBytes / 2);
  EXPECT_TRUE(stream().cancelled().has_value());
  EXPECT_TRUE(generation_->Done());
  EXPECT_THAT(Exposed(), testing::HasSubstr("reason=\"answer_too_large\"} 1"));
  generation_.reset();
  EXPECT_EQ(memory_.used_bytes(), 0U);
}

TEST_F(StreamGenerationTest, AConsumerThatCannotGoOnEndsIt) {
  Begin({});
  stream().AddStarted(3);
  stream().AddToken('a');
  stream().AddToken('b');
  EXPECT_EQ(PollAll(2).size(), 2U);
  generation_->Fail(MakeError(429, "memory_full", "No room."));
  generation_->Fail(MakeError(500, "internal_error", "Not a second time."));
  EXPECT_FALSE(generation_->Done());
  EXPECT_EQ(PollAll().size(), 1U);
  EXPECT_EQ(error_->code, "memory_full");
  EXPECT_TRUE(generation_->Done());
  EXPECT_TRUE(stream().cancelled().has_value());
}

TEST_F(StreamGenerationTest, EchoedTextIsNotSearchedForStops) {
  PreparedRequest request;
  request.endpoint = Endpoint::kCompletions;
  request.prompts = {{'a', 'b'}};
  request.prompt_texts = {"ab"};
  request.echo = true;
  request.stop = {"bc"};
  Begin(request);
  stream().AddStarted(2);
  stream().AddToken('c');
  stream().AddFinished(FinishReason::kLength);
  stream().AddDone();
  PollAll();
  EXPECT_EQ(texts_[0], "abc");
}

TEST_F(StreamGenerationTest, BestOfReturnsTheBestByMeanLogprob) {
  PreparedRequest request;
  request.endpoint = Endpoint::kCompletions;
  request.best_of = 3;
  request.sampling.num_choices = 2;
  Begin(request);
  stream().AddStarted(3);
  const float logprobs[] = {-3.0F, -1.0F, -2.0F};
  for (const uint32_t j : {0U, 1U, 2U}) {
    for (uint32_t i = 0; i <= 2 - j; ++i) {  // lengths differ, so that a sum would rank otherwise
      stream().AddToken(static_cast<TokenId>('a' + j), j, logprobs[j]);
    }
    stream().AddFinished(FinishReason::kLength, j);
  }
  EXPECT_EQ(PollAll().size(), 1U) << "nothing is shown before the ranking";
  stream().AddDone();
  PollAll();
  EXPECT_THAT(texts_, ElementsAre("bb", "c"));
  ASSERT_EQ(finished_.size(), 2U);
  EXPECT_EQ(finished_[0].choice, 0U);
  EXPECT_EQ(finished_[1].choice, 1U);
  EXPECT_EQ(usage_->usage.completion_tokens, 6U) << "all sampled choices count";
}

TEST_F(StreamGenerationTest, ProgressIsSentOnRequestAndAtMostTwicePerSecond) {
  PreparedRequest request;
  request.progress = true;
  Begin(request);
  generation_->ReportQueued(4);
  const auto add_prefill = [this](uint32_t processed) {
    engine::StreamEvent event;
    event.kind = engine::StreamEvent::Kind::kPrefill;
    event.processed = processed;
    event.stats.prompt_tokens = 3;
    stream().Add(std::move(event));
  };
  add_prefill(1);
  std::vector<GenerationEvent> events = PollAll();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_TRUE(std::get<ProgressEvent>(events[0]).queued);
  EXPECT_EQ(std::get<ProgressEvent>(events[0]).queue_position, 4U);
  clock_.Advance(std::chrono::milliseconds(500));
  add_prefill(2);
  add_prefill(3);
  events = PollAll();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(std::get<ProgressEvent>(events[0]).processed_tokens, 2U);
}

struct EndRow {
  EndCause cause;
  int status;
  const char* code;
};

TEST_F(StreamGenerationTest, EveryBadEndHasItsError) {
  for (const EndRow& row : {EndRow{EndCause::kQueueTimeout, 503, "queue_timeout"},
                            EndRow{EndCause::kRequestTimeout, 504, "generation_timeout"},
                            EndRow{EndCause::kDeadline, 504, "generation_timeout"},
                            EndRow{EndCause::kShutdown, 503, "shutting_down"},
                            EndRow{EndCause::kDisplaced, 429, "queue_full"},
                            EndRow{EndCause::kOutOfMemory, 400, "kv_capacity_exceeded"},
                            EndRow{EndCause::kNoTokenAllowed, 500, "grammar_dead_end"},
                            EndRow{EndCause::kInternal, 500, "internal_error"},
                            EndRow{EndCause::kAdmin, 499, "request_cancelled"},
                            EndRow{EndCause::kSlowReader, 499, "request_cancelled"},
                            EndRow{EndCause::kClientGone, 499, "request_cancelled"}}) {
    streams_.clear();
    error_.reset();
    Begin({});
    stream().AddStarted(3);
    stream().AddToken('a');
    stream().AddFinished(FinishReason::kAborted);
    stream().AddDone(row.cause, absl::InternalError("details"));
    PollAll();
    ASSERT_TRUE(error_.has_value()) << row.code;
    EXPECT_EQ(error_->code, row.code);
    EXPECT_EQ(error_->http_status, row.status) << row.code;
    EXPECT_EQ(error_->message.find("details"), std::string::npos) << "only the log says more";
    EXPECT_TRUE(finished_.empty());
    EXPECT_TRUE(generation_->Done());
  }
}

TEST_F(StreamGenerationTest, OneFailingPromptEndsTheOthers) {
  PreparedRequest request;
  request.prompts = {{'a'}, {'b'}};
  Begin(request);
  stream(0).AddStarted(1);
  stream(1).AddDone(EndCause::kDisplaced, absl::ResourceExhaustedError(""));
  PollAll();
  EXPECT_EQ(error_->code, "queue_full");
  EXPECT_GE(error_->retry_after, std::chrono::seconds(1));
  EXPECT_EQ(error_->should_retry, true);
  EXPECT_TRUE(stream(0).cancelled().has_value());
  EXPECT_EQ(PollAll().size(), 0U);
}

TEST_F(StreamGenerationTest, DestructionCancelsWhatRuns) {
  Begin({});
  stream().AddStarted(3);
  generation_.reset();
  EXPECT_EQ(stream().cancelled(), CancelCause::kClientGone);
}

TEST_F(StreamGenerationTest, TheReadyCallbackReachesEveryStream) {
  PreparedRequest request;
  request.prompts = {{'a'}, {'b'}};
  Begin(request);
  int calls = 0;
  generation_->SetReadyCallback([&calls] { ++calls; });
  stream(0).AddStarted(1);
  stream(1).AddStarted(1);
  EXPECT_EQ(calls, 2);
  generation_->SetReadyCallback({});
  stream(0).AddToken('a');
  EXPECT_EQ(calls, 2);
}

TEST_F(StreamGenerationTest, LatencyFamiliesMove) {
  Begin({});
  clock_.Advance(std::chrono::milliseconds(30));
  stream().AddStarted(3);
  stream().AddToken('a');
  PollAll();
  clock_.Advance(std::chrono::milliseconds(70));
  stream().AddToken('b');
  PollAll();
  clock_.Advance(std::chrono::milliseconds(20));
  stream().AddToken('c');
  PollAll();
  clock_.Advance(std::chrono::seconds(1));
  stream().AddFinished(FinishReason::kLength);
  stream().AddDone();
  PollAll();
  const std::string text = Exposed();
  const auto has = [&text](const char* line) { EXPECT_THAT(text, testing::HasSubstr(line)); };
  has("vllm:time_to_first_token_seconds_count{engine=\"0\"} 1");
  has("vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"0.04\"} 1");
  has("vllm:inter_token_latency_seconds_count{engine=\"0\"} 2");
  has("vllm:inter_token_latency_seconds_bucket{engine=\"0\",le=\"0.025\"} 1");
  has("vllm:request_time_per_output_token_seconds_bucket{engine=\"0\",le=\"0.05\"} 1");
  has("vllm:e2e_request_latency_seconds_bucket{engine=\"0\",le=\"1.5\"} 1");
}

// Deltas concatenate to what the tokenizer makes of all tokens.
TEST_F(StreamGenerationTest, StreamedTextConcatenatesToTheFullDecode) {
  constexpr uint32_t kSeed = 3;
  uint32_t state = kSeed;
  for (int round = 0; round < 300; ++round) {
    streams_.clear();
    texts_.assign(1, "");
    Begin({});
    stream().AddStarted(3);
    std::vector<TokenId> ids;
    for (int i = 0; i < 20; ++i) {
      state = state * 1664525U + 1013904223U;
      // Bytes of a few scripts, words, halves of characters.
      const TokenId id = (state >> 16) % 3 == 0
                             ? kFirstWord + static_cast<TokenId>((state >> 8) % 8)
                             : static_cast<TokenId>((state >> 8) % 256);
      ids.push_back(id);
      stream().AddToken(id);
    }
    stream().AddFinished(FinishReason::kLength);
    stream().AddDone();
    PollAll();
    ASSERT_EQ(texts_[0], ToValidUtf8(*tokenizer_.Decode(ids, true))) << "seed " << kSeed;
  }
}

}  // namespace
}  // namespace spindle::serving
