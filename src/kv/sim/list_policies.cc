#include "kv/sim/list_policies.h"

#include <algorithm>

#include "base/status_macros.h"

namespace spindle::kv::sim {

ExactLru::ExactLru(uint32_t capacity_pages, uint32_t num_pages)
    : StepPolicy(capacity_pages, num_pages), links_(num_pages), order_(links_) {}

uint32_t ExactLru::ChooseVictim(uint32_t /*page*/) {
  const uint32_t victim = cursor_.Next(order_, [this](uint32_t page) { return IsPinned(page); });
  order_.Remove(victim);
  return victim;
}

void ExactLru::OnInsert(uint32_t page) {
  order_.Append(page);
}

void ExactLru::EndStep(std::span<const uint32_t> pages, std::span<const uint8_t> /*is_hit*/) {
  for (const uint32_t page : pages) {
    if (IsResident(page)) {
      order_.Remove(page);
      order_.Append(page);
    }
  }
}

Fifo::Fifo(uint32_t capacity_pages, uint32_t num_pages)
    : StepPolicy(capacity_pages, num_pages), links_(num_pages), order_(links_) {}

uint32_t Fifo::ChooseVictim(uint32_t /*page*/) {
  const uint32_t victim = cursor_.Next(order_, [this](uint32_t page) { return IsPinned(page); });
  order_.Remove(victim);
  return victim;
}

void Fifo::OnInsert(uint32_t page) {
  order_.Append(page);
}

RandomReplacement::RandomReplacement(uint32_t capacity_pages, uint32_t num_pages, uint64_t seed)
    : StepPolicy(capacity_pages, num_pages), random_(seed, /*stream=*/0) {}

uint32_t RandomReplacement::ChooseVictim(uint32_t /*page*/) {
  while (true) {
    const uint64_t frame = random_.Below(frames_.size());
    const uint32_t victim = frames_[frame];
    if (!IsPinned(victim)) {
      frames_[frame] = frames_.back();
      frames_.pop_back();
      return victim;
    }
  }
}

void RandomReplacement::OnInsert(uint32_t page) {
  frames_.push_back(page);
}

Clock::Clock(uint32_t capacity_pages, uint32_t num_pages)
    : StepPolicy(capacity_pages, num_pages), was_used_(num_pages) {}

void Clock::OnHit(uint32_t page) {
  was_used_[page] = 1;
}

uint32_t Clock::ChooseVictim(uint32_t /*page*/) {
  while (true) {
    const uint32_t frame = hand_;
    const uint32_t candidate = frames_[frame];
    hand_ = (hand_ + 1) % static_cast<uint32_t>(frames_.size());
    if (IsPinned(candidate)) {
      continue;
    }
    if (was_used_[candidate] == 0) {
      free_frame_ = frame;
      return candidate;
    }
    was_used_[candidate] = 0;
  }
}

void Clock::OnInsert(uint32_t page) {
  was_used_[page] = 1;
  if (free_frame_ == kNoId) {
    frames_.push_back(page);
  } else {
    frames_[free_frame_] = page;
    free_frame_ = kNoId;
  }
}

SegmentedLru::SegmentedLru(uint32_t capacity_pages, uint32_t num_pages)
    : StepPolicy(capacity_pages, num_pages),
      max_protected_(static_cast<uint32_t>(uint64_t{capacity_pages} * 4 / 5)),
      links_(num_pages),
      probation_(links_),
      protected_(links_),
      is_protected_(num_pages) {}

void SegmentedLru::BeginStep() {
  for (VictimCursor& cursor : cursors_) {
    cursor.Reset();
  }
}

uint32_t SegmentedLru::ChooseVictim(uint32_t /*page*/) {
  const auto is_pinned = [this](uint32_t page) { return IsPinned(page); };
  uint32_t victim = cursors_[0].Next(probation_, is_pinned);
  if (victim != kNoId) {
    probation_.Remove(victim);
    return victim;
  }
  victim = cursors_[1].Next(protected_, is_pinned);
  protected_.Remove(victim);
  is_protected_[victim] = 0;
  return victim;
}

void SegmentedLru::OnInsert(uint32_t page) {
  probation_.Append(page);
}

void SegmentedLru::EndStep(std::span<const uint32_t> pages, std::span<const uint8_t> is_hit) {
  for (size_t i = 0; i < pages.size(); ++i) {
    const uint32_t page = pages[i];
    if (is_hit[i] == 0) {
      continue;
    }
    (is_protected_[page] != 0 ? protected_ : probation_).Remove(page);
    is_protected_[page] = 1;
    protected_.Append(page);
    if (protected_.size() > max_protected_) {
      const uint32_t demoted = protected_.PopOldest();
      is_protected_[demoted] = 0;
      probation_.Append(demoted);
    }
  }
}

Arc::Arc(uint32_t capacity_pages, uint32_t num_pages)
    : StepPolicy(capacity_pages, num_pages),
      links_(num_pages),
      recent_(links_),
      frequent_(links_),
      recent_ghosts_(links_),
      frequent_ghosts_(links_),
      where_(num_pages) {}

void Arc::BeginStep() {
  for (VictimCursor& cursor : cursors_) {
    cursor.Reset();
  }
}

void Arc::OnHit(uint32_t page) {
  (where_[page] == Where::kRecent ? recent_ : frequent_).Remove(page);
  frequent_.Append(page);
  where_[page] = Where::kFrequent;
}

void Arc::AdaptTo(uint32_t page) {
  const uint32_t num_recent = recent_ghosts_.size();
  const uint32_t num_frequent = frequent_ghosts_.size();
  if (where_[page] == Where::kRecentGhost) {
    const uint32_t more = std::max(1U, num_frequent / num_recent);
    recent_target_ = std::min(capacity(), recent_target_ + more);
  } else if (where_[page] == Where::kFrequentGhost) {
    const uint32_t less = std::max(1U, num_recent / num_frequent);
    recent_target_ -= std::min(recent_target_, less);
  }
}

void Arc::ForgetOldest(IdList& ghosts) {
  where_[ghosts.PopOldest()] = Where::kNowhere;
}

uint32_t Arc::ChooseVictim(uint32_t page) {
  AdaptTo(page);
  const auto is_pinned = [this](uint32_t id) { return IsPinned(id); };
  const bool prefer_recent =
      recent_.size() > recent_target_ ||
      (where_[page] == Where::kFrequentGhost && recent_.size() == recent_target_);
  bool from_recent = prefer_recent && recent_.size() > 0;
  uint32_t victim =
      from_recent ? cursors_[0].Next(recent_, is_pinned) : cursors_[1].Next(frequent_, is_pinned);
  if (victim == kNoId) {  // empty, or all of it is used in this step
    from_recent = !from_recent;
    victim =
        from_recent ? cursors_[0].Next(recent_, is_pinned) : cursors_[1].Next(frequent_, is_pinned);
  }
  (from_recent ? recent_ : frequent_).Remove(victim);
  (from_recent ? recent_ghosts_ : frequent_ghosts_).Append(victim);
  where_[victim] = from_recent ? Where::kRecentGhost : Where::kFrequentGhost;
  return victim;
}

void Arc::OnInsert(uint32_t page) {
  if (where_[page] == Where::kRecentGhost || where_[page] == Where::kFrequentGhost) {
    (where_[page] == Where::kRecentGhost ? recent_ghosts_ : frequent_ghosts_).Remove(page);
    frequent_.Append(page);
    where_[page] = Where::kFrequent;
  } else {
    recent_.Append(page);
    where_[page] = Where::kRecent;
  }
  // Recent pages and their ghosts are at most as many as frames, all together twice as many.
  while (recent_ghosts_.size() > 0 && recent_.size() + recent_ghosts_.size() > capacity()) {
    ForgetOldest(recent_ghosts_);
  }
  while (frequent_ghosts_.size() > 0 &&
         recent_.size() + frequent_.size() + recent_ghosts_.size() + frequent_ghosts_.size() >
             2 * capacity()) {
    ForgetOldest(frequent_ghosts_);
  }
}

}  // namespace spindle::kv::sim
