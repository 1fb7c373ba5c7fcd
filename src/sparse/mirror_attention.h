// Attention as on a device: every page is in the fast tier before it is read, and what is not there
// is copied from the host first, over an emulated link if there is one. Modes `mirror` and
// `emulated-link` of the store, for tests and for benches of what a device would do.
//
// A worker takes one (sequence, KV head) of a layer at a time: it refreshes frames of pages that
// the step has appended to, plans the pages of each job, and alternates copying and attending, pass
// by pass, until all spans are folded. Bits equal in-place attention: a pass is whole spans, and
// states go from pass to pass.
// Thread-safety: engine-thread only. Borrows what it is constructed with.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/registry.h"
#include "kv/fast/emulated_link.h"
#include "kv/fast/fast_tier.h"
#include "kv/kv_geometry.h"
#include "kv/trace/access_recorder.h"
#include "platform/compute_pool.h"
#include "platform/memory.h"
#include "sparse/layer_attention.h"

namespace spindle::sparse {

// Totals since the start.
struct MirrorCounters {
  uint64_t page_hits = 0;
  uint64_t page_misses = 0;       // every one is a page copied from the host
  uint64_t pages_streamed = 0;    // of these: not kept
  uint64_t page_refaults = 0;     // of these: evicted not long ago
  uint64_t bytes_copied = 0;      // pages and refreshed rows
  uint64_t multi_pass_heads = 0;  // (row block, head) that took more than one pass
  uint64_t stall_ns = 0;          // that workers waited for the link

  MirrorCounters& operator+=(const MirrorCounters& other);
};

class MirrorAttention final : public LayerAttention {
 public:
  // `link` may be null: copies take the time they take. `recorder` may be null: nothing is
  // recorded. REQUIRES: the tier and the recorder have a worker, the tier a ring, per worker of the
  // pool.
  MirrorAttention(const kv::KvGeometry& geometry,
                  kv::FastTier& tier,
                  kv::EmulatedLink* link,
                  kv::AccessRecorder* recorder,
                  platform::ComputePool& pool,
                  const kernels::KernelTable& kernels);
  ~MirrorAttention() override;

  void BeginStep(const StepJobs& jobs) override;
  [[nodiscard]] absl::Status Attend(const LayerQueries& queries) override;

  // Between layers.
  [[nodiscard]] MirrorCounters Counters() const;

 private:
  struct Worker;
  class HeadTask;

  // Of the generated rows of one sequence, of one KV head, in the layer in progress.
  struct HeadPages {
    uint64_t hits = 0;
    uint64_t misses = 0;
  };

  // Which rows the step appends to which sequences.
  void RecordRows() const;
  // Adds head_pages_ to sequences that count layers.
  void CountLayer(LayerIdx layer) const;

  const kv::KvGeometry geometry_;
  kv::FastTier& tier_;
  kv::EmulatedLink* const link_;
  kv::AccessRecorder* const recorder_;
  platform::ComputePool& pool_;
  const kernels::KernelTable& kernels_;
  const StepJobs* jobs_ = nullptr;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<HeadPages>
      head_pages_;  // [sequences][num_kv_heads]; empty: no sequence counts layers
};

}  // namespace spindle::sparse
