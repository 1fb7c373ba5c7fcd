// One cache group: the fast frames of one (sequence, layer, KV head), the pages in them, and which
// of them to give up. A group owns whole runs of frames; its slot s is lane s % 8 of its run s / 8.
// Internal to the fast tier. Thread-safety: one worker at a time during a layer (Plan, Commit,
// Abort), the engine thread between steps (all else).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kv/fast/bucketed_lru.h"
#include "kv/fast/frame_pool.h"
#include "kv/fast/group_plan.h"
#include "kv/fast/leaf_cache.h"
#include "kv/fast/page_directory.h"
#include "kv/fast/slab_array.h"

namespace spindle::kv {

// What all groups share. Borrowed from the tier.
struct GroupContext {
  FramePool& pool;
  MetadataSlab& slab;
  const BucketedLru& lru;
  uint32_t window_steps;
  uint32_t num_ring_frames;  // of all rings; frames below this number belong to no group
  bool refault_maps;
  bool poison_free_frames;
};

// What one worker needs; sized at start.
struct GroupWorker {
  GroupWorker(MetadataSlab& slab, uint32_t max_group_frames)
      : leaves(slab), stamps(max_group_frames), slots(max_group_frames) {}

  LeafCache leaves;
  std::vector<uint8_t> stamps;  // of one group, together
  std::vector<uint32_t> slots;
};

// Where a group finds frames beyond its own: [first, first + count).
struct FrameRing {
  uint32_t first;
  uint32_t count;
  uint32_t pages_per_unit;  // that passes are cut at
};

class CacheGroup {
 public:
  // Totals since the group was opened; they wrap.
  struct Counters {
    uint32_t hits = 0;
    uint32_t misses = 0;
    uint32_t refaults = 0;  // misses of pages that were evicted at most two windows ago
    uint32_t replaced = 0;  // evictions for another page
    uint32_t streamed = 0;  // misses that were not cached
  };

  [[nodiscard]] uint32_t num_slots() const { return runs_.size() * kRunFrames; }

  [[nodiscard]] uint32_t num_resident() const { return num_resident_; }

  [[nodiscard]] const Counters& counters() const { return counters_; }

  // Covers pages [0, num_pages). False when the slab is full (unchanged).
  [[nodiscard]] bool Cover(const GroupContext& context, uint32_t num_pages);

  // Begins `step` unless the group is in it already.
  void AdvanceTo(const GroupContext& context, uint16_t step);

  // See FastTier::Plan.
  void Plan(const GroupContext& context,
            GroupWorker& worker,
            std::span<const uint32_t> pages,
            Caching caching,
            FrameRing ring,
            GroupPlan* plan);

  void Commit(const GroupContext& context, const GroupPlan& plan);
  void Abort(const GroupContext& context,
             GroupWorker& worker,
             std::span<const uint32_t> pages,
             const GroupPlan& plan);

  [[nodiscard]] uint32_t FrameOf(const GroupContext& context, uint32_t page) const {
    const uint32_t slot = directory_.Lookup(context.slab, page);
    return slot == kNoSlot ? kNoFrame : FrameOfSlot(context, slot);
  }

  // Takes more runs. ERRORS: kResourceExhausted (nothing changed).
  [[nodiscard]] absl::Status GrowTo(const GroupContext& context,
                                    GroupWorker& worker,
                                    uint32_t num_frames);

  // Gives back runs from the end, evicting the least recently used pages if what is left has no
  // room and moving the others. Returns the number of evicted pages. REQUIRES: nothing is pinned.
  uint32_t ShrinkTo(const GroupContext& context, GroupWorker& worker, uint32_t num_frames);

  // Forgets all pages and gives back all frames and metadata. Returns the number of pages.
  uint32_t Drop(const GroupContext& context, GroupWorker& worker);

  // Starts with the youngest pages of `parent` as far as frames reach, ages included; copies their
  // content. Returns how many. REQUIRES: nothing resident here, nothing pinned there; covers the
  // parent's pages.
  uint32_t Adopt(const GroupContext& context, GroupWorker& worker, const CacheGroup& parent);

  // Pages selected in the last window: resident ones by their stamps, and those that did not fit:
  // refaults of a window, pages streamed in the last step. O(slots).
  [[nodiscard]] uint32_t WorkingSetPages(const GroupContext& context) const;

  // Adds the bytes of metadata that this group holds.
  struct MetadataBytes {
    uint64_t directory = 0;
    uint64_t leaves = 0;
    uint64_t run_tables = 0;
    uint64_t refault_maps = 0;
  };

  void AddMetadataBytes(const GroupContext& context, MetadataBytes* bytes) const;

  // kInternal naming the first broken invariant; marks the group's runs. O(slots + regions).
  [[nodiscard]] absl::Status CheckIntegrity(const GroupContext& context,
                                            std::vector<bool>* run_is_owned) const;

 private:
  // Bit i of word w: page 64 · region + i was evicted in window w of the last two.
  struct RefaultRegion {
    std::array<uint64_t, 2> evicted;
  };

  [[nodiscard]] uint32_t FrameOfSlot(const GroupContext& context, uint32_t slot) const {
    return runs_.At(context.slab, slot / kRunFrames) * kRunFrames + slot % kRunFrames;
  }

  // The stamps of all slots side by side.
  [[nodiscard]] std::span<const uint8_t> GatherStamps(const GroupContext& context,
                                                      GroupWorker& worker) const;
  void Evict(const GroupContext& context, GroupWorker& worker, uint32_t frame);
  void FreeFrame(const GroupContext& context, uint32_t frame);
  void MovePage(const GroupContext& context, uint32_t from_slot, uint32_t to_slot);
  void RememberEviction(const GroupContext& context, uint32_t page);
  [[nodiscard]] bool IsRefault(const GroupContext& context, uint32_t page);
  void BeginWindow(const GroupContext& context);
  void AdmitMisses(const GroupContext& context,
                   GroupWorker& worker,
                   std::span<const uint32_t> pages,
                   Caching caching,
                   GroupPlan* plan);
  void CountRefaults(const GroupContext& context, std::span<const uint32_t> pages, GroupPlan* plan);
  [[nodiscard]] absl::Status CheckSlot(const GroupContext& context, uint32_t slot) const;

  PageDirectory directory_;
  SlabArray<uint32_t> runs_;
  SlabArray<RefaultRegion> refault_maps_;
  LruState lru_;
  uint32_t num_resident_ = 0;
  Counters counters_;
  uint16_t step_ = 0;
  uint8_t window_tick_ = 0;  // steps in the present window
  uint8_t window_ = 0;       // which word of the refault maps is the present one
  std::array<uint16_t, 2> window_refaults_{};
  uint16_t last_streamed_ = 0;
};

static_assert(sizeof(CacheGroup) == 64);

}  // namespace spindle::kv
