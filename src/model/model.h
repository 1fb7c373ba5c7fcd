// A decoder-only transformer with its weights packed for this CPU. Knows nothing of pages, requests
// or text. Engine-thread only after loading; the configuration may be read from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/hash.h"
#include "base/ids.h"
#include "formats/model_file.h"
#include "kernels/registry.h"
#include "model/model_config.h"
#include "model/model_options.h"
#include "platform/compute_pool.h"
#include "sparse/attention_runtime.h"

namespace spindle::model {

// One forward pass over the rows of several sequences, prefill chunks and decode rows mixed.
struct StepInput {
  std::span<const TokenId> tokens;                  // [num_rows]
  std::span<const sparse::SequenceRows> sequences;  // cover [0, num_rows) in order
  std::span<const uint32_t> logit_rows;             // ascending row indices whose logits are wanted
};

// Called while loading with the fraction done in [0, 1].
using LoadProgress = std::function<void(double)>;

// What the packed weights of a file take, within a few per cent, without reading them.
[[nodiscard]] uint64_t EstimateWeightBytes(const formats::ModelFile& file,
                                           kernels::ComputeMode mode,
                                           const kernels::KernelTable& kernels);

// What ReserveActivations takes.
[[nodiscard]] uint64_t ActivationBytes(const ModelConfig& config,
                                       uint32_t max_rows,
                                       uint32_t max_logit_rows);

class Model {
 public:
  // Reads, checks and packs all weights; file pages that are no longer needed are dropped from
  // memory. ERRORS: kInvalidArgument / kUnimplemented naming the architecture, tensor or type;
  // kDataLoss (damaged file). `file` is shared with the caller: embedding rows are read from it.
  static absl::StatusOr<std::unique_ptr<Model>> Load(std::shared_ptr<const formats::ModelFile> file,
                                                     const ModelOptions& options,
                                                     platform::ComputePool& pool,
                                                     const kernels::KernelTable& kernels,
                                                     const LoadProgress& progress);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  [[nodiscard]] const ModelConfig& config() const;
  // SHA-256 over everything that decides KV content: configuration, weight bytes, arithmetic,
  // kernel family.
  [[nodiscard]] const Digest& fingerprint() const;
  [[nodiscard]] uint64_t weight_bytes() const;  // packed, resident
  [[nodiscard]] uint64_t num_parameters() const;

  // Bytes of activations for steps of `max_rows` rows and `max_logit_rows` logit rows; called once
  // before Forward.
  [[nodiscard]] absl::Status ReserveActivations(uint32_t max_rows, uint32_t max_logit_rows);

  // Runs all layers. The result is [logit_rows.size()][vocab_size] fp32, valid until the next call.
  // The rows of `runtime`'s step are set here. Results per row do not depend on the other rows.
  [[nodiscard]] absl::StatusOr<std::span<const float>> Forward(const StepInput& input,
                                                               sparse::AttentionRuntime& runtime);

 private:
  struct Impl;
  explicit Model(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace spindle::model
