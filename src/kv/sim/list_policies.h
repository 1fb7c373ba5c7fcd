// Policies that keep pages in lists and bits: exact LRU, FIFO, random, CLOCK, SLRU, ARC. Internal
// to the simulator; the rules are in page_policy.h. Thread-safety: thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/sim/id_list.h"
#include "kv/sim/pcg64.h"
#include "kv/sim/step_policy.h"

namespace spindle::kv::sim {

// The oldest page of a list that is not pinned. A page that was passed over stays pinned for the
// rest of the step, so a step looks at each page once.
class VictimCursor {
 public:
  void Reset() { started_ = false; }

  // kNoId when all are pinned. The page found is the caller's to remove at once.
  template <typename IsPinned>
  uint32_t Next(const IdList& list, IsPinned&& is_pinned) {
    uint32_t page = started_ ? next_ : list.oldest();
    while (page != kNoId && is_pinned(page)) {
      page = list.After(page);
    }
    started_ = page != kNoId;
    next_ = started_ ? list.After(page) : kNoId;
    return page;
  }

 private:
  bool started_ = false;
  uint32_t next_ = kNoId;
};

class ExactLru final : public StepPolicy {
 public:
  ExactLru(uint32_t capacity_pages, uint32_t num_pages);

 private:
  void BeginStep() override { cursor_.Reset(); }

  void OnHit(uint32_t /*page*/) override {}

  uint32_t ChooseVictim(uint32_t page) override;
  void OnInsert(uint32_t page) override;
  void EndStep(std::span<const uint32_t> pages, std::span<const uint8_t> is_hit) override;

  IdLinks links_;
  IdList order_;  // by last step, then page
  VictimCursor cursor_;
};

class Fifo final : public StepPolicy {
 public:
  Fifo(uint32_t capacity_pages, uint32_t num_pages);

 private:
  void BeginStep() override { cursor_.Reset(); }

  void OnHit(uint32_t /*page*/) override {}

  uint32_t ChooseVictim(uint32_t page) override;
  void OnInsert(uint32_t page) override;

  IdLinks links_;
  IdList order_;  // by arrival
  VictimCursor cursor_;
};

class RandomReplacement final : public StepPolicy {
 public:
  RandomReplacement(uint32_t capacity_pages, uint32_t num_pages, uint64_t seed);

 private:
  void OnHit(uint32_t /*page*/) override {}

  uint32_t ChooseVictim(uint32_t page) override;
  void OnInsert(uint32_t page) override;

  std::vector<uint32_t> frames_;  // resident pages
  Pcg64 random_;
};

class Clock final : public StepPolicy {
 public:
  Clock(uint32_t capacity_pages, uint32_t num_pages);

 private:
  void OnHit(uint32_t page) override;
  uint32_t ChooseVictim(uint32_t page) override;
  void OnInsert(uint32_t page) override;

  std::vector<uint32_t> frames_;   // resident pages
  std::vector<uint8_t> was_used_;  // [num_pages]
  uint32_t hand_ = 0;              // frame
  uint32_t free_frame_ = kNoId;    // of the last victim
};

class SegmentedLru final : public StepPolicy {
 public:
  SegmentedLru(uint32_t capacity_pages, uint32_t num_pages);

 private:
  void BeginStep() override;

  void OnHit(uint32_t /*page*/) override {}

  uint32_t ChooseVictim(uint32_t page) override;
  void OnInsert(uint32_t page) override;
  void EndStep(std::span<const uint32_t> pages, std::span<const uint8_t> is_hit) override;

  uint32_t max_protected_;
  IdLinks links_;
  IdList probation_;
  IdList protected_;
  std::vector<uint8_t> is_protected_;  // [num_pages]
  std::array<VictimCursor, 2> cursors_;
};

class Arc final : public StepPolicy {
 public:
  Arc(uint32_t capacity_pages, uint32_t num_pages);

 private:
  enum class Where : uint8_t { kNowhere, kRecent, kFrequent, kRecentGhost, kFrequentGhost };

  void BeginStep() override;
  void OnHit(uint32_t page) override;
  uint32_t ChooseVictim(uint32_t page) override;
  void OnInsert(uint32_t page) override;

  void AdaptTo(uint32_t page);
  void ForgetOldest(IdList& ghosts);

  IdLinks links_;
  IdList recent_;           // T1: used once lately
  IdList frequent_;         // T2: used again
  IdList recent_ghosts_;    // B1: pages lately evicted from T1
  IdList frequent_ghosts_;  // B2
  uint32_t recent_target_ = 0;
  std::vector<Where> where_;  // [num_pages]
  std::array<VictimCursor, 2> cursors_;
};

}  // namespace spindle::kv::sim
