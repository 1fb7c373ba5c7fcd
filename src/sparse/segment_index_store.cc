#include "sparse/segment_index_store.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/prefix_key.h"
#include "base/status_macros.h"

namespace spindle::sparse {
namespace {

constexpr uint32_t kNoBlob = std::numeric_limits<uint32_t>::max();
constexpr uint64_t kStripesPerSegment = kSegmentTokens / kStripeTokens;
// Segments of sequences that share all but their last stripes with others.
constexpr uint64_t kMostBranches = 4096;

}  // namespace

absl::StatusOr<SegmentIndexStore> SegmentIndexStore::Create(const kv::KvGeometry& geometry,
                                                            uint64_t num_slots,
                                                            uint32_t head_bytes) {
  const uint64_t blob_bytes = uint64_t{geometry.num_layers} * geometry.num_kv_heads * head_bytes;
  const uint64_t max_blobs = num_slots / kStripesPerSegment + std::min(num_slots, kMostBranches);
  SPINDLE_ASSIGN_OR_RETURN(kv::SlabArena arena, kv::SlabArena::Reserve(max_blobs * blob_bytes));
  return SegmentIndexStore(std::move(arena), geometry, num_slots, max_blobs, head_bytes);
}

SegmentIndexStore::SegmentIndexStore(kv::SlabArena arena,
                                     const kv::KvGeometry& geometry,
                                     uint64_t num_slots,
                                     uint64_t max_blobs,
                                     uint32_t head_bytes)
    : num_kv_heads_(geometry.num_kv_heads),
      head_bytes_(head_bytes),
      blob_bytes_(uint64_t{geometry.num_layers} * geometry.num_kv_heads * head_bytes),
      max_blobs_(max_blobs),
      arena_(std::move(arena)),
      blob_of_(num_slots, kNoBlob) {}

absl::StatusOr<SegmentIndexStore::Found> SegmentIndexStore::Find(
    uint32_t slot, std::span<const uint32_t> generations) {
  const uint32_t known = blob_of_[slot];
  if (known != kNoBlob && blobs_[known].generation == generations[slot]) {
    blobs_[known].last_step = step_;
    return Found{known, true};
  }
  uint32_t blob = known;  // of what the slot held before
  if (known == kNoBlob) {
    SPINDLE_ASSIGN_OR_RETURN(blob, Take(generations));
  }
  blobs_[blob] = {
      .slot = slot, .generation = generations[slot], .last_step = step_, .is_used = true};
  blob_of_[slot] = blob;
  return Found{blob, false};
}

void SegmentIndexStore::Forget(uint32_t blob) {
  blob_of_[blobs_[blob].slot] = kNoBlob;
  blobs_[blob].is_used = false;
}

// One that nothing needs, or a new one; beyond a blob per segment of the store, rather one that
// this step does not need.
absl::StatusOr<uint32_t> SegmentIndexStore::Take(std::span<const uint32_t> generations) {
  uint32_t oldest = kNoBlob;
  for (uint32_t i = 0; i < blobs_.size(); ++i) {
    Blob& blob = blobs_[i];
    if (blob.is_used && blob.generation != generations[blob.slot]) {
      Forget(i);
    }
    if (!blob.is_used) {
      return i;
    }
    if (blob.last_step != step_ &&
        (oldest == kNoBlob || blob.last_step < blobs_[oldest].last_step)) {
      oldest = i;
    }
  }
  if (blobs_.size() >= blob_of_.size() / kStripesPerSegment && oldest != kNoBlob) {
    Forget(oldest);
    return oldest;
  }
  if (blobs_.size() == max_blobs_) {
    return absl::ResourceExhaustedError("indexes of more segments than the store can hold");
  }
  SPINDLE_RETURN_IF_ERROR(arena_.Commit((blobs_.size() + 1) * blob_bytes_));
  blobs_.push_back({});
  return static_cast<uint32_t>(blobs_.size() - 1);
}

}  // namespace spindle::sparse
