// Causal attention of query rows over paged, head-wise KV given as lists of runs, for prefill and
// decode alike.
// Thread-safety: pure functions over the caller's memory.
//
// Arithmetic (the "fold order" law; the same for prefill, decode, any split and thread count, bit
// for bit):
// - tile: the 64 positions of one absolute stripe under a live mask. Scores s = scale · q·k (fp32
//   sum, d ascending); m' = max(m, max s); l = l·e^(m-m') + Σ e^(s-m'); acc = acc·e^(m-m') + P·V,
//   key pairs ascending. Dead lanes are -inf, and their V is never read into the sum. A tile
//   without a live lane leaves (m, l, acc) untouched.
// - span: the tiles of one absolute segment (16 stripes), folded from the empty state (-inf, 0, 0).
// - row: spans merged left to right into (M, L, ACC); output ACC / L. No live lane at all: output
//   0, lse -inf.
// - rounding: with kv_type kBF16, q is rounded to bf16 before the product and the probabilities
//   before P·V; with kF32 nothing is. Σ in l is always over the unrounded fp32 probabilities, in an
//   order fixed per table.
// A unit of work is (row, head) × span only; never part of a tile or of a span.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/api/exec.h"

namespace spindle::kernels {

inline constexpr uint32_t kTileTokens = 64;
inline constexpr uint32_t kSpanTiles = 16;
inline constexpr uint32_t kMinHeadDim = 16;
inline constexpr uint32_t kMaxHeadDim = 256;
inline constexpr uint32_t kMaxGroup = 16;
inline constexpr uint32_t kMaxUnitHeads = 8;

// Consecutive token rows of one tile of one KV head. Runs of a tile follow each other, lanes
// ascending; tiles ascend.
struct KvRun {
  const void* k;  // [count][head_dim] of kv_type; row 0 is lane `first_lane`
  const void* v;  // [count][head_dim]
  uint64_t live;  // bit j: lane j of the tile may be attended (only this run's lanes are looked at)
  uint32_t row_stride;  // elements between token rows, the same for k and v
  uint32_t tile;        // absolute stripe: lane j is position 64 · tile + j
  uint16_t count;       // 1 … 64
  uint8_t first_lane;
  uint8_t last_of_tile;  // 1 on the last run of a tile
};

// Query rows of one sequence for one KV head. Row i sits at position first_position + i and sees
// live lanes at positions (p - window, p]; window 0 = no lower limit. Runs need not reach beyond
// the last row's position.
struct AttentionItem {
  const float* q;     // [num_rows][q_stride]: `group` heads × head_dim, rotated, not scaled
  float* out;         // [num_rows][out_stride]: `group` heads × head_dim
  float* lse;         // [num_rows][group] natural-log LSE, or null
  const KvRun* runs;  // [num_runs]
  uint32_t num_runs;
  uint32_t num_rows;  // 1 = decode
  uint32_t first_position;
  uint32_t window;
  uint64_t kv_offset =
      0;  // bytes added to k and v of every run: one run list serves all layers and heads
  // Attention in several passes, each over whole spans, when not all pages fit into fast memory at
  // once: [num_rows][group][head_dim + 2] merged states (acc, M, L) that go from pass to pass; null
  // for a single pass. An item with a state shares no unit and is not cut at spans. The passes give
  // the bits of a single one. REQUIRES: no span in two passes; the plan is made anew per pass.
  float* state = nullptr;
  bool resumes = false;   // begin with `state`; false in the first pass
  bool suspends = false;  // leave the merged states there and write no output; false in the last
  // A span that was computed elsewhere, merged behind all others by the pass that writes the
  // output: [num_rows][group][head_dim + 2] states (acc, m, l) of the same table; null: none.
  float* last_span = nullptr;
};

struct AttentionArgs {
  const AttentionItem* items;  // [num_items]
  uint32_t num_items;
  size_t q_stride;    // floats between rows of q
  size_t out_stride;  // floats between rows of out
  uint32_t head_dim;  // 16 … 256, multiple of 16
  uint32_t group;     // query heads per KV head, 1 … 16
  float scale;        // > 0
  float softcap;      // 0 = none; else s = cap · tanh(s / cap) after scaling
  DType kv_type;      // kBF16 or kF32
};

// One piece of work: rows [row_begin, row_end) of an item over the runs [run_begin, run_end), which
// are whole spans cut to what those rows may see. Units with `partial` ≥ 0 leave one state per
// (span, row) in the partial buffer, span-major, and are merged by merge_attention.
struct AttentionUnit {
  uint32_t item;
  uint32_t row_begin;
  uint32_t row_end;
  uint32_t run_begin;  // runs of the unit, half-open
  uint32_t run_end;
  int32_t partial;  // index of the first span state, or -1: the unit writes `out` itself
  // Items item … item + num_heads - 1 in one go: KV heads of a sequence, with the same runs, rows
  // and positions. 1 where `partial` ≥ 0.
  uint32_t num_heads = 1;
};

// Decode takes all KV heads of a sequence together, which read memory in the longest pieces; single
// heads or their spans where that would leave workers idle. Prefill goes by row blocks. The plan
// changes who computes what, never a bit of the result. Storage belongs to the caller and is
// reused; when it is too small, planning returns kScratchTooSmall and leaves the needed counts in
// num_units and num_partials.
struct AttentionPlan {
  AttentionUnit* units;  // [unit_capacity]
  uint32_t unit_capacity;
  uint32_t num_units;
  float* partials;  // [partial_capacity][group][head_dim + 2]: acc, m, l of one row's span
  uint32_t partial_capacity;
  uint32_t num_partials;
};

}  // namespace spindle::kernels
