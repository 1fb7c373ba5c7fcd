// The index of one algorithm for whole segments. A segment is known by its last stripe: sequences
// that share that one share all before it, so they share the index, too. Blobs of stripes that are
// gone are used again; then those that no sequence of the step needs; they can be built again from
// the keys at any time. Layout: [blob][layer][KV head][bytes].
// Thread-safety: engine-thread only, except Data, which compute workers use for disjoint parts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kv/kv_geometry.h"
#include "kv/slab_arena.h"

namespace spindle::sparse {

class SegmentIndexStore {
 public:
  // `head_bytes`: of one segment, layer and KV head. `num_slots`: of the store's stripes. Takes
  // addresses only, no memory. ERRORS: kResourceExhausted (address space).
  static absl::StatusOr<SegmentIndexStore> Create(const kv::KvGeometry& geometry,
                                                  uint64_t num_slots,
                                                  uint32_t head_bytes);

  // A step begins: what is found from now on stays until the next one.
  void BeginStep() { ++step_; }

  struct Found {
    uint32_t blob;
    bool is_built;  // false: the caller builds it in this step
  };

  // The blob of the segment that ends with the stripe in `slot`, made if it is missing.
  // `generations`: of all slots. ERRORS: kResourceExhausted (memory, or more segments in one step
  // than the store can hold at all).
  [[nodiscard]] absl::StatusOr<Found> Find(uint32_t slot, std::span<const uint32_t> generations);

  // The step that was to build it has failed.
  void Forget(uint32_t blob);

  [[nodiscard]] uint8_t* Data(uint32_t blob) const {
    return arena_.data() + uint64_t{blob} * blob_bytes_;
  }

  // Of a layer and KV head, from Data on.
  [[nodiscard]] uint64_t Offset(uint32_t layer, uint32_t head) const {
    return (uint64_t{layer} * num_kv_heads_ + head) * head_bytes_;
  }

 private:
  struct Blob {
    uint32_t slot;
    uint32_t generation;
    uint64_t last_step;
    bool is_used;
  };

  SegmentIndexStore(kv::SlabArena arena,
                    const kv::KvGeometry& geometry,
                    uint64_t num_slots,
                    uint64_t max_blobs,
                    uint32_t head_bytes);

  [[nodiscard]] absl::StatusOr<uint32_t> Take(std::span<const uint32_t> generations);

  uint32_t num_kv_heads_;
  uint32_t head_bytes_;
  uint64_t blob_bytes_;
  uint64_t max_blobs_;
  kv::SlabArena arena_;
  uint64_t step_ = 1;
  std::vector<Blob> blobs_;
  std::vector<uint32_t> blob_of_;  // [slots]
};

}  // namespace spindle::sparse
