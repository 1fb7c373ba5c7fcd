// What every attention algorithm implements. An algorithm decides which token positions a step may
// attend; it never sees pages, tiers, threads or kernels. The attention runtime turns its choice
// into runs of KV rows and adds causality and sliding windows itself.
// Thread-safety: implementations are stateless and thread-safe; compute workers call them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/ids.h"

namespace spindle::sparse {

// The rows of one sequence that one choice is made for: query rows at positions
// [first_position, first_position + num_rows), KV at positions [0, first_position + num_rows).
struct SelectJob {
  uint32_t first_position;
  uint32_t num_rows;
  uint32_t decode_step = 0;  // of the row, from the first decoded token on; prefill: 0
  LayerIdx layer{};          // not looked at by uniform algorithms
  KvHeadIdx head{};

  [[nodiscard]] uint32_t num_tokens() const { return first_position + num_rows; }
};

// The 64 positions of one absolute stripe; bit j of `live`: position 64 · tile + j may be attended.
struct TileLive {
  uint32_t tile;
  uint64_t live;
};

class SparseAlgorithm {
 public:
  virtual ~SparseAlgorithm() = default;

  // As in requests, configuration and metrics.
  [[nodiscard]] virtual std::string_view name() const = 0;

  // The choice is the same for all layers and heads, so that one serves the whole step.
  [[nodiscard]] virtual bool is_uniform() const = 0;

  // Select: writes the tiles with at least one live lane, tiles ascending, and returns how many.
  // Live lanes lie in [0, job.num_tokens()). The choice is a function of the job alone: the same
  // after a preemption, in any batch. REQUIRES: `out` has a place for every tile of
  // [0, job.num_tokens()).
  [[nodiscard]] virtual uint32_t Select(const SelectJob& job, std::span<TileLive> out) const = 0;
};

}  // namespace spindle::sparse
