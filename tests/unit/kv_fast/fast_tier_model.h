// Replays random operations on a fast tier and on a plain model of it. The model knows, per group,
// the pages that are resident and the step of their last use; it does not know slots, leaves or
// stamps. Which of equally old pages goes is the tier's choice: the model checks that the choice
// was allowed and then follows it. Thread-safety: single-threaded tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kv/fast/fast_tier.h"
#include "unit/kv_fast/fast_tier_world.h"

namespace spindle::kv {

class FastTierModel {
 public:
  FastTierModel(const FastTierOptions& options, uint64_t seed)
      : options_(options), tier_(MakeTier(options)), rng_(seed), plan_(kMaxSelected) {}

  // One random operation. Fails the test on any difference.
  void Step() {
    const uint32_t kind = Below(1000);
    if (sets_.empty() || kind < 2) {
      Open();
    } else if (kind < 4) {
      Close(Below(static_cast<uint32_t>(sets_.size())));
    } else if (kind < 16) {
      Resize(AnySet());
    } else if (kind < 18) {
      Pause(AnySet());
    } else if (kind < 20) {
      Fork(AnySet());
    } else if (kind < 24) {
      Cover(AnySet());
    } else {
      Plan(AnySet(), kind < 30);
    }
  }

  void Finish() {
    CheckAll();
    while (!sets_.empty()) {
      Close(0);
    }
    CheckAll();
    EXPECT_EQ(tier_->num_free_frames(),
              tier_->pool().num_frames() - options_.num_rings * options_.ring_frames);
    EXPECT_GT(num_evictions_, 0U);
    EXPECT_GT(num_streamed_, 0U);
    EXPECT_GT(num_hits_, 0U);
  }

  void CheckAll() {
    const absl::Status status = tier_->CheckIntegrity();
    ASSERT_TRUE(status.ok()) << status;
    uint64_t frames = 0;
    for (const Set& set : sets_) {
      const CacheSetStats stats = tier_->Stats(set.id);
      uint64_t resident = 0;
      for (const ModelGroup& group : set.groups) {
        resident += group.last_use.size();
        frames += group.frames;
        for (const auto& [page, step] : group.last_use) {
          ASSERT_NE(tier_->FrameOf(RefOf(set, group), page), kNoFrame);
        }
      }
      ASSERT_EQ(stats.resident_pages, resident);
    }
    ASSERT_EQ(frames + tier_->num_free_frames() + options_.num_rings * options_.ring_frames,
              tier_->pool().num_frames());
  }

 private:
  static constexpr uint32_t kMaxSelected = 64;
  static constexpr uint32_t kMaxSets = 6;
  // Ages below half the range are told apart exactly.
  static constexpr uint64_t kExactAges = 32;

  struct ModelGroup {
    uint32_t layer = 0;
    uint32_t head = 0;
    uint32_t frames = 0;
    uint64_t now = 0;         // steps in which this group took part
    uint64_t planned_in = 0;  // step of the set
    std::map<uint32_t, uint64_t> last_use;
  };

  struct Set {
    CacheSetId id;
    uint64_t sequence = 0;  // names the content
    uint32_t pages = 0;
    uint64_t step = 0;
    std::vector<ModelGroup> groups;
  };

  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(rng_() % n); }

  Set& AnySet() { return sets_[Below(static_cast<uint32_t>(sets_.size()))]; }

  static GroupRef RefOf(const Set& set, const ModelGroup& group) {
    return Group(set.id, group.layer, group.head);
  }

  void Open() {
    if (sets_.size() == kMaxSets) {
      return;
    }
    Set set;
    set.pages = 1 + Below(900);
    set.sequence = next_sequence_++;
    set.id = tier_->Open(BudgetGroupId(set.sequence), set.pages).value();
    for (uint32_t layer = 0; layer < options_.geometry.num_layers; ++layer) {
      for (uint32_t head = 0; head < options_.geometry.num_kv_heads; ++head) {
        ModelGroup group;
        group.layer = layer;
        group.head = head;
        set.groups.push_back(group);
      }
    }
    sets_.push_back(std::move(set));
    Resize(sets_.back());
  }

  void Close(uint32_t index) {
    tier_->Close(sets_[index].id);
    std::swap(sets_[index], sets_.back());
    sets_.pop_back();
  }

  void Cover(Set& set) {
    set.pages += Below(200);
    ASSERT_TRUE(tier_->Cover(set.id, set.pages).ok());
  }

  void Pause(Set& set) {
    tier_->Drop(set.id);
    for (ModelGroup& group : set.groups) {
      group.frames = 0;
      group.last_use.clear();
    }
    ASSERT_TRUE(tier_->Cover(set.id, set.pages).ok());
    Resize(set);
  }

  void Resize(Set& set) {
    const uint32_t frames = Below(9) * kRunFrames;
    uint64_t more = 0;
    for (const ModelGroup& group : set.groups) {
      more += frames > group.frames ? frames - group.frames : 0;
    }
    const bool fits = more <= tier_->num_free_frames();
    ASSERT_EQ(tier_->Resize(set.id, frames).ok(), fits);
    for (ModelGroup& group : set.groups) {
      if (fits) {
        const size_t before = group.last_use.size();
        group.frames = frames;
        FollowEvictions(set, &group, {});
        ASSERT_EQ(group.last_use.size(), std::min<size_t>(before, frames));
      }
    }
  }

  void Fork(Set& parent) {
    if (sets_.size() == kMaxSets) {
      return;
    }
    Set child = parent;
    child.id = tier_->Open(BudgetGroupId(parent.sequence), parent.pages).value();
    child.step = 0;
    const uint32_t frames = Below(9) * kRunFrames;
    const bool fits = tier_->Resize(child.id, frames).ok();
    const uint64_t adopted = tier_->Adopt(child.id, parent.id);
    uint64_t expected = 0;
    for (ModelGroup& group : child.groups) {
      group.frames = fits ? frames : 0;
      group.planned_in = 0;
      expected += std::min<uint64_t>(group.last_use.size(), group.frames);
      FollowEvictions(child, &group, {});
    }
    ASSERT_EQ(adopted, expected);
    sets_.push_back(std::move(child));
  }

  // Removes from the model what the tier gave up, and checks that nothing older stayed.
  void FollowEvictions(const Set& set, ModelGroup* group, const std::vector<uint32_t>& pinned) {
    uint64_t youngest_gone = 0;  // last use
    uint64_t oldest_left = ~uint64_t{0};
    for (auto it = group->last_use.begin(); it != group->last_use.end();) {
      const bool is_pinned = std::binary_search(pinned.begin(), pinned.end(), it->first);
      if (tier_->FrameOf(RefOf(set, *group), it->first) == kNoFrame) {
        ASSERT_FALSE(is_pinned) << "a selected page was given up";
        youngest_gone = std::max(youngest_gone, it->second);
        ++num_evictions_;
        it = group->last_use.erase(it);
      } else {
        oldest_left = is_pinned ? oldest_left : std::min(oldest_left, it->second);
        ++it;
      }
    }
    if (youngest_gone > oldest_left) {
      ASSERT_GE(group->now - youngest_gone, kExactAges) << "a younger page was given up";
    }
  }

  std::vector<uint32_t> Selection(const Set& set) {
    std::vector<uint32_t> pages;
    const uint32_t centre = Below(4) == 0 ? Below(set.pages) : set.pages / 2;
    const uint32_t count = Below(10) == 0 ? Below(kMaxSelected) : Below(12);
    for (uint32_t i = 0; i < count; ++i) {
      pages.push_back((centre + Below(40) * Below(4)) % set.pages);
    }
    std::sort(pages.begin(), pages.end());
    pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
    return pages;
  }

  void Plan(Set& set, bool aborts) {
    if (Below(3) == 0) {
      tier_->BeginStep(set.id);
      ++set.step;
    }
    ModelGroup& group = set.groups[Below(static_cast<uint32_t>(set.groups.size()))];
    if (group.planned_in != set.step) {
      group.planned_in = set.step;
      ++group.now;
    }
    const std::vector<uint32_t> pages = Selection(set);
    const GroupRef ref = RefOf(set, group);
    std::vector<uint32_t> missing;
    for (const uint32_t page : pages) {
      if (!group.last_use.contains(page)) {
        missing.push_back(page);
      }
    }
    if (aborts) {
      tier_->Plan(1, 1, ref, pages, Caching::kLru, &plan_);
      tier_->Abort(1, ref, pages, plan_);
    } else {
      AttendStep(*tier_, 0, ref, pages, set.sequence, &plan_);
    }
    ASSERT_EQ(plan_.loads.size(), missing.size());
    for (size_t i = 0; i < missing.size(); ++i) {
      ASSERT_EQ(pages[plan_.loads[i].index], missing[i]);
    }
    num_hits_ += pages.size() - missing.size();
    FollowStep(set, &group, pages, missing, aborts);
  }

  void FollowStep(const Set& set,
                  ModelGroup* group,
                  const std::vector<uint32_t>& pages,
                  const std::vector<uint32_t>& missing,
                  bool aborts) {
    const uint64_t hits = pages.size() - missing.size();
    const uint64_t resident = group->last_use.size();
    const uint64_t cached = std::min<uint64_t>(missing.size(), group->frames - hits);
    ASSERT_EQ(plan_.num_streamed, missing.size() - cached);
    num_streamed_ += plan_.num_streamed;
    FollowEvictions(set, group, pages);
    const uint64_t free = group->frames - resident;
    ASSERT_EQ(group->last_use.size(), resident - (cached > free ? cached - free : 0));
    for (const uint32_t page : pages) {
      const bool was_resident = group->last_use.contains(page);
      const bool is_resident = tier_->FrameOf(RefOf(set, *group), page) != kNoFrame;
      ASSERT_TRUE(is_resident || !was_resident);
      if (is_resident) {
        ASSERT_TRUE(was_resident || !aborts);
        group->last_use[page] = group->now;
      }
    }
    if (!aborts) {
      ASSERT_EQ(group->last_use.size(), std::min<uint64_t>(resident + cached, group->frames));
    }
  }

  FastTierOptions options_;
  std::unique_ptr<FastTier> tier_;
  std::mt19937_64 rng_;
  GroupPlan plan_;
  std::vector<Set> sets_;
  uint64_t next_sequence_ = 1;
  uint64_t num_evictions_ = 0;
  uint64_t num_streamed_ = 0;
  uint64_t num_hits_ = 0;
};

inline void RunFastTierModel(uint64_t operations, uint64_t seed) {
  FastTierModel model(SmallTier(1024), seed);
  for (uint64_t i = 0; i < operations && !testing::Test::HasFatalFailure(); ++i) {
    model.Step();
    if (i % 1000 == 0) {
      model.CheckAll();
    }
  }
  if (!testing::Test::HasFatalFailure()) {
    model.Finish();
  }
}

}  // namespace spindle::kv
