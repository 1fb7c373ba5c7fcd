#include "kv/fast/frame_pool.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "kernels/api/lru.h"

namespace spindle::kv {
namespace {

constexpr size_t kFrameAlignment = 64;
constexpr size_t kMaxPageBytes = size_t{1} << 20;
constexpr uint32_t kMaxRuns = 1U << 28;

}  // namespace

absl::StatusOr<FramePool> FramePool::Create(uint64_t max_bytes, size_t page_bytes) {
  if (page_bytes == 0 || page_bytes > kMaxPageBytes) {
    return absl::InvalidArgumentError("page bytes must be in 1..1048576, got " +
                                      std::to_string(page_bytes));
  }
  const size_t stride = (page_bytes + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
  const uint64_t num_runs = max_bytes / (stride * kRunFrames);
  if (num_runs < 1 || num_runs > kMaxRuns) {
    return absl::InvalidArgumentError(
        "bytes of the fast tier must hold 1..2^28 runs of 8 frames of " + std::to_string(stride) +
        " bytes, got " + std::to_string(max_bytes));
  }
  const uint64_t num_frames = num_runs * kRunFrames;
  SPINDLE_ASSIGN_OR_RETURN(SlabArena arena, SlabArena::Reserve(num_frames * stride));
  SPINDLE_ASSIGN_OR_RETURN(platform::AlignedBuffer stamps,
                           platform::AlignedBuffer::Allocate(num_frames));
  SPINDLE_ASSIGN_OR_RETURN(platform::AlignedBuffer words,
                           platform::AlignedBuffer::Allocate(num_frames * sizeof(FrameWord)));
  return FramePool(std::move(arena),
                   std::move(stamps),
                   std::move(words),
                   static_cast<uint32_t>(num_runs),
                   stride);
}

FramePool::FramePool(SlabArena arena,
                     platform::AlignedBuffer stamps,
                     platform::AlignedBuffer words,
                     uint32_t num_runs,
                     size_t stride_bytes)
    : arena_(std::move(arena)),
      stamps_(std::move(stamps)),
      words_(std::move(words)),
      free_((num_runs + 63) / 64, ~uint64_t{0}),
      num_runs_(num_runs),
      num_free_runs_(num_runs),
      stride_bytes_(stride_bytes) {
  if (num_runs % 64 != 0) {
    free_.back() = (uint64_t{1} << (num_runs % 64)) - 1;
  }
}

absl::Status FramePool::Allocate(std::span<uint32_t> runs) {
  if (runs.size() > num_free_runs_) {
    return absl::ResourceExhaustedError(std::to_string(runs.size() * kRunFrames) +
                                        " frames wanted, " +
                                        std::to_string(uint64_t{num_free_runs_} * kRunFrames) +
                                        " of " + std::to_string(num_frames()) + " free");
  }
  uint32_t word = search_from_;
  uint64_t bits = runs.empty() ? 0 : free_[word];
  for (uint32_t& run : runs) {
    while (bits == 0) {
      bits = free_[++word];
    }
    run = word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
    bits &= bits - 1;
  }
  if (!runs.empty()) {
    const size_t end = (size_t{runs.back()} + 1) * kRunFrames * stride_bytes_;
    SPINDLE_RETURN_IF_ERROR(arena_.Commit(end));
    search_from_ = word;
  }
  for (const uint32_t run : runs) {
    free_[run / 64] &= ~(uint64_t{1} << (run % 64));
  }
  num_free_runs_ -= static_cast<uint32_t>(runs.size());
  return absl::OkStatus();
}

void FramePool::Free(std::span<const uint32_t> runs) {
  for (const uint32_t run : runs) {
    SPINDLE_DCHECK(!is_free(run));
    free_[run / 64] |= uint64_t{1} << (run % 64);
    search_from_ = std::min(search_from_, run / 64);
  }
  num_free_runs_ += static_cast<uint32_t>(runs.size());
}

uint64_t FramePool::metadata_bytes() const {
  return stamps_.size() + words_.size() + free_.size() * sizeof(uint64_t);
}

absl::Status FramePool::CheckIntegrity() const {
  uint32_t num_free = 0;
  for (uint32_t run = 0; run < num_runs_; ++run) {
    if (!is_free(run)) {
      continue;
    }
    ++num_free;
    for (uint32_t frame = run * kRunFrames; frame < (run + 1) * kRunFrames; ++frame) {
      if (word(frame).state() != FrameState::kFree || stamps()[frame] != kernels::kLruFree) {
        return absl::InternalError("frame " + std::to_string(frame) + " of a free run is in use");
      }
    }
  }
  if (num_free != num_free_runs_) {
    return absl::InternalError("free runs: " + std::to_string(num_free) + " counted, " +
                               std::to_string(num_free_runs_) + " expected");
  }
  return absl::OkStatus();
}

}  // namespace spindle::kv
