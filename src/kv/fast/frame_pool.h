// The frames of the fast tier: their memory, their states, and who may have them. Frames are handed
// out in runs of 8 neighbours (one tile of 64 tokens at least), so that a group owns its frames
// while it runs and takes none, and no lock, during a layer.
//
// Per frame: a stamp (bucketed_lru.h) and a word of page and state, 5 bytes; per run one bit.
// Thread-safety: runs change on the engine thread only; the stamps and words of a run
// belong to whoever owns the run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kv/slab_arena.h"
#include "platform/memory.h"

namespace spindle::kv {

inline constexpr uint32_t kRunFrames = 8;
inline constexpr uint32_t kNoFrame = ~uint32_t{0};

// A backend that produces KV in frames adds dirty and write-back between loading and resident.
enum class FrameState : uint8_t { kFree = 0, kLoading = 1, kResident = 2 };

// 22 bits of page, 3 of state.
class FrameWord {
 public:
  static constexpr uint32_t kMaxPages = 1U << 22;

  [[nodiscard]] uint32_t page() const { return bits_ >> 3; }

  [[nodiscard]] FrameState state() const { return static_cast<FrameState>(bits_ & 7); }

  // REQUIRES: free.
  void Load(uint32_t page) { Set(page, FrameState::kLoading); }

  void Publish() { Set(page(), FrameState::kResident); }

  // A page that is copied in at once. REQUIRES: free.
  void Fill(uint32_t page) { Set(page, FrameState::kResident); }

  void Free() { bits_ = 0; }

 private:
  void Set(uint32_t page, FrameState state) { bits_ = page << 3 | static_cast<uint32_t>(state); }

  uint32_t bits_ = 0;
};

static_assert(sizeof(FrameWord) == 4);

class FramePool {
 public:
  // As many whole runs as fit into `max_bytes`; memory is committed in slabs as runs are first
  // used, never more than max_bytes. ERRORS: kInvalidArgument (page_bytes 0 or over 1 MiB, no room
  // for one run), kResourceExhausted (address space).
  static absl::StatusOr<FramePool> Create(uint64_t max_bytes, size_t page_bytes);

  [[nodiscard]] uint32_t num_frames() const { return num_runs_ * kRunFrames; }

  [[nodiscard]] uint32_t num_runs() const { return num_runs_; }

  [[nodiscard]] uint32_t num_free_runs() const { return num_free_runs_; }

  // Page bytes, rounded up to 64.
  [[nodiscard]] size_t stride_bytes() const { return stride_bytes_; }

  // REQUIRES: frame of a run that was allocated.
  [[nodiscard]] uint8_t* data(uint32_t frame) const {
    return arena_.data() + frame * stride_bytes_;
  }

  [[nodiscard]] uint8_t* stamps() const { return stamps_.data(); }

  [[nodiscard]] FrameWord& word(uint32_t frame) const { return words_.As<FrameWord>()[frame]; }

  // Fills `runs` with free runs, the lowest there are. Their frames are free.
  // ERRORS: kResourceExhausted (nothing changed): not as many, or no memory.
  [[nodiscard]] absl::Status Allocate(std::span<uint32_t> runs);

  // REQUIRES: allocated, all frames free.
  void Free(std::span<const uint32_t> runs);

  [[nodiscard]] bool is_free(uint32_t run) const {
    return (free_[run / 64] >> (run % 64) & 1) != 0;
  }

  // Memory taken from the system for frames.
  [[nodiscard]] uint64_t committed_bytes() const { return arena_.committed_bytes(); }

  // Bytes of stamps, words and free bits.
  [[nodiscard]] uint64_t metadata_bytes() const;

  // kInternal naming the first broken invariant of free runs. O(frames).
  [[nodiscard]] absl::Status CheckIntegrity() const;

 private:
  FramePool(SlabArena arena,
            platform::AlignedBuffer stamps,
            platform::AlignedBuffer words,
            uint32_t num_runs,
            size_t stride_bytes);

  SlabArena arena_;
  platform::AlignedBuffer stamps_;
  platform::AlignedBuffer words_;
  std::vector<uint64_t> free_;  // one bit per run
  uint32_t num_runs_;
  uint32_t num_free_runs_;
  uint32_t search_from_ = 0;  // no word of free_ below this one has a bit
  size_t stride_bytes_;
};

}  // namespace spindle::kv
