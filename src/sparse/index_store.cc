#include "sparse/index_store.h"

#include <utility>

#include "base/status_macros.h"

namespace spindle::sparse {

absl::StatusOr<IndexStore> IndexStore::Create(const kv::KvGeometry& geometry,
                                              uint64_t num_slots,
                                              uint32_t head_bytes) {
  const uint64_t slot_bytes = uint64_t{geometry.num_layers} * geometry.num_kv_heads * head_bytes;
  SPINDLE_ASSIGN_OR_RETURN(kv::SlabArena arena, kv::SlabArena::Reserve(num_slots * slot_bytes));
  return IndexStore(std::move(arena), geometry, num_slots, head_bytes);
}

}  // namespace spindle::sparse
