// What a step asks of attention: which rows belong to which sequence, and how they are attended.
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "base/ids.h"
#include "kv/fast/fast_tier.h"
#include "sparse/decode_use.h"
#include "sparse/kept_choice.h"
#include "sparse/prefill_policy.h"
#include "sparse/prefill_use.h"
#include "sparse/sparse_policy.h"

namespace spindle::sparse {

// Rows [row_begin, row_begin + num_rows) of a step are consecutive tokens of one sequence, the
// first at position `first_position`. REQUIRES: the store has room (KvStore::Extend) for them, and
// none lies in a sealed stripe.
struct SequenceRows {
  SequenceId sequence;
  uint32_t row_begin;
  uint32_t num_rows;
  uint32_t first_position;
  // Rows from `decode_begin` on are those of generated tokens. They are attended by the policy,
  // each with its own choice, whether they come one per step or are computed again after a
  // preemption; rows before it, of the prompt, by `prefill`. Null: densely. Borrowed until the step
  // is done.
  const SparsePolicy* policy = nullptr;
  uint32_t decode_begin = std::numeric_limits<uint32_t>::max();
  // Which rows of the prompt, whose length is `decode_begin`, are attended sparsely, and how. Null:
  // none. REQUIRES: sparse blocks come whole. Borrowed until the step is done.
  const PrefillPolicy* prefill = nullptr;
  // The sequence's frames in the fast tier, where there is one.
  kv::CacheSetId cache_set{};
  // Where the last choice is kept; may be null if the policy's rows all choose.
  KeptChoice* kept = nullptr;
  // Where to count what rows under the policy attend to; may be null.
  DecodeUse* use = nullptr;
  // … and what sparse blocks of the prompt do; may be null.
  PrefillUse* prefill_use = nullptr;
  // [num_layers] what `use` counts, layer by layer; empty: not counted.
  std::span<LayerUse> layers = {};
};

}  // namespace spindle::sparse
