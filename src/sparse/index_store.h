// The index of one algorithm for the stripes of the host tier. A stripe's index lies where its slot
// says, so sequences that share a stripe share its index, and it is gone with the stripe; it is
// built again from the keys when it is missing. Layout: [slot][layer][KV head][bytes].
// Thread-safety: engine-thread only, except Data, which compute workers use for disjoint parts.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kv/kv_geometry.h"
#include "kv/slab_arena.h"

namespace spindle::sparse {

class IndexStore {
 public:
  // `head_bytes`: of one stripe, layer and KV head. Takes addresses only, no memory.
  // ERRORS: kResourceExhausted (address space).
  static absl::StatusOr<IndexStore> Create(const kv::KvGeometry& geometry,
                                           uint64_t num_slots,
                                           uint32_t head_bytes);

  // Lanes of the slot's stripe whose complete units are indexed, in all layers.
  [[nodiscard]] uint32_t BuiltLanes(uint32_t slot, uint32_t generation) const {
    const SlotState& state = slots_[slot];
    return state.generation == generation ? state.built_lanes : 0;
  }

  void SetBuiltLanes(uint32_t slot, uint32_t generation, uint32_t lanes) {
    slots_[slot] = {.generation = generation, .built_lanes = lanes};
  }

  // Memory for slots [0, slot]. ERRORS: kResourceExhausted.
  [[nodiscard]] absl::Status Cover(uint32_t slot) {
    return arena_.Commit((uint64_t{slot} + 1) * slot_bytes_);
  }

  [[nodiscard]] uint8_t* Data(uint32_t slot) const { return arena_.data() + slot * slot_bytes_; }

  // Of a layer and KV head, from Data on.
  [[nodiscard]] uint64_t Offset(uint32_t layer, uint32_t head) const {
    return (uint64_t{layer} * num_kv_heads_ + head) * head_bytes_;
  }

 private:
  struct SlotState {
    uint32_t generation = 0;
    uint32_t built_lanes = 0;
  };

  IndexStore(kv::SlabArena arena,
             const kv::KvGeometry& geometry,
             uint64_t num_slots,
             uint32_t head_bytes)
      : num_kv_heads_(geometry.num_kv_heads),
        head_bytes_(head_bytes),
        slot_bytes_(uint64_t{geometry.num_layers} * geometry.num_kv_heads * head_bytes),
        arena_(std::move(arena)),
        slots_(num_slots) {}

  uint32_t num_kv_heads_;
  uint32_t head_bytes_;
  uint64_t slot_bytes_;
  kv::SlabArena arena_;
  std::vector<SlotState> slots_;
};

}  // namespace spindle::sparse
