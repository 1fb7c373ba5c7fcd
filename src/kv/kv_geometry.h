// Shapes of the stored KV and the affine addresses inside a stripe (docs/formats.md).
// Thread-safety: value type. All sizes in bytes unless named otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "base/prefix_key.h"

namespace spindle::kv {

struct KvGeometry {
  uint32_t num_layers = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;
  DType type = DType::kBF16;  // kBF16 or kF32

  // Asked for page by page in every step: no division here, nor in page_tokens.
  [[nodiscard]] size_t row_bytes() const { return Describe(type).block_bytes * size_t{head_dim}; }

  // P: the smallest of {8, 16, 32} whose K + V page has at least 4 KiB, else 32. Smaller pages
  // would cost more metadata and shorter copies than they save in moved bytes.
  [[nodiscard]] uint32_t page_tokens() const {
    constexpr size_t kMinPageBytes = 4096;
    const size_t token_bytes = 2 * row_bytes();
    return 8 * token_bytes >= kMinPageBytes ? 8 : (16 * token_bytes >= kMinPageBytes ? 16 : 32);
  }

  [[nodiscard]] size_t page_bytes() const { return 2 * page_tokens() * row_bytes(); }

  [[nodiscard]] size_t head_bytes() const { return 2 * kStripeTokens * row_bytes(); }

  [[nodiscard]] size_t extent_bytes() const { return num_kv_heads * head_bytes(); }

  [[nodiscard]] size_t stripe_bytes() const { return num_layers * extent_bytes(); }

  [[nodiscard]] size_t bytes_per_token() const { return stripe_bytes() / kStripeTokens; }

  // Offset of the K row of (layer, head 0, lane) in a stripe; the V row is v_offset() further, head
  // h h · head_bytes() further. REQUIRES: lane < 64.
  [[nodiscard]] size_t row_offset(uint32_t layer, uint32_t lane) const {
    return layer * extent_bytes() + lane / page_tokens() * page_bytes() +
           lane % page_tokens() * row_bytes();
  }

  [[nodiscard]] size_t v_offset() const { return page_tokens() * row_bytes(); }
};

// ERRORS: kInvalidArgument naming the field and its range: every count 1 … 4096, head_dim a
// multiple of 16 in 16 … 1024 (so that halves of pages start on 64-byte and stripes on 4 KiB
// borders), type BF16 or F32.
[[nodiscard]] absl::Status ValidateGeometry(const KvGeometry& geometry);

// ERRORS: kInvalidArgument unless pages of `page_tokens` tokens tile a stripe. Page sizes come from
// a rule, so this guards stored data and later rules rather than a user's option.
[[nodiscard]] absl::Status ValidatePageTokens(uint32_t page_tokens);

}  // namespace spindle::kv
