// The one door through which model layers reach attention: rotation, append to the KV store, and
// attention over partitions chosen by the sequence's algorithm. Dense is the only algorithm for
// now; Index → Select → Retrieve → Attention → merge attach here. Engine-thread only. Borrows the
// store, the pool and the kernels, which must outlive it. Allocates only when a step is larger than
// every step before it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "base/ids.h"
#include "kernels/registry.h"
#include "kv/kv_store.h"
#include "platform/compute_pool.h"
#include "tensor/attention_spec.h"

namespace spindle::sparse {

// Rows [row_begin, row_begin + num_rows) of a step are consecutive tokens of one sequence, the
// first at position `first_position`. REQUIRES: the store has room (KvStore::Extend) for them, and
// none lies in a sealed stripe.
struct SequenceRows {
  SequenceId sequence;
  uint32_t row_begin;
  uint32_t num_rows;
  uint32_t first_position;
};

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

class AttentionRuntime {
 public:
  AttentionRuntime(kv::KvStore& store,
                   platform::ComputePool& pool,
                   const kernels::KernelTable& kernels);
  ~AttentionRuntime();
  AttentionRuntime(const AttentionRuntime&) = delete;
  AttentionRuntime& operator=(const AttentionRuntime&) = delete;

  // Fixes the rows of the coming layers; called once per step, before layer 0. Addresses are taken
  // from the store here: no non-const call on the store until the step's last layer is done.
  void BeginStep(std::span<const SequenceRows> rows);

  // One layer: q/k norm, rotation, append of k and v, causal attention of every row over its
  // sequence. ERRORS: those of kernels.
  [[nodiscard]] absl::Status Attend(const AttendArgs& args);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spindle::sparse
