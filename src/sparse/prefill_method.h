// What every method of sparse prefill implements: Select, which blocks of keys the rows of one
// block of a prompt attend to. As the algorithms of decoding it never sees pages, tiers or threads;
// the attention runtime adds causality inside the diagonal block itself. Thread-safety:
// implementations are stateless and thread-safe; compute workers call them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "base/prefix_key.h"
#include "sparse/knob.h"
#include "sparse/select_workspace.h"
#include "sparse/stored_keys.h"

namespace spindle::sparse {

// Tokens of a block, of queries and of keys alike: block i is positions [128 · i, 128 · i + 128).
inline constexpr uint32_t kPrefillBlockTokens = 128;

// The rows of one block, of one layer and KV head. K and V of blocks 0 … `block` are stored.
struct PrefillJob {
  uint32_t block;
  std::span<const double> knobs;  // values, in the method's order
  const float* q;                 // [128][q_stride]: `group` heads × head_dim, rotated, not scaled
  size_t q_stride;
  uint32_t group;  // query heads of the KV head
  uint32_t head_dim;
  float scale;    // of q·k
  float softcap;  // of scaled scores; 0: none
  StoredKeys keys;
};

class PrefillMethod {
 public:
  virtual ~PrefillMethod() = default;

  // As in requests, configuration and metrics.
  [[nodiscard]] virtual std::string_view name() const = 0;

  [[nodiscard]] virtual std::span<const Knob> knobs() const = 0;

  // `values`: [knobs()], each in its range. ERRORS: kInvalidArgument whose message begins with the
  // knob's name.
  [[nodiscard]] virtual absl::Status CheckKnobs(std::span<const double> /*values*/) const {
    return absl::OkStatus();
  }

  // Blocks before this one attend to everything, whatever the tokens: they are computed densely.
  [[nodiscard]] virtual uint32_t FirstSparseBlock(std::span<const double> values) const = 0;

  // Tokens at the end of a prompt that attend to all of it; ≥ 1, so that the first output token
  // does.
  [[nodiscard]] virtual uint32_t LastDense(std::span<const double> values) const = 0;

  // Select: sets bit J mod 64 of chosen[J div 64] for every block J ≤ job.block to attend to, the
  // diagonal one among them. A function of the job alone: the same in any chunk, batch and on any
  // thread. `chosen` is zero at first. ERRORS: kernel codes.
  [[nodiscard]] virtual int Select(const PrefillJob& job,
                                   SelectWorkspace& workspace,
                                   std::span<uint64_t> chosen) const = 0;
};

}  // namespace spindle::sparse
