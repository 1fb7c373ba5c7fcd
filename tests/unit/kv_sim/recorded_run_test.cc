// What a fast tier did, recorded and replayed group by group.
#include "kv/sim/recorded_run.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/read_file.h"
#include "kernels/registry.h"
#include "kv/fast/fast_tier.h"
#include "kv/sim/selection_generator.h"
#include "kv/trace/access_trace.h"
#include "support/temp_folder.h"

namespace spindle::kv::sim {
namespace {

constexpr uint32_t kLayers = 2;
constexpr uint32_t kHeads = 3;
constexpr uint32_t kPages = 512;
constexpr uint32_t kSelected = 16;

AccessTraceHeader RunHeader() {
  AccessTraceHeader header;
  header.geometry = {.num_layers = kLayers, .num_kv_heads = kHeads, .head_dim = 64};
  header.lru = {.range = 16, .quantum_steps = 1};
  header.algorithm = "synthetic loose";
  return header;
}

// A fast tier that records what it does with generated selections.
class RecordingTier {
 public:
  explicit RecordingTier(const std::string& path) {
    FastTierOptions options;
    options.geometry = RunHeader().geometry;
    options.lru = RunHeader().lru;
    options.fast_bytes = uint64_t{4096} * 1024;
    options.metadata_bytes = uint64_t{4} << 20;
    options.max_group_frames = 128;
    tier_ = FastTier::Create(options, *kernels::BestKernels()).value();
    writer_ = AccessTraceWriter::Create(path, RunHeader(), kMaxAccessTraceBytes).value();
  }

  // A request with an own number and selections.
  struct Request {
    uint16_t number;
    CacheSetId set;
    std::vector<SelectionGenerator> generators;
  };

  Request Open(uint16_t number, uint64_t seed) {
    Request request{number, tier_->Open(BudgetGroupId(number), kPages).value(), {}};
    for (uint64_t group = 0; group < kLayers * kHeads; ++group) {
      request.generators.emplace_back(SelectionOptions{.profile = kLooseProfile,
                                                       .num_pages = kPages,
                                                       .selected_pages = kSelected,
                                                       .seed = seed,
                                                       .stream = group});
    }
    return request;
  }

  void Resize(const Request& request, uint32_t frames) {
    ASSERT_TRUE(tier_->Cover(request.set, kPages).ok());
    ASSERT_TRUE(tier_->Resize(request.set, frames).ok());
    Record(request, kAllLayers, kAllHeads, AccessKind::kResize, {frames}, {});
  }

  // The same with a record of every group.
  void ResizeByGroup(const Request& request, uint32_t frames) {
    ASSERT_TRUE(tier_->Resize(request.set, frames).ok());
    for (uint16_t layer = 0; layer < kLayers; ++layer) {
      for (uint8_t head = 0; head < kHeads; ++head) {
        Record(request, layer, head, AccessKind::kResize, {frames}, {});
      }
    }
  }

  void Pause(const Request& request) {
    tier_->Drop(request.set);
    Record(request, kAllLayers, kAllHeads, AccessKind::kPause, {}, {});
  }

  // A request that goes on from where another is.
  Request Fork(uint16_t number, const Request& parent, uint32_t frames) {
    Request child{number, tier_->Open(BudgetGroupId(number), kPages).value(), parent.generators};
    Resize(child, frames);
    tier_->Adopt(child.set, parent.set);
    RecordFork(child, parent);
    return child;
  }

  void RecordFork(const Request& child, const Request& parent) {
    Record(child, kAllLayers, kAllHeads, AccessKind::kFork, {parent.number}, {});
  }

  void Close(const Request& request) {
    tier_->Close(request.set);
    Record(request, kAllLayers, kAllHeads, AccessKind::kEnd, {}, {});
  }

  // `num_selections`: of every group.
  void Step(Request& request, uint32_t num_selections = 1) {
    tier_->BeginStep(request.set);
    for (uint16_t layer = 0; layer < kLayers; ++layer) {
      for (uint8_t head = 0; head < kHeads; ++head) {
        for (uint32_t i = 0; i < num_selections; ++i) {
          Select(request, layer, head);
        }
        Record(request, layer, head, AccessKind::kAppend, {kPages - 1}, {});
      }
    }
    const CacheSetStats stats = tier_->Stats(request.set);
    hits_ += stats.hits - last_hits_[request.number];
    last_hits_[request.number] = stats.hits;
  }

  void EndStep() { ++step_; }

  // Hits of the tier's own counters.
  [[nodiscard]] uint64_t hits() const { return hits_; }

  void Forget(uint16_t number) { last_hits_[number] = 0; }

  void Finish() { ASSERT_TRUE(writer_->Finish().ok()); }

 private:
  void Select(Request& request, uint16_t layer, uint8_t head) {
    std::vector<uint32_t> pages;
    GroupPlan plan(kSelected);
    request.generators[layer * kHeads + head].Next(&pages);
    const GroupRef group{request.set, LayerIdx(layer), KvHeadIdx(head)};
    const Caching caching = CachingOf(request.number, layer);
    tier_->Plan(0, 0, group, pages, caching, &plan);
    std::vector<uint8_t> hit_bits(kSelected / 8, 0xFF);
    for (const PageLoad& load : plan.loads) {
      hit_bits[load.index / 8] &= static_cast<uint8_t>(~(1U << (load.index % 8)));
    }
    tier_->Commit(group, plan);
    Record(request, layer, head, AccessKind::kSelect, pages, hit_bits, caching);
  }

  void Record(const Request& request,
              uint16_t layer,
              uint8_t head,
              AccessKind kind,
              const std::vector<uint32_t>& ids,
              const std::vector<uint8_t>& hit_bits,
              Caching caching = Caching::kLru) {
    ASSERT_TRUE(writer_
                    ->Append({.step = step_,
                              .request = request.number,
                              .layer = layer,
                              .head = head,
                              .kind = kind,
                              .caching = caching,
                              .ids = ids,
                              .hit_bits = hit_bits})
                    .ok());
  }

  // Every way of caching somewhere.
  [[nodiscard]] Caching CachingOf(uint16_t request, uint16_t layer) const {
    if (request == 4 && layer == 1) {
      return Caching::kFill;
    }
    return request == 3 && layer == 0 && step_ % 7 == 0 ? Caching::kStream : Caching::kLru;
  }

  std::unique_ptr<FastTier> tier_;
  std::unique_ptr<AccessTraceWriter> writer_;
  uint32_t step_ = 0;
  uint64_t hits_ = 0;
  std::vector<uint64_t> last_hits_ = std::vector<uint64_t>(10);
};

// Two requests that grow, shrink, pause and resume; a third with the number of one that ended.
std::string RecordLife(const std::string& path, uint64_t* hits) {
  RecordingTier tier(path);
  RecordingTier::Request first = tier.Open(3, 1);
  RecordingTier::Request second = tier.Open(4, 2);
  tier.Resize(first, 32);
  tier.Resize(second, 8);  // streams
  for (uint32_t step = 0; step < 300; ++step) {
    if (step == 60) {
      tier.Resize(first, 64);
    }
    if (step == 90) {
      tier.ResizeByGroup(first, 88);
    }
    if (step == 120) {
      tier.Resize(first, 40);
    }
    if (step == 150) {
      tier.Pause(second);
    }
    if (step == 170) {
      tier.Resize(second, 48);
    }
    if (step == 200) {
      tier.Close(first);
      tier.Forget(3);
      first = tier.Open(3, 3);
      tier.Resize(first, 24);
    }
    tier.Step(first);
    if (step < 150 || step >= 170) {
      tier.Step(second);
    }
    tier.EndStep();
  }
  tier.Finish();
  *hits = tier.hits();
  return ReadFile(path, kMaxAccessTraceBytes).value();
}

std::span<const uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

ReplayResult ReplayAll(const RecordedRun& run) {
  ReplayResult total;
  for (size_t group = 0; group < run.groups.size(); ++group) {
    const auto result = ReplayRecordedSizes(run, group);
    EXPECT_TRUE(result.ok()) << result.status();
    if (result.ok()) {
      total.count += result->count;
      total.compared += result->compared;
      total.differences += result->differences;
    }
  }
  return total;
}

TEST(RecordedRun, ReplaysEveryHitAndMiss) {
  const test::TempFolder folder;
  uint64_t hits = 0;
  const std::string bytes = RecordLife(folder.path() + "/trace", &hits);
  const auto run = LoadRecordedRun(AsBytes(bytes), 0);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->num_requests, 3U);
  EXPECT_EQ(run->num_steps, 300U);
  EXPECT_EQ(run->groups.size(), 3 * kLayers * kHeads);
  EXPECT_EQ(run->ending, AccessTraceReader::Ending::kWhole);
  const ReplayResult total = ReplayAll(*run);
  EXPECT_EQ(total.differences, 0U);
  EXPECT_EQ(total.compared, total.count.accesses);
  EXPECT_EQ(total.count.hits, hits);
  EXPECT_EQ(total.count.accesses, uint64_t{300 + 280} * kLayers * kHeads * kSelected);
}

TEST(RecordedRun, SeesWhenThePolicyIsAnother) {
  const test::TempFolder folder;
  uint64_t hits = 0;
  const std::string bytes = RecordLife(folder.path() + "/trace", &hits);
  auto run = LoadRecordedRun(AsBytes(bytes), 0);
  ASSERT_TRUE(run.ok()) << run.status();
  run->header.lru = {.range = 4, .quantum_steps = 3};
  EXPECT_GT(ReplayAll(*run).differences, 100U);
}

TEST(RecordedRun, SeveralSelectionsInAStepAgeOnce) {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/trace";
  RecordingTier tier(path);
  RecordingTier::Request request = tier.Open(1, 7);
  tier.Resize(request, 64);
  for (uint32_t step = 0; step < 60; ++step) {
    tier.Step(request, 1 + step % 3);
    tier.EndStep();
  }
  tier.Finish();
  const std::string bytes = ReadFile(path, kMaxAccessTraceBytes).value();
  auto run = LoadRecordedRun(AsBytes(bytes), 0);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->num_steps, 60U);
  const ReplayResult result = ReplayAll(*run);
  EXPECT_EQ(result.differences, 0U);
  EXPECT_EQ(result.count.hits, tier.hits());
  for (RecordedGroup& group : run->groups) {
    EXPECT_EQ(group.selections.num_steps(), 120U);
    std::iota(group.server_steps.begin(), group.server_steps.end(), 0);  // each ages
  }
  EXPECT_GT(ReplayAll(*run).differences, 0U);
}

TEST(RecordedRun, ForksBeginWithTheirParentsPages) {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/trace";
  RecordingTier tier(path);
  RecordingTier::Request parent = tier.Open(1, 8);
  tier.Resize(parent, 40);
  for (uint32_t step = 0; step < 50; ++step) {
    tier.Step(parent);
    tier.EndStep();
  }
  RecordingTier::Request larger = tier.Fork(2, parent, 64);
  RecordingTier::Request smaller = tier.Fork(5, parent, 24);
  tier.Resize(parent, 16);  // after the forks, in front of the same step
  for (uint32_t step = 0; step < 50; ++step) {
    tier.Step(parent);
    tier.Step(larger);
    tier.Step(smaller);
    tier.EndStep();
  }
  tier.Finish();
  const std::string bytes = ReadFile(path, kMaxAccessTraceBytes).value();
  auto run = LoadRecordedRun(AsBytes(bytes), 0);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->num_requests, 3U);
  const ReplayResult result = ReplayAll(*run);
  EXPECT_EQ(result.differences, 0U);
  EXPECT_EQ(result.compared, 200U * kLayers * kHeads * kSelected);
  EXPECT_EQ(result.count.hits, tier.hits());
  for (RecordedGroup& group : run->groups) {
    std::erase_if(group.changes, [](const RecordedGroup::Change& change) {
      return change.kind == RecordedGroup::Change::Kind::kFork;
    });
  }
  EXPECT_GT(ReplayAll(*run).differences, 100U);  // they would begin with none
}

// Forks that no server makes: bounded work for any bytes.
TEST(RecordedRun, RefusesForksOfForksAndOfOldRequests) {
  const test::TempFolder folder;
  const auto load = [&folder](const std::string& name, bool of_fork) {
    RecordingTier tier(folder.path() + "/" + name);
    RecordingTier::Request first = tier.Open(1, 1);
    tier.Resize(first, 32);
    tier.Step(first);
    RecordingTier::Request second = tier.Fork(2, first, 32);
    if (of_fork) {
      tier.Fork(3, second, 32);
    } else {
      tier.Step(second);
      tier.RecordFork(second, first);
    }
    tier.Finish();
    const std::string bytes = ReadFile(folder.path() + "/" + name, kMaxAccessTraceBytes).value();
    return LoadRecordedRun(AsBytes(bytes), 0).status();
  };
  for (const bool of_fork : {false, true}) {
    const absl::Status status = load(of_fork ? "a" : "b", of_fork);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
}

TEST(RecordedRun, WarmUpIsPerGroup) {
  const test::TempFolder folder;
  uint64_t hits = 0;
  const std::string bytes = RecordLife(folder.path() + "/trace", &hits);
  const auto run = LoadRecordedRun(AsBytes(bytes), 50);
  ASSERT_TRUE(run.ok()) << run.status();
  for (const RecordedGroup& group : run->groups) {
    EXPECT_EQ(group.selections.num_counted_accesses(),
              group.selections.num_accesses() - 50 * kSelected);
  }
}

TEST(RecordedRun, BoundsTheNumberOfGroups) {
  const test::TempFolder folder;
  AccessTraceHeader header = RunHeader();
  header.geometry.num_layers = 4096;
  header.geometry.num_kv_heads = 254;
  const std::string path = folder.path() + "/trace";
  auto writer = AccessTraceWriter::Create(path, header, kMaxAccessTraceBytes).value();
  const uint32_t frames = 8;
  ASSERT_TRUE(writer
                  ->Append({.layer = kAllLayers,
                            .head = kAllHeads,
                            .kind = AccessKind::kResize,
                            .ids = {&frames, 1},
                            .hit_bits = {}})
                  .ok());
  ASSERT_TRUE(writer->Finish().ok());
  const std::string bytes = ReadFile(path, kMaxAccessTraceBytes).value();
  EXPECT_EQ(LoadRecordedRun(AsBytes(bytes), 0).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace spindle::kv::sim
