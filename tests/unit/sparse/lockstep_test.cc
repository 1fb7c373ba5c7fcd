// The simulator sees what the server saw: attention over a real fast tier is recorded while
// sequences come and go, are prefilled and decoded, resized, paused, forked and computed again; a
// replay of the trace finds every hit and every miss in its place.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attention_rig.h"
#include "base/read_file.h"
#include "drawn_pages.h"
#include "kv/sim/recorded_run.h"
#include "support/random_seed.h"
#include "support/temp_folder.h"

namespace spindle::sparse {
namespace {

using kv::sim::LoadRecordedRun;
using kv::sim::RecordedRun;
using kv::sim::ReplayResult;

constexpr uint32_t kGroupFrames = 48;  // at most, and 8 sequences' worth of them in the tier
constexpr size_t kMaxSequences = 6;
#if defined(SPINDLE_SANITIZED)
constexpr int kWorldSteps = 60;
#else
constexpr int kWorldSteps = 250;
#endif

RigOptions RecordedRig() {
  RigOptions options;
  options.table = "baseline";
  options.num_layers = 2;
  options.num_q_heads = 2;
  options.num_kv_heads = 2;
  options.windows = {0, 200};
  options.num_threads = 2;
  options.num_stripes = 400;
  options.mirror = true;
  options.frames_per_group = kGroupFrames;
  return options;
}

class RecordedWorld {
 public:
  RecordedWorld(const std::string& path, uint64_t seed) : rng_(seed) {
    RigOptions options = RecordedRig();
    kv::AccessTraceHeader header;
    header.geometry = {options.num_layers, options.num_kv_heads, options.head_dim, options.type};
    header.algorithm = "synthetic drawn";
    auto writer = kv::AccessTraceWriter::Create(path, header, kv::kMaxAccessTraceBytes);
    EXPECT_TRUE(writer.ok()) << writer.status();
    recorder_ = std::make_unique<kv::AccessRecorder>(
        *std::move(writer), options.num_threads, uint64_t{8} << 20);
    options.recorder = recorder_.get();
    rig_ = std::make_unique<AttentionRig>(options);
  }

  void Run() {
    for (int step = 0; step < kWorldSteps; ++step) {
      for (uint32_t count = Below(3); count > 0; --count) {
        Disturb();
      }
      Step();
    }
    recorder_->Finish();
  }

  [[nodiscard]] AttentionRig& rig() { return *rig_; }

  [[nodiscard]] const kv::AccessRecorder& recorder() const { return *recorder_; }

  // How often each of these happened.
  uint32_t num_opened = 0;
  uint32_t num_closed = 0;
  uint32_t num_resized = 0;
  uint32_t num_paused = 0;
  uint32_t num_forked = 0;
  uint32_t num_recomputed = 0;

 private:
  struct Member {
    SequenceId sequence;
    uint64_t stream;
    const SparsePolicy* policy;  // null: dense
    uint32_t prompt;
    uint32_t known;     // prompt and decoded tokens
    uint32_t computed;  // of them
    bool is_paused = false;
    bool is_fork = false;
  };

  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(rng_() % bound); }

  Member& Any() { return members_[Below(static_cast<uint32_t>(members_.size()))]; }

  void Open() {
    const SparsePolicy* const policies[] = {nullptr, &often_, &rarely_};
    const uint32_t prompt = 30 + Below(700);
    members_.push_back({rig_->Open(), num_opened, policies[Below(3)], prompt, prompt, 0});
    ++num_opened;
  }

  void Close(Member& member) {
    const kv::CacheSetId set = rig_->SetOf(member.sequence);
    rig_->tier().Close(set);
    recorder_->End(set);
    rig_->store().Close(member.sequence);
  }

  void Disturb() {
    if (members_.empty() || (members_.size() < kMaxSequences && Below(4) == 0)) {
      Open();
      return;
    }
    Member& member = Any();
    switch (Below(7)) {
      case 0:
        Close(member);
        members_.erase(members_.begin() + (&member - members_.data()));
        ++num_closed;
        break;
      case 1:
        Fork(member);
        break;
      case 2:
        Recompute(member);
        break;
      case 3:
        Pause(member);
        break;
      default:
        Resize(member);
    }
  }

  void Resize(Member& member) {
    rig_->Resize(member.sequence, Below(kGroupFrames / 8 + 1) * 8);
    member.is_paused = false;
    ++num_resized;
  }

  void Pause(Member& member) {
    const kv::CacheSetId set = rig_->SetOf(member.sequence);
    rig_->tier().Drop(set);
    recorder_->Pause(set);
    member.is_paused = true;
    ++num_paused;
  }

  void Fork(const Member& parent) {
    if (members_.size() >= kMaxSequences || parent.computed < parent.prompt || parent.is_paused ||
        parent.is_fork) {
      return;
    }
    const auto sequence = rig_->store().Fork(parent.sequence);
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    Member child = parent;
    child.sequence = *sequence;
    child.is_fork = true;
    rig_->OpenSet(child.sequence);
    rig_->Resize(child.sequence, Below(kGroupFrames / 8 + 1) * 8);
    const kv::CacheSetId child_set = rig_->SetOf(child.sequence);
    const kv::CacheSetId parent_set = rig_->SetOf(parent.sequence);
    rig_->tier().Adopt(child_set, parent_set);
    recorder_->Fork(child_set, parent_set);
    members_.push_back(child);
    ++num_forked;
  }

  // As after a preemption: the same tokens in a new sequence.
  void Recompute(Member& member) {
    Close(member);
    member.sequence = rig_->Open();
    member.computed = 0;
    member.is_paused = false;
    member.is_fork = false;
    ++num_recomputed;
  }

  // Every member that is not paused, in rows of whatever number is left.
  void Step() {
    std::vector<RigRows> rows;
    for (Member& member : members_) {
      if (member.is_paused || Below(6) == 0) {
        continue;
      }
      if (member.computed == member.known) {
        ++member.known;
      }
      const uint32_t count = std::min(member.known - member.computed, 40 + Below(200));
      rows.push_back(
          {member.sequence, member.stream, member.computed, count, member.policy, member.prompt});
      member.computed += count;
    }
    if (!rows.empty()) {
      rig_->Step(rows);
    }
  }

  std::mt19937_64 rng_;
  const SparsePolicy often_ = Drawn(3);
  const SparsePolicy rarely_ = Drawn(9);
  std::unique_ptr<kv::AccessRecorder> recorder_;
  std::unique_ptr<AttentionRig> rig_;
  std::vector<Member> members_;
};

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

TEST(LockstepTest, TheReplayOfARecordedRunHasTheSameHitsAndMisses) {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/trace";
  RecordedWorld world(path, test::RandomSeed(71));
  world.Run();
  EXPECT_EQ(world.recorder().num_dropped_records(), 0U);
  // Everything that a server does to its groups has happened.
  EXPECT_GT(world.num_opened, 5U);
  EXPECT_GT(world.num_closed, 3U);
  EXPECT_GT(world.num_resized, 10U);
  EXPECT_GT(world.num_paused, 3U);
  EXPECT_GT(world.num_forked, 0U);
  EXPECT_GT(world.num_recomputed, 3U);
  const MirrorCounters counters = world.rig().runtime().Counters();
  EXPECT_GT(counters.pages_streamed, 0U);
  EXPECT_GT(counters.page_refaults, 0U);

  const std::string bytes = ReadFile(path, kv::kMaxAccessTraceBytes).value();
  auto run = LoadRecordedRun({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, 0);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->ending, kv::AccessTraceReader::Ending::kWhole);
  const ReplayResult result = ReplayAll(*run);
  EXPECT_EQ(result.differences, 0U);
  EXPECT_GT(result.compared, 10'000U);
  EXPECT_EQ(result.compared, counters.page_hits + counters.page_misses);
  EXPECT_EQ(result.count.hits, counters.page_hits);
  // The comparison is one: sizes that were others show.
  for (kv::sim::RecordedGroup& group : run->groups) {
    for (kv::sim::RecordedGroup::Change& change : group.changes) {
      change.frames = std::min(change.frames, 16U);
    }
  }
  EXPECT_GT(ReplayAll(*run).differences, 100U);
}

}  // namespace
}  // namespace spindle::sparse
