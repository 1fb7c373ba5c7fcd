// The bookkeeping of the fast tier: bounded frames, and for every (sequence, layer, KV head) a
// cache group that knows which of its pages are in which frames and which to give up. It copies no
// page from the host: a plan says which pages go to which frames, and the caller copies, attends
// and commits.
//
//   tier->BeginStep(set);                                   // engine thread
//   tier->Plan(worker, ring, group, pages, &plan);          // the worker that has the group
//   for each pass: copy its loads, attend to its pages
//   tier->Commit(group, plan);                              // or Abort: the loads did not happen
//
// A selected page is never dropped: pages beyond the group's frames go through a ring of frames in
// as many passes as it takes, and no page of a step is ever given up for another of the same step.
// Passes are cut at segments, since attention's state goes from pass to pass there.
// Thread-safety: Plan, Commit, Abort and FrameOf by the worker that was given the group; every
// worker has its own number and at any time its own rings. All else on the engine thread between
// steps. Nothing is allocated once a set's place was used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/prefix_key.h"
#include "kernels/registry.h"
#include "kv/fast/bucketed_lru.h"
#include "kv/fast/frame_pool.h"
#include "kv/fast/group_plan.h"
#include "kv/kv_geometry.h"

namespace spindle::kv {

// The cache groups of one sequence.
using CacheSetId = StrongId<struct CacheSetIdTag, uint32_t>;

struct FastTierOptions {
  KvGeometry geometry;
  // Memory of frames, rings included. At least the rings.
  uint64_t fast_bytes = 0;
  // Bound of directories, leaves, run tables and refault maps; used as needed. 4 KiB … 16 GiB.
  uint64_t metadata_bytes = 0;
  // Compute workers, 1 … 1024.
  uint32_t num_workers = 1;
  // Rings of frames for pages beyond a group's own: a worker (or a head of the layer in progress)
  // uses one at a time. 1 … 65536.
  uint32_t num_rings = 1;
  // Tokens whose pages one pass must hold together: a multiple of 64 up to kSegmentTokens.
  uint32_t pass_unit_tokens = kSegmentTokens;
  // Frames per ring: a multiple of 8 of at least one pass unit, at most 65528.
  uint32_t ring_frames = 128;
  // Most frames of one group: a multiple of 8 in 8 … 65528.
  uint32_t max_group_frames = 65528;
  LruOptions lru;
  // Steps of the window of working sets and refaults, 1 … 255.
  uint32_t window_steps = 12;
  // 16 bytes per 64 pages to recognise pages that come back soon after they were evicted.
  bool refault_maps = true;
  // Fills freed frames with 0xFF bytes (NaN): for tests.
  bool poison_free_frames = false;
};

struct GroupRef {
  CacheSetId set;
  LayerIdx layer;
  KvHeadIdx head;
};

struct CacheSetStats {
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t refaults = 0;          // misses of pages evicted at most two windows ago
  uint64_t streamed = 0;          // misses that went through a ring
  uint64_t evicted_replaced = 0;  // for another page
  uint64_t evicted_shrunk = 0;    // by Resize
  uint64_t evicted_dropped = 0;   // by Drop and Close
  uint64_t resident_pages = 0;
  uint64_t frames = 0;             // that the groups own
  uint64_t working_set_pages = 0;  // selected in the last window, see options
};

// Bytes really allocated, by table.
struct FastMetadataBytes {
  uint64_t directory = 0;
  uint64_t leaves = 0;
  uint64_t run_tables = 0;
  uint64_t refault_maps = 0;
  uint64_t frames = 0;  // stamps and words of all frames
  uint64_t groups = 0;
  uint64_t slack = 0;  // parts of chunks in use that hold no table, and stocks of workers

  [[nodiscard]] uint64_t total() const {
    return directory + leaves + run_tables + refault_maps + frames + groups + slack;
  }
};

class FastTier {
 public:
  // ERRORS: kInvalidArgument naming the option and its range; kResourceExhausted (memory).
  static absl::StatusOr<std::unique_ptr<FastTier>> Create(const FastTierOptions& options,
                                                          const kernels::KernelTable& kernels);
  ~FastTier();
  FastTier(const FastTier&) = delete;
  FastTier& operator=(const FastTier&) = delete;

  // Groups for all layers and KV heads of a sequence, without frames, for pages [0, num_pages).
  // `pages_per_unit`: pages that one pass must hold together, where ids do not mean tokens; 0:
  // those of the options. ERRORS: kResourceExhausted (metadata; nothing changed).
  [[nodiscard]] absl::StatusOr<CacheSetId> Open(BudgetGroupId group,
                                                uint32_t num_pages,
                                                uint32_t pages_per_unit = 0);

  // Makes room for pages [0, num_pages) in the directories. Pages beyond can be planned, but are
  // streamed. ERRORS: kInvalidArgument (more than FrameWord::kMaxPages), kResourceExhausted
  // (metadata; may have grown some).
  [[nodiscard]] absl::Status Cover(CacheSetId set, uint32_t num_pages);

  // Gives every group this many frames. Growing is all or nothing; shrinking evicts the
  // least recently used pages and moves others, O(frames) copies at most.
  //   REQUIRES: frames_per_group is a multiple of 8 and at most max_group_frames.
  //   ERRORS:   kResourceExhausted (nothing changed)
  [[nodiscard]] absl::Status Resize(CacheSetId set, uint32_t frames_per_group);

  // The sequence takes part in the step that begins: stamps age by one, on first use of a group.
  void BeginStep(CacheSetId set);

  // Finds frames for `pages` (ascending, distinct): resident ones stay where they are, misses get
  // frames of the group as `caching` says, and the ring where there are none.
  //   plan   room for pages.size(); overwritten
  //   ring   < num_rings, used until Commit or Abort
  void Plan(uint32_t worker,
            uint32_t ring,
            const GroupRef& group,
            std::span<const uint32_t> pages,
            Caching caching,
            GroupPlan* plan);

  // Attention has read the pages: they were used now.
  void Commit(const GroupRef& group, const GroupPlan& plan);

  // The loads of the plan did not happen or failed: their frames are free again.
  void Abort(uint32_t worker,
             const GroupRef& group,
             std::span<const uint32_t> pages,
             const GroupPlan& plan);

  // The frame of a resident page, or kNoFrame: where rows appended to the page must go as well.
  [[nodiscard]] uint32_t FrameOf(const GroupRef& group, uint32_t page) const;

  // [page_bytes] of a frame of a plan.
  [[nodiscard]] uint8_t* FrameData(uint32_t frame) const { return pool().data(frame); }

  // A fork begins with its parent's pages, as far as its own frames reach: content and ages.
  // Returns the number of pages copied. REQUIRES: the child is new, and covers as many pages.
  uint64_t Adopt(CacheSetId child, CacheSetId parent);

  // Pause: gives back all frames and directories; counters stay. Cover and Resize bring it back.
  // REQUIRES: every plan was committed or aborted.
  void Drop(CacheSetId set);

  // Ends the set. REQUIRES: as Drop.
  void Close(CacheSetId set);

  [[nodiscard]] const FastTierOptions& options() const;

  // O(frames of the set).
  [[nodiscard]] CacheSetStats Stats(CacheSetId set) const;

  // O(pages covered by all sets).
  [[nodiscard]] FastMetadataBytes MetadataBytes() const;

  [[nodiscard]] const FramePool& pool() const;

  // Frames that no ring and no group has.
  [[nodiscard]] uint64_t num_free_frames() const {
    return uint64_t{pool().num_free_runs()} * kRunFrames;
  }

  // Between steps: kInternal naming the first broken invariant. O(frames + pages covered).
  [[nodiscard]] absl::Status CheckIntegrity() const;

 private:
  class Impl;
  explicit FastTier(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// ERRORS: kInvalidArgument naming the option and its range.
[[nodiscard]] absl::Status ValidateFastTierOptions(const FastTierOptions& options);

}  // namespace spindle::kv
