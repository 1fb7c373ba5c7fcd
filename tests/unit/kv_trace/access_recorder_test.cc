#include "kv/trace/access_recorder.h"

#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "gated_sink.h"
#include "kv/trace/trace_queue.h"
#include "support/allocation_counter.h"

namespace spindle::kv {
namespace {

using Ending = AccessTraceReader::Ending;

AccessTraceHeader SmallHeader() {
  AccessTraceHeader header;
  header.geometry = {.num_layers = 4, .num_kv_heads = 3, .head_dim = 64};
  header.algorithm = "dense";
  return header;
}

GroupRef Group(uint32_t set, uint16_t layer, uint16_t head) {
  return {CacheSetId(set), LayerIdx(layer), KvHeadIdx(head)};
}

// A plan in which the pages at `misses` had to be loaded.
GroupPlan PlanWith(const std::vector<uint32_t>& misses) {
  GroupPlan plan(16);
  for (const uint32_t index : misses) {
    plan.loads.push_back({index, 0});
  }
  return plan;
}

// What a record said.
struct Line {
  uint32_t step;
  uint16_t request;
  uint16_t layer;
  uint8_t head;
  AccessKind kind;
  Caching caching;
  std::vector<uint32_t> ids;
  std::vector<uint8_t> hit_bits;

  bool operator==(const Line&) const = default;
};

std::vector<Line> ReadLines(const std::string& bytes, Ending* ending) {
  std::vector<Line> lines;
  auto reader =
      AccessTraceReader::Open({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  EXPECT_TRUE(reader.ok()) << reader.status();
  AccessRecord record;
  for (;;) {
    const auto found = reader->Next(&record);
    EXPECT_TRUE(found.ok()) << found.status();
    if (!found.ok() || !*found) {
      break;
    }
    lines.push_back({record.step,
                     record.request,
                     record.layer,
                     record.head,
                     record.kind,
                     record.caching,
                     {record.ids.begin(), record.ids.end()},
                     {record.hit_bits.begin(), record.hit_bits.end()}});
  }
  *ending = reader->ending();
  return lines;
}

class AccessRecorderTest : public ::testing::Test {
 protected:
  AccessRecorderTest() { gate_.Open(); }

  AccessRecorder Make(uint32_t num_workers, uint64_t buffer_bytes) {
    auto writer = AccessTraceWriter::Create(gate_.NewSink(), SmallHeader(), kMaxAccessTraceBytes);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return AccessRecorder(*std::move(writer), num_workers, buffer_bytes);
  }

  Gate gate_;
};

TEST_F(AccessRecorderTest, WritesWhatHappenedInOrder) {
  AccessRecorder recorder = Make(2, 1 << 20);
  recorder.Resize(CacheSetId(5), 24);
  recorder.BeginStep();
  recorder.Prefill(CacheSetId(5), 0, 7);
  const std::vector<uint32_t> pages = {0, 3, 4, 5, 8, 9, 20, 21, 22};
  recorder.Select(1, Group(5, 3, 2), Caching::kFill, pages, PlanWith({0, 8}));
  recorder.Select(0, Group(5, 3, 1), Caching::kLru, {}, PlanWith({}));
  recorder.Fork(CacheSetId(6), CacheSetId(5));
  recorder.Pause(CacheSetId(5));
  recorder.BeginStep();
  recorder.Append(CacheSetId(6), 22, 24);
  recorder.Select(0, Group(6, 0, 0), Caching::kStream, std::vector<uint32_t>{7}, PlanWith({}));
  recorder.End(CacheSetId(6));
  recorder.Finish();
  Ending ending = Ending::kNotReached;
  const std::vector<Line> lines = ReadLines(gate_.bytes(), &ending);
  EXPECT_EQ(ending, Ending::kWhole);
  const std::vector<Line> expected = {
      {0, 5, kAllLayers, kAllHeads, AccessKind::kResize, Caching::kLru, {24}, {}},
      {1, 5, kAllLayers, kAllHeads, AccessKind::kPrefill, Caching::kLru, {0, 7}, {}},
      // By worker; groups are independent.
      {1, 5, 3, 1, AccessKind::kSelect, Caching::kLru, {}, {}},
      {1, 5, 3, 2, AccessKind::kSelect, Caching::kFill, pages, {0xFE, 0x00}},
      {1, 6, kAllLayers, kAllHeads, AccessKind::kFork, Caching::kLru, {5}, {}},
      {1, 5, kAllLayers, kAllHeads, AccessKind::kPause, Caching::kLru, {}, {}},
      {2, 6, kAllLayers, kAllHeads, AccessKind::kAppend, Caching::kLru, {22, 23}, {}},
      {2, 6, 0, 0, AccessKind::kSelect, Caching::kStream, {7}, {0x01}},
      {2, 6, kAllLayers, kAllHeads, AccessKind::kEnd, Caching::kLru, {}, {}}};
  EXPECT_EQ(lines, expected);
  EXPECT_EQ(recorder.num_kept_records(), expected.size());
  EXPECT_EQ(recorder.num_dropped_records(), 0U);
}

TEST_F(AccessRecorderTest, PassesOnManyBlocksPerStep) {
  AccessRecorder recorder = Make(1, 4 << 20);
  std::vector<uint32_t> pages(kMaxRecordIds);
  std::iota(pages.begin(), pages.end(), 0U);
  recorder.BeginStep();
  for (uint16_t layer = 0; layer < 4; ++layer) {
    for (uint16_t head = 0; head < 3; ++head) {
      recorder.Select(0, Group(0, layer, head), Caching::kFill, pages, PlanWith({65534}));
      recorder.Select(
          0, Group(1, layer, head), Caching::kFill, std::span(pages).first(40), PlanWith({}));
    }
  }
  recorder.Finish();
  Ending ending = Ending::kNotReached;
  const std::vector<Line> lines = ReadLines(gate_.bytes(), &ending);
  EXPECT_EQ(ending, Ending::kWhole);
  ASSERT_EQ(lines.size(), 24U);
  EXPECT_EQ(lines[0].ids, pages);
  EXPECT_EQ(lines[0].hit_bits.back(), 0x3F);  // 65,535 = 8 · 8,191 + 7, the last one missing
}

// A worker that has no room for a record takes no later one either: groups have no gaps.
TEST_F(AccessRecorderTest, AFullBufferEndsTheTrace) {
  AccessRecorder recorder = Make(2, 5000);
  std::vector<uint32_t> many(500);
  std::iota(many.begin(), many.end(), 0U);
  constexpr uint32_t kSteps = 5;
  uint64_t num_records = 0;
  for (uint32_t step = 1; step <= kSteps; ++step) {
    recorder.BeginStep();
    for (uint16_t layer = 0; layer < 4; ++layer) {
      // The second worker has enough room, except in step 3, where a small one would still fit.
      recorder.Select(0, Group(0, layer, 0), Caching::kLru, {}, PlanWith({}));
      const bool is_large = step == 3;
      recorder.Select(1,
                      Group(0, layer, 1),
                      Caching::kLru,
                      std::span(many).first(is_large ? 500 : 3),
                      PlanWith({}));
      recorder.Select(1, Group(0, layer, 1), Caching::kLru, {}, PlanWith({}));
      num_records += 3;
    }
  }
  recorder.Finish();
  Ending ending = Ending::kNotReached;
  const std::vector<Line> lines = ReadLines(gate_.bytes(), &ending);
  EXPECT_EQ(ending, Ending::kLimit);
  EXPECT_EQ(lines.back().step, 3U);
  EXPECT_EQ(lines.size(), recorder.num_kept_records());
  EXPECT_EQ(lines.size() + recorder.num_dropped_records(), num_records);
  std::map<std::pair<uint16_t, uint8_t>, std::vector<uint32_t>> sizes;
  for (const Line& line : lines) {
    sizes[{line.layer, line.head}].push_back(static_cast<uint32_t>(line.ids.size()));
  }
  const std::vector<uint32_t> expected = {3, 0, 3, 0, 500, 0};
  uint32_t num_cut = 0;
  for (const auto& [group, found] : sizes) {
    if (group.second == 1) {
      ASSERT_LE(found.size(), expected.size());
      EXPECT_TRUE(std::equal(found.begin(), found.end(), expected.begin()));
      num_cut += found.size() < expected.size() ? 1U : 0U;
    }
  }
  EXPECT_GT(num_cut, 0U);
}

TEST_F(AccessRecorderTest, ADiskThatHangsEndsTheTraceAndBlocksNobody) {
  Gate hanging;
  TraceQueue queue(100'000);
  auto writer =
      AccessTraceWriter::Create(queue.Add(hanging.NewSink()), SmallHeader(), kMaxAccessTraceBytes);
  ASSERT_TRUE(writer.ok()) << writer.status();
  AccessRecorder recorder(*std::move(writer), 1, 1 << 20);
  std::vector<uint32_t> pages(1000);
  std::iota(pages.begin(), pages.end(), 0U);
  constexpr uint64_t kSteps = 300;
  for (uint64_t step = 0; step < kSteps; ++step) {
    recorder.BeginStep();
    recorder.Select(0, Group(0, 0, 0), Caching::kLru, pages, PlanWith({}));
  }
  EXPECT_GT(recorder.num_dropped_records(), 0U);
  hanging.Open();
  queue.Drain();
  recorder.Finish();
  queue.Close();
  Ending ending = Ending::kNotReached;
  const std::vector<Line> lines = ReadLines(hanging.bytes(), &ending);
  EXPECT_EQ(ending, Ending::kLimit);
  EXPECT_GT(lines.size(), 50U);  // a block
  EXPECT_EQ(lines.size() + recorder.num_dropped_records(), kSteps);
}

TEST_F(AccessRecorderTest, WorkersAllocateNothing) {
  AccessRecorder recorder = Make(1, 1 << 20);
  std::vector<uint32_t> pages(3000);
  std::iota(pages.begin(), pages.end(), 0U);
  const GroupPlan plan = PlanWith({1, 2, 2999});
  recorder.BeginStep();
  const uint64_t before = test::AllocationCount();
  for (uint16_t i = 0; i < 1000; ++i) {  // more than it holds
    recorder.Select(0, Group(0, i % 4, i % 3), Caching::kLru, pages, plan);
  }
  EXPECT_EQ(test::AllocationCount(), before);
  recorder.Finish();
  EXPECT_GT(recorder.num_dropped_records(), 0U);
}

}  // namespace
}  // namespace spindle::kv
