// The forward pass: embedding, layers, final norm and head over buffers that are reserved once.
// Engine-thread only; kernels run on the pool. Borrows everything it is constructed with.
//
// Every kernel gives a row the same bits whatever other rows are in the step, so a row's logits
// depend on its own sequence only: not on chunking, neighbours or threads.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/registry.h"
#include "model/model.h"
#include "model/model_config.h"
#include "model/weights.h"
#include "platform/compute_pool.h"
#include "platform/memory.h"
#include "sparse/attention_runtime.h"
#include "tensor/attention_spec.h"

namespace spindle::model {

class Transformer {
 public:
  Transformer(const ModelConfig& config,
              const Weights& weights,
              const tensor::RopeTable& rope,
              const kernels::KernelTable& kernels,
              platform::ComputePool& pool);

  // Same contracts as in Model.
  [[nodiscard]] absl::Status Reserve(uint32_t max_rows, uint32_t max_logit_rows);
  [[nodiscard]] absl::StatusOr<std::span<const float>> Forward(const StepInput& input,
                                                               sparse::AttentionRuntime& runtime);

 private:
  // fp32 rows `stride` floats apart.
  struct Rows {
    platform::AlignedBuffer buffer;
    size_t stride = 0;

    [[nodiscard]] float* data() const { return reinterpret_cast<float*>(buffer.data()); }

    [[nodiscard]] float* row(size_t i) const { return data() + i * stride; }
  };

  // One product of a group with its own result rows.
  struct Product {
    const kernels::PackedMatrix& weights;
    float* y;
    size_t y_stride;
    const float* bias;
  };

  absl::Status CheckInput(const StepInput& input) const;
  absl::Status Embed(std::span<const TokenId> tokens);
  absl::Status Attend(uint32_t layer, uint32_t num_rows, sparse::AttentionRuntime& runtime);
  absl::Status ProjectAttention(uint32_t layer, uint32_t num_rows);
  absl::Status FeedForward(uint32_t layer, uint32_t num_rows);
  absl::Status Head(uint32_t num_rows);
  // Moves the given rows of x and of the attention output to the front.
  void Compact(std::span<const uint32_t> rows);

  // Normalises rows of x into operands for `products`, in each row format that one of them asks
  // for.
  absl::Status NormFor(std::initializer_list<Product> products,
                       const float* norm,
                       const float* x,
                       uint32_t num_rows);
  // y (+)= operands · weightsᵀ for all products as one parallel section.
  absl::Status Multiply(std::initializer_list<Product> products,
                        uint32_t num_rows,
                        bool accumulate);
  // The weights that the product after the next one reads: from the first to the last matrix, which
  // the arena keeps in this order.
  void ExpectNext(const kernels::PackedMatrix& first, const kernels::PackedMatrix& last);
  // Rows per piece of a row-wise kernel over rows of k elements that become `format`.
  [[nodiscard]] static uint32_t RowGrain(uint32_t k, kernels::RowFormat format);

  const ModelConfig& config_;
  const Weights& weights_;
  const kernels::KernelTable& kernels_;
  platform::ComputePool& pool_;
  std::vector<tensor::AttentionSpec> specs_;  // [num_layers]

  uint32_t max_rows_ = 0;
  uint32_t max_logit_rows_ = 0;
  Rows x_;  // [max_rows, hidden] residual stream
  Rows q_;  // [max_rows, q heads × head_dim]
  Rows k_;  // [max_rows, kv heads × head_dim]
  Rows v_;
  Rows attention_;  // [max_rows, q heads × head_dim]
  Rows gate_;       // [ffn block rows, ffn]
  Rows up_;
  Rows logits_;  // [max_logit_rows, vocab], stride = vocab
  std::array<platform::AlignedBuffer, kernels::kNumRowFormats>
      operands_;  // by RowFormat; rows of the widest product
};

}  // namespace spindle::model
