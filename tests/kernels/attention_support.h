// Paged KV, exact and naive attention, and a plan runner for the attention tests and bench.
// Thread-safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "kernels/registry.h"

namespace spindle::kernels {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct HeadShape {
  uint32_t num_q_heads;
  uint32_t num_kv_heads;
  uint32_t head_dim;
};

// One sequence's K and V of one KV head in pages of P tokens (K half, then V half), in permuted
// order. Everything that is not a stored token is NaN.
class PagedKv {
 public:
  // `misalign_bytes` shifts all rows.
  PagedKv(DType type, uint32_t head_dim, uint32_t length, size_t misalign_bytes, std::mt19937& rng);

  [[nodiscard]] float Key(uint32_t position, uint32_t i) const { return Get(position, i, 0); }

  [[nodiscard]] float Value(uint32_t position, uint32_t i) const {
    return Get(position, i, page_tokens_);
  }

  void SetKey(uint32_t position, uint32_t i, float value) { Set(position, i, 0, value); }

  void SetValue(uint32_t position, uint32_t i, float value) {
    Set(position, i, page_tokens_, value);
  }

  // Runs of all tokens, one per page, lanes live where `live` says so (all, if empty).
  [[nodiscard]] std::vector<KvRun> Runs(const std::function<bool(uint32_t)>& live = nullptr) const;
  // The same tokens in runs cut at random lanes; tiles without a live lane are left out.
  [[nodiscard]] std::vector<KvRun> RaggedRuns(const std::function<bool(uint32_t)>& live,
                                              std::mt19937& rng) const;

  [[nodiscard]] uint32_t length() const { return length_; }

 private:
  [[nodiscard]] size_t Offset(uint32_t position, uint32_t i, uint32_t half) const;
  [[nodiscard]] float Get(uint32_t position, uint32_t i, uint32_t half) const;
  void Set(uint32_t position, uint32_t i, uint32_t half, float value);
  [[nodiscard]] KvRun Run(uint32_t position,
                          uint32_t count,
                          const std::function<bool(uint32_t)>& live) const;

  DType type_;
  uint32_t head_dim_;
  uint32_t length_;
  uint32_t page_tokens_;
  size_t element_bytes_;
  size_t misalign_bytes_;
  std::vector<uint32_t> page_of_;  // place of logical page i
  std::vector<uint8_t> bytes_;
};

// Query rows, outputs and arguments of some KV heads of one sequence.
struct AttentionCase {
  HeadShape shape;
  DType kv_type = DType::kBF16;
  uint32_t num_rows = 1;
  uint32_t first_position = 0;
  uint32_t window = 0;
  float softcap = 0;
  std::vector<PagedKv> kv;               // per KV head
  std::vector<std::vector<KvRun>> runs;  // per KV head
  std::vector<float> q;                  // [num_rows][q_stride]
  size_t q_stride = 0;
  std::function<bool(uint32_t)> live;

  [[nodiscard]] uint32_t group() const { return shape.num_q_heads / shape.num_kv_heads; }
};

struct AttentionResult {
  std::vector<float> out;  // [num_rows][num_q_heads][head_dim]
  std::vector<float> lse;  // [num_kv_heads][num_rows][group]
};

// Random rows for the last `num_rows` of `length` positions.
AttentionCase MakeCase(HeadShape shape,
                       DType kv_type,
                       uint32_t length,
                       uint32_t num_rows,
                       std::mt19937& rng,
                       size_t misalign_bytes = 0);

// Rows [begin, end) of a case, as a case of its own.
AttentionCase SliceRows(const AttentionCase& from, uint32_t begin, uint32_t end);

// Changes a plan before it runs.
using PlanEdit = std::function<void(const AttentionArgs&, AttentionPlan*)>;

// Plans for `num_workers`, runs every unit on fresh poisoned scratch, merges.
AttentionResult RunAttention(const KernelTable& table,
                             const AttentionCase& c,
                             uint32_t num_workers,
                             const PlanEdit& edit = nullptr);

// The same in passes of so many spans, states going from one to the next.
AttentionResult RunAttentionInPasses(const KernelTable& table,
                                     const AttentionCase& c,
                                     uint32_t num_workers,
                                     uint32_t spans_per_pass);

// The same with the last span computed on its own and handed in as AttentionItem::last_span.
AttentionResult RunAttentionWithLastSpan(const KernelTable& table,
                                         const AttentionCase& c,
                                         const PlanEdit& edit = nullptr);

// Attention over the stored values, without tiles: in double with exact probabilities, and in float
// with the storage type's rounding of probabilities ("naive").
struct OracleResult {
  std::vector<double> out;
  std::vector<double> lse;
  std::vector<double> lse_bound;
  std::vector<double> bound;  // largest error that rounding of this precision can cause, per output
  std::vector<float> naive;
};

OracleResult Oracle(const AttentionCase& c);

}  // namespace spindle::kernels
