// The one door through which model layers reach attention: rotation, append to the KV store, index,
// choice of partitions by the sequence's policy, and attention over them, read in place or from the
// fast tier. Engine-thread only. Borrows the store, the fast memory, the pool and the kernels,
// which must outlive it. Allocates only when a step is larger than every step before it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "base/ids.h"
#include "kernels/registry.h"
#include "kv/kv_store.h"
#include "platform/compute_pool.h"
#include "sparse/indexed_tokens.h"
#include "sparse/mirror_attention.h"
#include "sparse/sequence_rows.h"
#include "tensor/attention_spec.h"

namespace spindle::sparse {

// Raw products of one layer. Row-major fp32.
struct AttendArgs {
  LayerIdx layer;
  const tensor::AttentionSpec* spec;
  const float*
      q;  // [num_rows][q_stride]: num_q_heads × head_dim, before norm and rotation (bias included)
  const float* k;  // [num_rows][k_stride]: num_kv_heads × head_dim
  const float* v;  // [num_rows][v_stride]
  size_t q_stride;
  size_t k_stride;
  size_t v_stride;
  float* out;  // [num_rows][out_stride]: num_q_heads × head_dim
  size_t out_stride;
};

// What pages must be copied to before they are read, and what records that. No tier: they are read
// in place, and nothing is recorded.
struct FastMemory {
  kv::FastTier* tier = nullptr;
  kv::EmulatedLink* link = nullptr;
  kv::AccessRecorder* recorder = nullptr;
};

class AttentionRuntime {
 public:
  AttentionRuntime(kv::KvStore& store,
                   platform::ComputePool& pool,
                   const kernels::KernelTable& kernels,
                   const FastMemory& fast = {});
  ~AttentionRuntime();
  AttentionRuntime(const AttentionRuntime&) = delete;
  AttentionRuntime& operator=(const AttentionRuntime&) = delete;

  // Fixes the rows of the coming layers; called once per step, before layer 0. Addresses are taken
  // from the store here: no non-const call on the store until the step's last layer is done. Layers
  // come in ascending order. ERRORS: kResourceExhausted (memory of indexes).
  [[nodiscard]] absl::Status BeginStep(std::span<const SequenceRows> rows);

  // One layer: q/k norm, rotation, append of k and v, causal attention of every row over its
  // sequence. ERRORS: those of kernels.
  [[nodiscard]] absl::Status Attend(const AttendArgs& args);

  // Of the fast tier; zeros in place. Between layers.
  [[nodiscard]] MirrorCounters Counters() const;

  // Since the start; valid until the next step.
  [[nodiscard]] std::span<const IndexedTokens> Indexed() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spindle::sparse
