#include "kv/fast/cache_group.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "base/status_macros.h"

namespace spindle::kv {
namespace {

using kernels::kLruFree;
using kernels::kLruPinned;

constexpr uint16_t kMaxCount16 = std::numeric_limits<uint16_t>::max();

uint16_t SaturatingCount(uint64_t count) {
  return static_cast<uint16_t>(std::min<uint64_t>(count, kMaxCount16));
}

// Gives the ring's frames to the loads that have none and cuts passes where they run out, at
// borders of units only: a unit is attended as a whole.
void BuildPasses(std::span<const uint32_t> pages, FrameRing ring, GroupPlan* plan) {
  const auto num_pages = static_cast<uint32_t>(pages.size());
  const auto num_loads = static_cast<uint32_t>(plan->loads.size());
  AttentionPass pass{0, 0, 0, 0};
  uint32_t used = 0;
  while (pass.page_end < num_pages) {
    const uint32_t unit = pages[pass.page_end] / ring.pages_per_unit;
    uint32_t unit_end = pass.page_end;
    while (unit_end < num_pages && pages[unit_end] / ring.pages_per_unit == unit) {
      ++unit_end;
    }
    uint32_t load_end = pass.load_end;
    uint32_t needed = 0;
    while (load_end < num_loads && plan->loads[load_end].index < unit_end) {
      needed += plan->loads[load_end].frame == kNoFrame ? 1U : 0U;
      ++load_end;
    }
    SPINDLE_CHECK(needed <= ring.count);
    if (used + needed > ring.count) {
      plan->passes.push_back(pass);
      pass = {pass.page_end, pass.page_end, pass.load_end, pass.load_end};
      used = 0;
    }
    for (; pass.load_end < load_end; ++pass.load_end) {
      PageLoad& load = plan->loads[pass.load_end];
      if (load.frame == kNoFrame) {
        load.frame = ring.first + used++;
        plan->frames[load.index] = load.frame;
      }
    }
    pass.page_end = unit_end;
  }
  plan->passes.push_back(pass);
}

}  // namespace

bool CacheGroup::Cover(const GroupContext& context, uint32_t num_pages) {
  if (!directory_.Grow(context.slab, num_pages)) {
    return false;
  }
  const uint32_t regions = directory_.num_pages() / kRegionPages;
  // A directory that covers more than the refault maps do is harmless; the next call catches up.
  return !context.refault_maps || regions <= refault_maps_.size() ||
         refault_maps_.Resize(context.slab, regions);
}

void CacheGroup::AdvanceTo(const GroupContext& context, uint16_t step) {
  if (step_ == step) {
    return;
  }
  step_ = step;
  last_streamed_ = 0;
  if (context.lru.Advance(&lru_)) {
    for (uint32_t run = 0; run < runs_.size(); ++run) {
      uint8_t* const stamps =
          context.pool.stamps() + size_t{runs_.At(context.slab, run)} * kRunFrames;
      context.lru.Rescale({stamps, kRunFrames});
    }
  }
  if (++window_tick_ >= context.window_steps) {
    BeginWindow(context);
  }
}

void CacheGroup::BeginWindow(const GroupContext& context) {
  window_tick_ = 0;
  window_ = static_cast<uint8_t>(window_ ^ 1U);
  window_refaults_[window_] = 0;
  for (uint32_t region = 0; region < refault_maps_.size(); ++region) {
    refault_maps_.At(context.slab, region).evicted[window_] = 0;
  }
}

void CacheGroup::RememberEviction(const GroupContext& context, uint32_t page) {
  if (const uint32_t region = page / kRegionPages; region < refault_maps_.size()) {
    refault_maps_.At(context.slab, region).evicted[window_] |= uint64_t{1} << (page % kRegionPages);
  }
}

bool CacheGroup::IsRefault(const GroupContext& context, uint32_t page) {
  const uint32_t region = page / kRegionPages;
  if (region >= refault_maps_.size()) {
    return false;
  }
  RefaultRegion& map = refault_maps_.At(context.slab, region);
  const uint64_t bit = uint64_t{1} << (page % kRegionPages);
  const bool is_refault = ((map.evicted[0] | map.evicted[1]) & bit) != 0;
  map.evicted[0] &= ~bit;
  map.evicted[1] &= ~bit;
  return is_refault;
}

std::span<const uint8_t> CacheGroup::GatherStamps(const GroupContext& context,
                                                  GroupWorker& worker) const {
  const uint8_t* const stamps = context.pool.stamps();
  uint8_t* out = worker.stamps.data();
  for (uint32_t begin = 0; begin < runs_.size(); begin += SlabArray<uint32_t>::kPerPiece) {
    const uint32_t* const runs = runs_.Piece(context.slab, begin);
    const uint32_t count = std::min(runs_.size() - begin, SlabArray<uint32_t>::kPerPiece);
    for (uint32_t i = 0; i < count; ++i) {
      std::memcpy(out, stamps + size_t{runs[i]} * kRunFrames, kRunFrames);
      out += kRunFrames;
    }
  }
  return {worker.stamps.data(), num_slots()};
}

void CacheGroup::FreeFrame(const GroupContext& context, uint32_t frame) {
  context.pool.word(frame).Free();
  context.pool.stamps()[frame] = kLruFree;
  if (context.poison_free_frames) {
    std::memset(context.pool.data(frame), 0xFF, context.pool.stride_bytes());
  }
  --num_resident_;
}

void CacheGroup::Evict(const GroupContext& context, GroupWorker& worker, uint32_t frame) {
  const uint32_t page = context.pool.word(frame).page();
  directory_.Remove(worker.leaves, page);
  RememberEviction(context, page);
  FreeFrame(context, frame);
}

void CacheGroup::Plan(const GroupContext& context,
                      GroupWorker& worker,
                      std::span<const uint32_t> pages,
                      Caching caching,
                      FrameRing ring,
                      GroupPlan* plan) {
  const auto num_pages = static_cast<uint32_t>(pages.size());
  uint8_t* const stamps = context.pool.stamps();
  plan->frames.assign(num_pages, kNoFrame);
  plan->loads.clear();
  plan->passes.clear();
  plan->num_streamed = 0;
  plan->num_refaults = 0;
  for (uint32_t i = 0; i < num_pages; ++i) {
    SPINDLE_DCHECK(i == 0 || pages[i - 1] < pages[i]);
    const uint32_t frame = FrameOf(context, pages[i]);
    plan->frames[i] = frame;
    if (frame == kNoFrame) {
      plan->loads.push_back({i, kNoFrame});
    } else {
      stamps[frame] = kLruPinned;
    }
  }
  const auto num_misses = static_cast<uint32_t>(plan->loads.size());
  counters_.hits += num_pages - num_misses;
  if (num_misses == 0) {
    if (num_pages > 0) {
      plan->passes.push_back({0, num_pages, 0, 0});
    }
    return;
  }
  counters_.misses += num_misses;
  if (caching == Caching::kLru) {
    CountRefaults(context, pages, plan);
  }
  AdmitMisses(context, worker, pages, caching, plan);
  counters_.streamed += plan->num_streamed;
  last_streamed_ = SaturatingCount(plan->num_streamed);
  if (plan->num_streamed == 0) {
    plan->passes.push_back({0, num_pages, 0, num_misses});
  } else {
    BuildPasses(pages, ring, plan);
  }
}

void CacheGroup::CountRefaults(const GroupContext& context,
                               std::span<const uint32_t> pages,
                               GroupPlan* plan) {
  for (const PageLoad& load : plan->loads) {
    plan->num_refaults += IsRefault(context, pages[load.index]) ? 1U : 0U;
  }
  counters_.refaults += plan->num_refaults;
  window_refaults_[window_] =
      SaturatingCount(uint64_t{window_refaults_[window_]} + plan->num_refaults);
}

void CacheGroup::AdmitMisses(const GroupContext& context,
                             GroupWorker& worker,
                             std::span<const uint32_t> pages,
                             Caching caching,
                             GroupPlan* plan) {
  const auto num_misses = static_cast<uint32_t>(plan->loads.size());
  uint32_t most = std::min(num_misses, num_slots());
  if (caching == Caching::kFill) {
    most = std::min(most, num_slots() - num_resident_);  // free slots are taken first
  } else if (caching == Caching::kStream) {
    most = 0;
  }
  const uint32_t taken =
      most == 0 ? 0 : context.lru.Take(&lru_, GatherStamps(context, worker), most, worker.slots);
  for (uint32_t i = 0; i < taken; ++i) {
    const uint32_t frame = FrameOfSlot(context, worker.slots[i]);
    if (context.pool.word(frame).state() != FrameState::kFree) {
      Evict(context, worker, frame);
      ++counters_.replaced;
    }
  }
  for (uint32_t i = 0; i < num_misses; ++i) {
    PageLoad& load = plan->loads[i];
    const uint32_t page = pages[load.index];
    // A page without a slot or without room in the directory is read and not cached.
    if (i >= taken || !directory_.Insert(worker.leaves, page, worker.slots[i])) {
      ++plan->num_streamed;
      continue;
    }
    load.frame = FrameOfSlot(context, worker.slots[i]);
    plan->frames[load.index] = load.frame;
    context.pool.word(load.frame).Load(page);
    context.pool.stamps()[load.frame] = kLruPinned;
    ++num_resident_;
  }
}

void CacheGroup::Commit(const GroupContext& context, const GroupPlan& plan) {
  uint8_t* const stamps = context.pool.stamps();
  for (const uint32_t frame : plan.frames) {
    if (frame >= context.num_ring_frames) {
      stamps[frame] = lru_.now;
    }
  }
  for (const PageLoad& load : plan.loads) {
    if (load.frame >= context.num_ring_frames) {
      context.pool.word(load.frame).Publish();
    }
  }
}

void CacheGroup::Abort(const GroupContext& context,
                       GroupWorker& worker,
                       std::span<const uint32_t> pages,
                       const GroupPlan& plan) {
  for (const PageLoad& load : plan.loads) {
    if (load.frame >= context.num_ring_frames) {
      directory_.Remove(worker.leaves, pages[load.index]);
      FreeFrame(context, load.frame);
    }
  }
  for (const uint32_t frame : plan.frames) {
    if (frame >= context.num_ring_frames && context.pool.stamps()[frame] == kLruPinned) {
      context.pool.stamps()[frame] = lru_.now;
    }
  }
}

absl::Status CacheGroup::GrowTo(const GroupContext& context,
                                GroupWorker& worker,
                                uint32_t num_frames) {
  const uint32_t old_runs = runs_.size();
  const uint32_t new_runs = num_frames / kRunFrames;
  const std::span<uint32_t> added = std::span(worker.slots).first(new_runs - old_runs);
  SPINDLE_RETURN_IF_ERROR(context.pool.Allocate(added));
  if (!runs_.Resize(context.slab, new_runs)) {
    context.pool.Free(added);
    return absl::ResourceExhaustedError("no metadata for the frames of a cache group");
  }
  for (uint32_t run = old_runs; run < new_runs; ++run) {
    runs_.At(context.slab, run) = added[run - old_runs];
  }
  return absl::OkStatus();
}

uint32_t CacheGroup::ShrinkTo(const GroupContext& context,
                              GroupWorker& worker,
                              uint32_t num_frames) {
  const uint32_t old_slots = num_slots();
  uint32_t evicted = 0;
  if (num_resident_ > num_frames) {
    // Free slots come first, the victims behind them.
    const uint32_t wanted = old_slots - num_frames;
    const uint32_t taken =
        context.lru.Take(&lru_, GatherStamps(context, worker), wanted, worker.slots);
    SPINDLE_CHECK(taken == wanted);
    for (uint32_t i = 0; i < taken; ++i) {
      const uint32_t frame = FrameOfSlot(context, worker.slots[i]);
      if (context.pool.word(frame).state() != FrameState::kFree) {
        Evict(context, worker, frame);
        ++evicted;
      }
    }
  }
  uint32_t to_slot = 0;
  for (uint32_t slot = num_frames; slot < old_slots; ++slot) {
    if (context.pool.word(FrameOfSlot(context, slot)).state() == FrameState::kFree) {
      continue;
    }
    while (context.pool.word(FrameOfSlot(context, to_slot)).state() != FrameState::kFree) {
      ++to_slot;
    }
    MovePage(context, slot, to_slot);
  }
  for (uint32_t run = num_frames / kRunFrames; run < runs_.size(); ++run) {
    context.pool.Free({&runs_.At(context.slab, run), 1});
  }
  SPINDLE_CHECK(runs_.Resize(context.slab, num_frames / kRunFrames));
  return evicted;
}

void CacheGroup::MovePage(const GroupContext& context, uint32_t from_slot, uint32_t to_slot) {
  const uint32_t from = FrameOfSlot(context, from_slot);
  const uint32_t to = FrameOfSlot(context, to_slot);
  const uint32_t page = context.pool.word(from).page();
  std::memcpy(context.pool.data(to), context.pool.data(from), context.pool.stride_bytes());
  directory_.Replace(context.slab, page, to_slot);
  context.pool.word(to).Fill(page);
  context.pool.stamps()[to] = context.pool.stamps()[from];
  ++num_resident_;
  FreeFrame(context, from);
}

uint32_t CacheGroup::Drop(const GroupContext& context, GroupWorker& worker) {
  const uint32_t dropped = num_resident_;
  for (uint32_t slot = 0; slot < num_slots(); ++slot) {
    const uint32_t frame = FrameOfSlot(context, slot);
    if (context.pool.word(frame).state() != FrameState::kFree) {
      FreeFrame(context, frame);
    }
  }
  directory_.Clear(worker.leaves);
  refault_maps_.Clear(context.slab);
  for (uint32_t run = 0; run < runs_.size(); ++run) {
    context.pool.Free({&runs_.At(context.slab, run), 1});
  }
  runs_.Clear(context.slab);
  window_refaults_ = {};
  last_streamed_ = 0;
  return dropped;
}

uint32_t CacheGroup::Adopt(const GroupContext& context,
                           GroupWorker& worker,
                           const CacheGroup& parent) {
  lru_ = parent.lru_;
  lru_.hand = 0;
  // The parent's oldest pages that do not fit are those that it would evict next.
  const std::span<const uint8_t> stamps = parent.GatherStamps(context, worker);
  const uint32_t skipped_slots = parent.num_slots() - std::min(parent.num_resident_, num_slots());
  LruState order = parent.lru_;
  const uint32_t taken = context.lru.Take(&order, stamps, skipped_slots, worker.slots);
  SPINDLE_CHECK(taken == skipped_slots);
  uint32_t adopted = 0;
  uint32_t next_skipped = 0;
  for (uint32_t slot = 0; slot < parent.num_slots(); ++slot) {
    if (next_skipped < taken && worker.slots[next_skipped] == slot) {
      ++next_skipped;
      continue;
    }
    const uint32_t from = parent.FrameOfSlot(context, slot);
    const uint32_t page = context.pool.word(from).page();
    if (!directory_.Insert(worker.leaves, page, adopted)) {
      continue;
    }
    const uint32_t to = FrameOfSlot(context, adopted++);
    std::memcpy(context.pool.data(to), context.pool.data(from), context.pool.stride_bytes());
    context.pool.word(to).Fill(page);
    context.pool.stamps()[to] = context.pool.stamps()[from];
    ++num_resident_;
  }
  return adopted;
}

uint32_t CacheGroup::WorkingSetPages(const GroupContext& context) const {
  uint32_t count = last_streamed_;
  for (uint32_t run = 0; run < runs_.size(); ++run) {
    const uint8_t* const stamps =
        context.pool.stamps() + size_t{runs_.At(context.slab, run)} * kRunFrames;
    count += context.lru.CountUsedWithin(lru_, {stamps, kRunFrames}, context.window_steps);
  }
  return count + std::max(window_refaults_[0], window_refaults_[1]);
}

}  // namespace spindle::kv
