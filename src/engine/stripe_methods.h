// How the stripes of a request are computed, for their keys: what is computed alike may be shared,
// and nothing else (docs/sparse-attention.md). Thread-safety: plain value.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/prefix_key.h"
#include "engine/sparse_decode.h"

namespace spindle::engine {

// By position:
//   [0, sparse_begin)          densely: shared with everybody
//   [sparse_begin, sparse_end) sparse blocks of a prompt: shared with who has the same method. Rows
//                              follow from all tokens of their block, so both stripes of a block
//                              carry them
//   [sparse_end, …)            of a sparsely computed prompt: its dense end and what is generated,
//                              shared with nobody but the other choices of the request
// Without sparse blocks prompts are computed densely, and what is generated as `decode_method`
// says.
struct StripeMethods {
  uint32_t sparse_begin = 0;  // multiples of a block; nothing is sparse if they are equal
  uint32_t sparse_end = 0;
  Digest prefill_method{};
  MethodDigest private_method{};  // of this request alone
  uint32_t prompt_tokens = 0;
  MethodDigest decode_method = kDenseMethod;

  // `private_method`: as no other request has it.
  [[nodiscard]] static StripeMethods Of(const SparseDecode& decode,
                                        uint32_t prompt_tokens,
                                        const MethodDigest& private_method);

  [[nodiscard]] bool HasSparseBlocks() const { return sparse_begin < sparse_end; }

  // Rows from here on come in any chunks; before it in whole blocks.
  [[nodiscard]] uint32_t BlocksEnd() const { return HasSparseBlocks() ? sparse_end : 0; }

  // Of stripe i; `tokens` reach to its end at least, and to that of the prompt.
  [[nodiscard]] MethodDigest MethodOf(size_t stripe, std::span<const TokenId> tokens) const;

  // Appends keys to `keys`, a chain over the first stripes of `tokens`, until there are
  // `num_stripes`.
  void ExtendKeys(const Digest& root,
                  std::span<const TokenId> tokens,
                  size_t num_stripes,
                  std::vector<Digest>* keys) const;

  // Leading stripes of a match that the request can begin behind: whole blocks.
  [[nodiscard]] uint32_t UsableMatch(uint32_t num_stripes) const;

  // Tokens from here on have KV that no other request may use.
  [[nodiscard]] uint32_t PublishedEnd() const {
    return HasSparseBlocks()               ? sparse_end
           : decode_method == kDenseMethod ? std::numeric_limits<uint32_t>::max()
                                           : prompt_tokens;
  }
};

}  // namespace spindle::engine
