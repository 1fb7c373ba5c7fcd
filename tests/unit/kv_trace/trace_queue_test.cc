#include "kv/trace/trace_queue.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "gated_sink.h"

namespace spindle::kv {
namespace {

absl::Status Write(TraceSink& sink, std::string_view text) {
  return sink.Write({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

TEST(TraceQueue, WritesInOrderAndEachToItsFile) {
  Gate first;
  Gate second;
  first.Open();
  second.Open();
  TraceQueue queue(1 << 20);
  const auto to_first = queue.Add(first.NewSink());
  const auto to_second = queue.Add(second.NewSink());
  std::string expected;
  for (int i = 0; i < 200; ++i) {
    const std::string text = std::to_string(i) + ",";
    ASSERT_TRUE(Write(*to_first, text).ok());
    ASSERT_TRUE(Write(*to_second, "-" + text).ok());
    expected += text;
  }
  queue.Drain();
  EXPECT_EQ(first.bytes(), expected);
  EXPECT_EQ(second.bytes().size(), expected.size() + 200);
}

TEST(TraceQueue, ADiskThatHangsFillsItAndBlocksNobody) {
  Gate gate;
  TraceQueue queue(10);
  const auto sink = queue.Add(gate.NewSink());
  ASSERT_TRUE(Write(*sink, "abcd").ok());
  gate.AwaitWriter();
  ASSERT_TRUE(Write(*sink, "efgh").ok());
  EXPECT_EQ(Write(*sink, "ijk").code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(Write(*sink, "lm").ok());  // smaller ones still fit
  gate.Open();
  queue.Drain();
  EXPECT_EQ(gate.bytes(), "abcdefghlm");
  EXPECT_TRUE(Write(*sink, "nopqrstuvw").ok());
  queue.Close();
  EXPECT_EQ(gate.bytes(), "abcdefghlmnopqrstuvw");
  EXPECT_EQ(Write(*sink, "x").code(), absl::StatusCode::kUnavailable);
}

TEST(TraceQueue, AnErrorEndsAllFiles) {
  Gate good;
  Gate bad;
  bad.Break();
  TraceQueue queue(1 << 20);
  const auto to_good = queue.Add(good.NewSink());
  const auto to_bad = queue.Add(bad.NewSink());
  ASSERT_TRUE(Write(*to_bad, "a").ok());
  bad.AwaitWriter();
  ASSERT_TRUE(Write(*to_good, "b").ok());
  bad.Open();
  good.Open();
  queue.Drain();
  EXPECT_EQ(Write(*to_good, "c").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Write(*to_bad, "d").code(), absl::StatusCode::kUnavailable);
  queue.Close();
  EXPECT_EQ(good.bytes() + bad.bytes(), "");
}

TEST(TraceQueue, WritesWhatWaitsBeforeItEnds) {
  Gate gate;
  {
    TraceQueue queue(1 << 20);
    const auto sink = queue.Add(gate.NewSink());
    ASSERT_TRUE(Write(*sink, "last words").ok());
    gate.Open();
  }
  EXPECT_EQ(gate.bytes(), "last words");
}

}  // namespace
}  // namespace spindle::kv
