#include "engine/scheduler_policy.h"

#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spindle::engine {
namespace {

using std::chrono::seconds;

TEST(SchedulerPolicy, PriorityClassesAreFiveEqualRanges) {
  struct Row {
    int32_t priority;
    uint32_t expected;
  };

  constexpr std::array<Row, 10> kRows = {{{-100, 0},
                                          {-60, 0},
                                          {-59, 1},
                                          {-20, 1},
                                          {-19, 2},
                                          {0, 2},
                                          {20, 2},
                                          {21, 3},
                                          {61, 4},
                                          {100, 4}}};
  for (const Row& row : kRows) {
    EXPECT_EQ(PriorityClass(row.priority), row.expected) << "priority " << row.priority;
  }
}

TEST(SchedulerPolicy, AgingRaisesOneClassPerInterval) {
  EXPECT_EQ(AgedClass(4, seconds(0), seconds(10)), 4U);
  EXPECT_EQ(AgedClass(4, seconds(9), seconds(10)), 4U);
  EXPECT_EQ(AgedClass(4, seconds(10), seconds(10)), 3U);
  EXPECT_EQ(AgedClass(4, seconds(39), seconds(10)), 1U);
  EXPECT_EQ(AgedClass(4, seconds(4000), seconds(10)), 0U);
  EXPECT_EQ(AgedClass(4, seconds(4000), seconds(0)), 4U);
}

TEST(SchedulerPolicy, WaitingOrder) {
  struct Row {
    const char* name;
    WaitingRank first;
    WaitingRank second;
    SchedulingPolicy policy;
  };
  using enum SchedulingPolicy;
  const std::vector<Row> rows = {
      {"lower class first", {1, false, 0, 9, 0}, {2, false, 0, 1, 0}, kPriority},
      {"class ignored by fcfs", {2, false, 0, 1, 0}, {1, false, 0, 9, 0}, kFcfs},
      {"earlier first", {2, false, 0, 1, 0}, {2, false, 0, 2, 0}, kPriority},
      {"resumed first in its class", {2, true, 0, 7, 0}, {2, false, 0, 2, 0}, kPriority},
      {"resumed not before a better class", {1, false, 0, 7, 0}, {2, true, 0, 2, 0}, kPriority},
      {"resumed in order of arrival", {2, true, 0, 2, 0}, {2, true, 0, 7, 0}, kPriority},
      {"resumed first also in fcfs", {4, true, 0, 7, 0}, {0, false, 0, 2, 0}, kFcfs},
      {"least served first", {2, false, 5, 7, 0}, {2, false, 6, 2, 0}, kPriority},
      {"a better class before the least served",
       {1, false, 6, 7, 0},
       {2, false, 5, 2, 0},
       kPriority},
      {"least served also in fcfs", {4, false, 5, 7, 0}, {0, false, 6, 2, 0}, kFcfs},
      {"resumed before the least served", {2, true, 6, 7, 0}, {2, false, 5, 2, 0}, kPriority},
      {"choices in order", {2, true, 0, 2, 0}, {2, true, 0, 2, 1}, kPriority},
  };
  for (const Row& row : rows) {
    EXPECT_TRUE(RunsBefore(row.first, row.second, row.policy)) << row.name;
    EXPECT_FALSE(RunsBefore(row.second, row.first, row.policy)) << row.name;
  }
}

TEST(SchedulerPolicy, Victims) {
  struct Row {
    const char* name;
    std::vector<VictimView> running;  // class, arrival, choice, preemptions, remaining
    VictimRule rule;
    SchedulingPolicy policy;
    std::optional<size_t> expected;
  };
  using enum SchedulingPolicy;
  using enum VictimRule;
  const std::vector<Row> rows = {
      {"nobody", {}, kNormal, kPriority, std::nullopt},
      {"lowest class", {{2, 5, 0, 0, 99}, {4, 1, 0, 0, 99}}, kNormal, kPriority, 1},
      {"fcfs ignores classes", {{2, 5, 0, 0, 99}, {4, 1, 0, 0, 99}}, kNormal, kFcfs, 0},
      {"youngest of the class", {{2, 5, 0, 0, 99}, {2, 9, 0, 0, 99}}, kNormal, kPriority, 1},
      {"last choice", {{2, 5, 0, 0, 99}, {2, 5, 1, 0, 99}}, kNormal, kPriority, 1},
      {"spares the one near its end", {{2, 5, 0, 0, 99}, {2, 9, 0, 0, 16}}, kNormal, kPriority, 0},
      {"17 tokens are not near", {{2, 5, 0, 0, 99}, {2, 9, 0, 0, 17}}, kNormal, kPriority, 1},
      {"spares after three times", {{2, 5, 0, 0, 99}, {2, 9, 0, 3, 99}}, kNormal, kPriority, 0},
      {"not after two", {{2, 5, 0, 0, 99}, {2, 9, 0, 2, 99}}, kNormal, kPriority, 1},
      {"all spared", {{2, 5, 0, 3, 99}, {2, 9, 0, 0, 2}}, kNormal, kPriority, std::nullopt},
      {"last resort spares nobody", {{2, 5, 0, 3, 99}, {2, 9, 0, 0, 2}}, kLastResort, kPriority, 1},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(ChooseVictim(row.running, row.rule, row.policy), row.expected) << row.name;
  }
}

TEST(SchedulerPolicy, ReservedOutput) {
  EXPECT_EQ(ReservedOutput(10, 0.0), 10U);
  EXPECT_EQ(ReservedOutput(10000, 0.0), 256U);
  EXPECT_EQ(ReservedOutput(10000, 500.2), 1001U);
  EXPECT_EQ(ReservedOutput(600, 500.0), 600U);
  EXPECT_EQ(ReservedOutput(0, 500.0), 0U);
}

TEST(SchedulerPolicy, MemoryGate) {
  struct Row {
    const char* name;
    MemoryView memory;  // capacity, available, outstanding, anything_running
    uint64_t needed;
    uint64_t reserved;
    bool expected;
  };

  const std::vector<Row> rows = {
      {"all of an empty store", {100, 100, 0, false}, 100, 50, true},
      {"more than the store", {100, 100, 0, false}, 101, 0, false},
      {"exactly above the watermark", {100, 50, 0, true}, 30, 15, true},
      {"one below it", {100, 50, 0, true}, 30, 16, false},
      {"growth of others counts", {100, 50, 10, true}, 30, 6, false},
      {"the watermark rounds up", {10, 5, 0, true}, 4, 0, true},
      {"so that one stays free", {10, 5, 0, true}, 5, 0, false},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(FitsMemory(row.memory, row.needed, row.reserved), row.expected) << row.name;
  }
}

constexpr uint32_t kAny = 1U << 30;

TEST(RowBudget, FinishesShortPrefillsTogether) {
  RowBudget rows(512, 12, true);
  EXPECT_EQ(rows.Place(100, kAny), std::optional<uint32_t>(100));
  EXPECT_EQ(rows.Place(300, kAny), std::optional<uint32_t>(300));
  EXPECT_EQ(rows.Place(100, kAny), std::optional<uint32_t>(100));
  EXPECT_FALSE(rows.CanPlace(1, kAny));
  EXPECT_EQ(rows.LongRows(), 0U);
}

TEST(RowBudget, LongChunkIsAMultipleOf64) {
  RowBudget rows(512, 12, true);
  EXPECT_EQ(rows.Place(5000, kAny), std::nullopt);
  EXPECT_EQ(rows.LongRows(), 448U);
}

TEST(RowBudget, OneLongPrefillAndOneShortRider) {
  RowBudget rows(512, 0, true);
  EXPECT_EQ(rows.Place(5000, kAny), std::nullopt);
  EXPECT_FALSE(rows.CanPlace(5000, kAny)) << "a second long one";
  EXPECT_FALSE(rows.CanPlace(129, kAny)) << "more than a quarter of the budget";
  EXPECT_TRUE(rows.CanPlace(128, kAny));
  EXPECT_EQ(rows.Place(100, kAny), std::optional<uint32_t>(100));
  EXPECT_FALSE(rows.CanPlace(20, kAny)) << "a second rider";
  EXPECT_EQ(rows.LongRows(), 384U);
}

TEST(RowBudget, PrefillProgressesHoweverManyRowsDecode) {
  RowBudget rows(64, 200, true);
  EXPECT_EQ(rows.Place(1000, kAny), std::nullopt);
  EXPECT_EQ(rows.LongRows(), 64U);
}

TEST(RowBudget, ALongOneNeedsAWholeChunk) {
  RowBudget rows(128, 0, true);
  EXPECT_EQ(rows.Place(100, kAny), std::optional<uint32_t>(100));
  EXPECT_TRUE(rows.CanPlace(28, kAny));
  EXPECT_FALSE(rows.CanPlace(29, kAny));
}

TEST(RowBudget, BlocksComeWhole) {
  constexpr uint32_t kGrain = 128;
  RowBudget rows(512, 12, true);
  EXPECT_EQ(rows.Place(5000, kAny, kGrain), std::nullopt);
  EXPECT_EQ(rows.LongRows(), 384U);
  EXPECT_EQ(rows.Place(100, kAny), std::optional<uint32_t>(100)) << "a rider";
  EXPECT_EQ(rows.LongRows(), 384U);
  RowBudget small(64, 200, true);
  EXPECT_EQ(small.Place(1000, kAny, kGrain), std::nullopt) << "whatever else there is";
  EXPECT_EQ(small.LongRows(), 128U);
  RowBudget second(200, 0, true);
  EXPECT_EQ(second.Place(100, kAny, kGrain), std::optional<uint32_t>(100));
  EXPECT_FALSE(second.CanPlace(1000, kAny, kGrain)) << "less than a block is left";
  EXPECT_TRUE(second.CanPlace(1000, kAny));
}

TEST(RowBudget, UnchunkedPromptsGoInOnePiece) {
  RowBudget rows(128, 100, false);
  EXPECT_EQ(rows.Place(1000, kAny), std::optional<uint32_t>(1000));
  EXPECT_FALSE(rows.CanPlace(1, kAny));
}

TEST(RowBudget, ABoundOnLogitRowsMakesAPrefillLong) {
  RowBudget rows(512, 0, true);
  EXPECT_FALSE(rows.CanPlace(100, 0));
  EXPECT_EQ(rows.Place(100, 64), std::nullopt);
  EXPECT_EQ(rows.LongRows(), 64U);
  RowBudget narrow(512, 0, true);
  EXPECT_EQ(narrow.Place(100, 5), std::nullopt);
  EXPECT_EQ(narrow.LongRows(), 5U);
}

}  // namespace
}  // namespace spindle::engine
