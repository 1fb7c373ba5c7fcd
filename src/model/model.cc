#include "model/model.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/status_macros.h"
#include "model/config_reader.h"
#include "model/rope.h"
#include "model/tensor_names.h"
#include "model/transformer.h"
#include "model/weights.h"

namespace spindle::model {
namespace {

uint64_t Bits(float value) {
  return std::bit_cast<uint32_t>(value);
}

// Everything that decides the bits of stored keys and values. max_model_len does not: it only
// bounds positions.
Digest Fingerprint(const ModelConfig& config,
                   const Digest& weights,
                   kernels::ComputeMode mode,
                   const kernels::KernelTable& kernels) {
  Sha256 hash;
  hash.Field("spindle model 1").Field(config.architecture).Bytes(weights);
  hash.Number(static_cast<uint64_t>(mode)).Field(kernels.name).Number(kernels.family);
  hash.Number(config.num_layers).Number(config.hidden_size).Number(config.ffn_size);
  hash.Number(config.num_q_heads).Number(config.num_kv_heads).Number(config.head_dim);
  hash.Number(config.vocab_size).Number(Bits(config.norm_eps));
  hash.Number(config.qkv_bias ? 1 : 0).Number(config.qk_norm ? 1 : 0);
  for (const uint32_t window : config.layer_window) {
    hash.Number(window);
  }
  hash.Number(static_cast<uint64_t>(config.rope.pairing)).Number(config.rope.dim);
  hash.Number(Bits(AttentionFactor(config.rope)));
  for (const float frequency : InverseFrequencies(config.rope)) {
    hash.Number(Bits(frequency));
  }
  return hash.Finish();
}

}  // namespace

struct Model::Impl {
  std::shared_ptr<const formats::ModelFile> file;  // shared with the loader; holds the embedding
  ModelConfig config;
  Weights weights;
  tensor::RopeTable rope;
  Digest fingerprint{};
  std::unique_ptr<Transformer> transformer;
};

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Model::~Model() = default;

uint64_t EstimateWeightBytes(const formats::ModelFile& file,
                             kernels::ComputeMode mode,
                             const kernels::KernelTable& kernels) {
  // Rows of the embedding are looked up in the file; without a head of its own it is packed as
  // well.
  const formats::TensorInfo* const embedding =
      file.Find(TensorName(file.kind(), Role::kEmbedding, 0));
  const bool is_tied = file.Find(TensorName(file.kind(), Role::kHead, 0)) == nullptr;
  uint64_t bytes = embedding == nullptr ? 0 : embedding->bytes.size();
  for (const formats::TensorInfo& tensor : file.tensors()) {
    if (&tensor == embedding && !is_tied) {
      continue;
    }
    uint64_t packed = 0;
    if (tensor.shape.size() == 2 && std::max(tensor.shape[0], tensor.shape[1]) < UINT32_MAX) {
      packed = kernels.packed_bytes(tensor.type,
                                    static_cast<uint32_t>(tensor.shape[0]),
                                    static_cast<uint32_t>(tensor.shape[1]),
                                    mode);
    }
    bytes += packed != 0 ? packed : tensor.bytes.size();
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<Model>> Model::Load(std::shared_ptr<const formats::ModelFile> file,
                                                   const ModelOptions& options,
                                                   platform::ComputePool& pool,
                                                   const kernels::KernelTable& kernels,
                                                   const LoadProgress& progress) {
  auto impl = std::make_unique<Impl>();
  SPINDLE_ASSIGN_OR_RETURN(impl->config, ReadConfig(*file));
  SPINDLE_RETURN_IF_ERROR(ApplyOptions(options, &impl->config));
  SPINDLE_ASSIGN_OR_RETURN(impl->weights,
                           LoadWeights(*file, impl->config, options.mode, kernels, pool, progress));
  SPINDLE_ASSIGN_OR_RETURN(impl->rope,
                           BuildRopeTable(impl->config.rope, impl->config.max_model_len, pool));
  impl->file = std::move(file);
  impl->fingerprint = Fingerprint(impl->config, impl->weights.digest, options.mode, kernels);
  impl->transformer =
      std::make_unique<Transformer>(impl->config, impl->weights, impl->rope, kernels, pool);
  return std::unique_ptr<Model>(new Model(std::move(impl)));
}

const ModelConfig& Model::config() const {
  return impl_->config;
}

const Digest& Model::fingerprint() const {
  return impl_->fingerprint;
}

uint64_t Model::weight_bytes() const {
  return impl_->weights.arena.size() + impl_->weights.embedding_copy.size();
}

uint64_t Model::num_parameters() const {
  return impl_->weights.num_parameters;
}

absl::Status Model::ReserveActivations(uint32_t max_rows, uint32_t max_logit_rows) {
  return impl_->transformer->Reserve(max_rows, max_logit_rows);
}

absl::StatusOr<std::span<const float>> Model::Forward(const StepInput& input,
                                                      sparse::AttentionRuntime& runtime) {
  return impl_->transformer->Forward(input, runtime);
}

}  // namespace spindle::model
