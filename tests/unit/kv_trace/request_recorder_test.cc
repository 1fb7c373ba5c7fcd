#include "kv/trace/request_recorder.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/prefix_key.h"
#include "gated_sink.h"

namespace spindle::kv {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr RequestRecorder::Limits kRoomy{1 << 30, 1 << 20};

class RequestRecorderTest : public ::testing::Test {
 protected:
  RequestRecorderTest() { gate_.Open(); }

  RequestRecorder Make(const RequestRecorder::Limits& limits = kRoomy, uint8_t secret = 1) {
    Digest digest{};
    digest[0] = secret;
    return RequestRecorder(gate_.NewSink(), limits, digest, start_);
  }

  ArrivedRequest At(int64_t ms, uint32_t input_tokens = 1, std::vector<uint64_t> ids = {7}) {
    return {.at = start_ + std::chrono::milliseconds(ms),
            .input_tokens = input_tokens,
            .unit_ids = std::move(ids)};
  }

  // As FrontDesk asks for them.
  static std::vector<uint64_t> IdsOf(const RequestRecorder& recorder,
                                     const Digest& root,
                                     const std::vector<TokenId>& prompt) {
    const size_t full = prompt.size() / kStripeTokens * kStripeTokens;
    return recorder.UnitIds(root, StripeKeys(root, prompt), std::span(prompt).subspan(full));
  }

  TimePoint start_{std::chrono::seconds(5)};
  Gate gate_;
};

TEST_F(RequestRecorderTest, WritesTheFieldsOfMooncakesRelease) {
  RequestRecorder recorder = Make();
  const uint64_t number = recorder.Begin(At(27482, 513, {46, 9007199254740991}));
  EXPECT_EQ(gate_.bytes(), "");
  recorder.End(number, 52);
  EXPECT_EQ(gate_.bytes(),
            R"({"timestamp": 27482, "input_length": 513, "output_length": 52, )"
            R"("hash_ids": [46, 9007199254740991], "priority": 50})"
            "\n");
  recorder.Finish();
  EXPECT_THAT(gate_.bytes(), Not(HasSubstr("cut")));
}

TEST_F(RequestRecorderTest, PriorityIsHigherFirst) {
  RequestRecorder recorder = Make();
  for (const int32_t priority : {-100, 0, 100}) {
    ArrivedRequest request = At(0);
    request.priority = priority;
    recorder.End(recorder.Begin(std::move(request)), 0);
  }
  const std::string text = gate_.bytes();
  EXPECT_LT(text.find(R"("priority": 100})"), text.find(R"("priority": 50})"));
  EXPECT_LT(text.find(R"("priority": 50})"), text.find(R"("priority": 0})"));
}

TEST_F(RequestRecorderTest, LinesGoByArrivalWhoeverEndsFirst) {
  RequestRecorder recorder = Make();
  const uint64_t first = recorder.Begin(At(10));
  const uint64_t second = recorder.Begin(At(20));
  const uint64_t third = recorder.Begin(At(19));  // stamped by another thread
  recorder.End(third, 3);
  recorder.End(second, 2);
  EXPECT_EQ(gate_.bytes(), "");
  recorder.End(first, 1);
  const uint64_t fourth = recorder.Begin(At(30));
  recorder.End(fourth, 4);
  const std::string text = gate_.bytes();
  for (const char* part : {R"(10, "input_length": 1, "output_length": 1)",
                           R"(20, "input_length": 1, "output_length": 2)",
                           R"(20, "input_length": 1, "output_length": 3)",
                           R"(30, "input_length": 1, "output_length": 4)"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_EQ(recorder.num_kept_requests(), 4U);
}

TEST_F(RequestRecorderTest, IdsAreEqualWherePromptsAre) {
  const RequestRecorder recorder = Make();
  const Digest root = RootKey(
      {.model_fingerprint = "m", .kv_type = "bf16", .adapter = {}, .tenant = {}, .salt = {}});
  std::vector<TokenId> prompt(1500);
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<TokenId>(i * 7 % 1000);
  }
  const std::vector<uint64_t> ids = IdsOf(recorder, root, prompt);
  ASSERT_EQ(ids.size(), 3U);
  EXPECT_EQ(std::set<uint64_t>(ids.begin(), ids.end()).size(), 3U);
  EXPECT_EQ(IdsOf(recorder, root, prompt), ids);
  for (const uint64_t id : ids) {
    EXPECT_LT(id, uint64_t{1} << 53);
  }
  // The last token, in the open tail; the last stripe; the middle; the first token.
  for (const auto& [place, num_equal] :
       std::vector<std::pair<size_t, size_t>>{{1499, 2}, {1400, 2}, {600, 1}, {0, 0}}) {
    std::vector<TokenId> other = prompt;
    other[place] += 1;
    const std::vector<uint64_t> others = IdsOf(recorder, root, other);
    const auto mismatch = std::mismatch(ids.begin(), ids.end(), others.begin());
    EXPECT_EQ(static_cast<size_t>(mismatch.first - ids.begin()), num_equal) << place;
  }
  // One id per begun unit.
  for (const auto& [size, num_ids] :
       std::vector<std::pair<size_t, size_t>>{{1, 1}, {64, 1}, {511, 1}, {512, 1}, {513, 2}}) {
    std::vector<TokenId> shorter = prompt;
    shorter.resize(size);
    EXPECT_EQ(IdsOf(recorder, root, shorter).size(), num_ids) << size;
  }
}

TEST_F(RequestRecorderTest, IdsDifferByTenantSaltAndRun) {
  const std::vector<TokenId> prompt(700, 3);
  const auto root = [](std::string_view tenant, std::string_view salt) {
    return RootKey({.model_fingerprint = "m",
                    .kv_type = "bf16",
                    .adapter = {},
                    .tenant = tenant,
                    .salt = salt});
  };
  const RequestRecorder recorder = Make();
  const RequestRecorder other_run = Make(kRoomy, 2);
  std::set<uint64_t> all;
  for (const std::vector<uint64_t>& ids : {IdsOf(recorder, root("a", ""), prompt),
                                           IdsOf(recorder, root("b", ""), prompt),
                                           IdsOf(recorder, root("a", "salt"), prompt),
                                           IdsOf(other_run, root("a", ""), prompt)}) {
    ASSERT_EQ(ids.size(), 2U);
    all.insert(ids.begin(), ids.end());
  }
  EXPECT_EQ(all.size(), 8U);
}

TEST_F(RequestRecorderTest, TenantsHaveOtherNames) {
  RequestRecorder recorder = Make();
  std::vector<std::string> lines;
  for (const char* tenant : {"acme", "acme", "umbrella", ""}) {
    const size_t before = gate_.bytes().size();
    ArrivedRequest request = At(0);
    request.tenant = tenant;
    recorder.End(recorder.Begin(std::move(request)), 0);
    lines.push_back(gate_.bytes().substr(before));
  }
  EXPECT_THAT(lines[0], HasSubstr(R"("tenant": "t)"));
  EXPECT_EQ(lines[0], lines[1]);
  EXPECT_NE(lines[0], lines[2]);
  EXPECT_THAT(lines[3], Not(HasSubstr("tenant")));
  EXPECT_THAT(gate_.bytes(), Not(HasSubstr("acme")));
}

// One that runs for ever holds back all that come later.
TEST_F(RequestRecorderTest, HoldsBackABoundedNumberAndEndsThere) {
  RequestRecorder recorder = Make({1 << 30, 20'000});
  const uint64_t oldest = recorder.Begin(At(0));
  std::vector<uint64_t> numbers;
  for (int i = 1; i <= 1000; ++i) {
    numbers.push_back(recorder.Begin(At(i)));
    recorder.End(numbers.back(), 1);
  }
  EXPECT_EQ(gate_.bytes(), "");
  EXPECT_GT(recorder.num_dropped_requests(), 500U);
  recorder.End(oldest, 9);
  // No gap: nothing that comes after the first drop.
  recorder.End(recorder.Begin(At(2000)), 1);
  recorder.Finish();
  const std::string text = gate_.bytes();
  EXPECT_EQ(recorder.num_kept_requests() + recorder.num_dropped_requests(), 1002U);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'),
            static_cast<int64_t>(recorder.num_kept_requests()) + 1);
  EXPECT_GT(recorder.num_kept_requests(), 50U);
  EXPECT_THAT(text,
              HasSubstr(R"({"timestamp": 2000, "input_length": 0, "output_length": 0, )"
                        R"("hash_ids": [], "cut": true})"
                        "\n"));
}

TEST_F(RequestRecorderTest, StaysBelowItsLimit) {
  RequestRecorder recorder = Make({5000, 1 << 20});
  for (int i = 0; i < 200; ++i) {
    recorder.End(recorder.Begin(At(i)), 1);
  }
  recorder.Finish();
  EXPECT_LE(gate_.bytes().size(), 5000U);
  EXPECT_GT(gate_.bytes().size(), 4700U);
  EXPECT_TRUE(gate_.bytes().ends_with("\"cut\": true}\n"));
  EXPECT_EQ(recorder.num_kept_requests() + recorder.num_dropped_requests(), 200U);
}

TEST_F(RequestRecorderTest, EndsAtAnError) {
  RequestRecorder recorder = Make();
  recorder.End(recorder.Begin(At(0)), 1);
  gate_.Break();
  recorder.End(recorder.Begin(At(1)), 1);
  recorder.End(recorder.Begin(At(2)), 1);
  EXPECT_EQ(recorder.num_kept_requests(), 1U);
  EXPECT_EQ(recorder.num_dropped_requests(), 2U);
  recorder.Finish();
}

}  // namespace
}  // namespace spindle::kv
