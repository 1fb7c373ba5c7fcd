// The weights of a model, packed for the chosen kernels, and the loader that fills them.
// Thread-safety: immutable after Load.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/hash.h"
#include "formats/model_file.h"
#include "kernels/registry.h"
#include "model/model_config.h"
#include "platform/compute_pool.h"
#include "platform/memory.h"

namespace spindle::model {

// Pointers into the arena; biases and q/k norms are null where the model has none.
struct LayerWeights {
  const float* attention_norm = nullptr;  // [hidden]
  kernels::PackedMatrix q{};              // [q heads × head_dim, hidden]
  kernels::PackedMatrix k{};              // [kv heads × head_dim, hidden]
  kernels::PackedMatrix v{};
  const float* q_bias = nullptr;
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  const float* q_norm = nullptr;  // [head_dim]
  const float* k_norm = nullptr;
  kernels::PackedMatrix attention_output{};  // [hidden, q heads × head_dim]
  const float* ffn_norm = nullptr;           // [hidden]
  kernels::PackedMatrix gate{};              // [ffn, hidden]
  kernels::PackedMatrix up{};
  kernels::PackedMatrix down{};  // [hidden, ffn]
};

// Rows of the embedding table in the file's own layout.
struct EmbeddingTable {
  const uint8_t* rows = nullptr;  // [vocab] rows of RowBytes(type, hidden), mapped from the file
  DType type = DType::kF32;
};

struct Weights {
  std::vector<LayerWeights> layers;
  EmbeddingTable embedding;
  const float* final_norm = nullptr;  // [hidden]
  kernels::PackedMatrix head{};       // [vocab, hidden]; packed from the embedding when tied

  platform::AlignedBuffer arena;           // everything above except the mapped embedding
  platform::AlignedBuffer embedding_copy;  // only when the file holds the table at an odd address
  uint64_t num_parameters = 0;
  Digest digest{};  // SHA-256 over names, types, shapes and bytes of all tensors
};

// Reads, checks, packs and hashes every tensor, then lets go of the file's pages. `config` is
// complete; the result borrows the embedding table from `file`.
//   ERRORS: kDataLoss (a tensor that is missing or has another shape), kUnimplemented (a tensor the
//   architecture
//           does not know, a row length the kernels cannot pack), kResourceExhausted
[[nodiscard]] absl::StatusOr<Weights> LoadWeights(const formats::ModelFile& file,
                                                  const ModelConfig& config,
                                                  kernels::ComputeMode mode,
                                                  const kernels::KernelTable& kernels,
                                                  platform::ComputePool& pool,
                                                  const std::function<void(double)>& progress);

}  // namespace spindle::model
