// Invariants and byte counts of a cache group.
#include <string>

#include "base/status_macros.h"
#include "kv/fast/cache_group.h"

namespace spindle::kv {
namespace {

using kernels::kLruFree;
using kernels::kLruPinned;

absl::Status Broken(const std::string& what, uint32_t number) {
  return absl::InternalError(what + " " + std::to_string(number));
}

// A full bitmap needs no larger leaf than its population; a larger one is only left where the slab
// had no smaller one.
absl::Status CheckEntry(const PageDirectory::Entry& entry, uint32_t region) {
  const auto count = static_cast<uint32_t>(std::popcount(entry.bitmap));
  const uint32_t capacity = entry.capacity;
  const bool is_size =
      capacity == 0 || (std::has_single_bit(capacity) && capacity >= 2 && capacity <= kRegionPages);
  if (!is_size || count > capacity || (count == 0 && capacity != 0)) {
    return Broken("leaf does not fit the bitmap of region", region);
  }
  return absl::OkStatus();
}

}  // namespace

void CacheGroup::AddMetadataBytes(const GroupContext& context, MetadataBytes* bytes) const {
  bytes->directory += directory_.entry_bytes();
  bytes->leaves += directory_.leaf_bytes(context.slab);
  bytes->run_tables += runs_.item_bytes();
  bytes->refault_maps += refault_maps_.item_bytes();
}

absl::Status CacheGroup::CheckSlot(const GroupContext& context, uint32_t slot) const {
  const uint32_t frame = FrameOfSlot(context, slot);
  const FrameWord word = context.pool.word(frame);
  const uint8_t stamp = context.pool.stamps()[frame];
  if (word.state() == FrameState::kFree) {
    return stamp == kLruFree ? absl::OkStatus() : Broken("free frame has a stamp: frame", frame);
  }
  if (word.state() != FrameState::kResident) {
    return Broken("load left unfinished in frame", frame);
  }
  if (stamp == kLruPinned) {
    return Broken("page left pinned in frame", frame);
  }
  if (stamp == kLruFree || stamp > lru_.now) {
    return Broken("stamp out of range in frame", frame);
  }
  if (directory_.Lookup(context.slab, word.page()) != slot) {
    return Broken("directory does not lead to frame", frame);
  }
  return absl::OkStatus();
}

absl::Status CacheGroup::CheckIntegrity(const GroupContext& context,
                                        std::vector<bool>* run_is_owned) const {
  for (uint32_t i = 0; i < runs_.size(); ++i) {
    const uint32_t run = runs_.At(context.slab, i);
    if (run >= context.pool.num_runs() || context.pool.is_free(run) || (*run_is_owned)[run]) {
      return Broken("run is free or owned twice: run", run);
    }
    (*run_is_owned)[run] = true;
  }
  uint32_t used_slots = 0;
  for (uint32_t slot = 0; slot < num_slots(); ++slot) {
    SPINDLE_RETURN_IF_ERROR(CheckSlot(context, slot));
    const FrameState state = context.pool.word(FrameOfSlot(context, slot)).state();
    used_slots += state == FrameState::kFree ? 0U : 1U;
  }
  for (uint32_t region = 0; region < directory_.num_pages() / kRegionPages; ++region) {
    SPINDLE_RETURN_IF_ERROR(CheckEntry(directory_.entry(context.slab, region), region));
  }
  // With every used slot found through the directory, equal counts leave no page without a slot.
  uint32_t num_pages = 0;
  directory_.ForEach(context.slab, [&num_pages](uint32_t, uint32_t) { ++num_pages; });
  if (used_slots != num_resident_ || num_pages != num_resident_) {
    return absl::InternalError("resident pages: " + std::to_string(num_resident_) + " expected, " +
                               std::to_string(used_slots) + " in frames, " +
                               std::to_string(num_pages) + " in the directory");
  }
  return absl::OkStatus();
}

}  // namespace spindle::kv
