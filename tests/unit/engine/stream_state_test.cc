#include "engine/stream_state.h"

#include <thread>

#include <gtest/gtest.h>

#include "engine/inbox.h"
#include "engine/throughput.h"

namespace spindle::engine {
namespace {

class StreamStateTest : public ::testing::Test {
 protected:
  std::shared_ptr<StreamState> Make(uint32_t num_choices, uint32_t capacity) {
    return std::make_shared<StreamState>(inbox_, StreamState::Info{}, num_choices, capacity);
  }

  static StreamEvent Event(StreamEvent::Kind kind, TokenId token = 0) {
    StreamEvent event;
    event.kind = kind;
    event.token = token;
    return event;
  }

  // Undelivered attention would keep the streams, which keep the inbox.
  void TearDown() override { NumAttended(); }

  size_t NumAttended() {
    Inbox::Mail mail;
    inbox_->Drain(&mail);
    return mail.attention.size();
  }

  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>(EngineOptions{});
};

TEST_F(StreamStateTest, DeliversInOrderAroundTheRing) {
  auto stream = Make(1, 3);
  StreamEvent event;
  TokenId next = 0;
  TokenId expected = 0;
  for (int round = 0; round < 10; ++round) {
    while (stream->Room() > 0) {
      stream->Push(Event(StreamEvent::Kind::kToken, next++));
    }
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(stream->Next(&event));
      EXPECT_EQ(event.token, expected++);
    }
  }
}

TEST_F(StreamStateTest, EndsFitIntoAFullStream) {
  auto stream = Make(2, 1);
  stream->Push(Event(StreamEvent::Kind::kStarted));
  EXPECT_EQ(stream->Room(), 1U) << "the beginning takes no token's room";
  stream->Push(Event(StreamEvent::Kind::kToken));
  EXPECT_EQ(stream->Room(), 0U);
  stream->Push(Event(StreamEvent::Kind::kFinished));
  stream->Push(Event(StreamEvent::Kind::kFinished));
  stream->Push(Event(StreamEvent::Kind::kDone));
  StreamEvent event;
  int count = 0;
  while (stream->Next(&event)) {
    ++count;
  }
  EXPECT_EQ(count, 5);
  EXPECT_EQ(event.kind, StreamEvent::Kind::kDone);
}

TEST_F(StreamStateTest, CallsBackOncePerWaitingConsumer) {
  auto stream = Make(1, 10);
  int calls = 0;
  stream->SetReadyCallback([&calls] { ++calls; });
  EXPECT_EQ(calls, 0);
  stream->Push(Event(StreamEvent::Kind::kToken));
  stream->Push(Event(StreamEvent::Kind::kToken));
  EXPECT_EQ(calls, 1) << "the consumer was told already";
  StreamEvent event;
  while (stream->Next(&event)) {
  }
  stream->Push(Event(StreamEvent::Kind::kToken));
  EXPECT_EQ(calls, 2);
  stream->SetReadyCallback([&calls] { calls += 100; });
  EXPECT_EQ(calls, 102) << "an event is waiting already";
  stream->SetReadyCallback({});
  while (stream->Next(&event)) {
  }
  stream->Push(Event(StreamEvent::Kind::kToken));
  EXPECT_EQ(calls, 102);
}

TEST_F(StreamStateTest, ExaminedTokensLagByOne) {
  auto stream = Make(1, 10);
  stream->Push(Event(StreamEvent::Kind::kToken));
  stream->Push(Event(StreamEvent::Kind::kToken));
  EXPECT_EQ(stream->ExaminedTokens(0), 0U);
  StreamEvent event;
  ASSERT_TRUE(stream->Next(&event));
  EXPECT_EQ(stream->ExaminedTokens(0), 0U);
  ASSERT_TRUE(stream->Next(&event));
  EXPECT_EQ(stream->ExaminedTokens(0), 1U);
}

TEST_F(StreamStateTest, WishesAreListedOnceUntilTaken) {
  auto stream = Make(2, 10);
  stream->StopChoice(1, 7);
  stream->Cancel(CancelCause::kDeadline);
  stream->Cancel(CancelCause::kAdmin);
  EXPECT_EQ(NumAttended(), 1U);
  std::vector<std::optional<uint32_t>> stops;
  EXPECT_EQ(stream->TakeWishes(&stops), CancelCause::kDeadline) << "the first cause stays";
  EXPECT_EQ(stops, (std::vector<std::optional<uint32_t>>{std::nullopt, 7}));
}

TEST_F(StreamStateTest, WishesAfterTheEndAreIgnored) {
  auto stream = Make(1, 10);
  stream->Push(Event(StreamEvent::Kind::kDone));
  stream->Cancel(CancelCause::kAdmin);
  stream->StopChoice(0, 1);
  EXPECT_EQ(NumAttended(), 0U);
}

TEST_F(StreamStateTest, ReaderWakesTheEngineWhenHalfIsFree) {
  auto stream = Make(1, 4);
  for (int i = 0; i < 4; ++i) {
    stream->Push(Event(StreamEvent::Kind::kToken));
  }
  stream->WaitForRoom();
  StreamEvent event;
  ASSERT_TRUE(stream->Next(&event));
  EXPECT_EQ(NumAttended(), 0U);
  ASSERT_TRUE(stream->Next(&event));
  EXPECT_EQ(NumAttended(), 1U);
}

TEST_F(StreamStateTest, GivingUpTheHandleCancels) {
  auto stream = Make(1, 4);
  std::make_shared<StreamHandle>(stream).reset();
  std::vector<std::optional<uint32_t>> stops;
  EXPECT_EQ(stream->TakeWishes(&stops), CancelCause::kClientGone);
}

TEST(Throughput, RetryAfterFollowsMeasuredRatesWithinItsRange) {
  using std::chrono::milliseconds;
  Throughput throughput(4);
  EXPECT_EQ(throughput.RetryAfter(100, 100000), milliseconds(1000)) << "nothing is known yet";
  throughput.ObservePrefill(1000, std::chrono::seconds(1));
  EXPECT_EQ(throughput.RetryAfter(0, 5000), milliseconds(5000));
  EXPECT_EQ(throughput.RetryAfter(0, 500000), milliseconds(60000));
  throughput.ObserveCompletion(200, std::chrono::seconds(8));
  EXPECT_EQ(throughput.RetryAfter(2, 5000), milliseconds(9000));
  EXPECT_EQ(throughput.mean_output_tokens(), 200.0);
  for (int i = 0; i < 200; ++i) {
    throughput.ObserveCompletion(100, std::chrono::seconds(8));
  }
  EXPECT_NEAR(throughput.mean_output_tokens(), 100.0, 1.0);
}

}  // namespace
}  // namespace spindle::engine
