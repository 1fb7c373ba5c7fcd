#include "model/weights.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_set>

#include "base/status_macros.h"
#include "model/tensor_names.h"

namespace spindle::model {
namespace {

using formats::TensorInfo;
using kernels::PackedMatrix;

constexpr size_t kAlignment = 64;
// Long enough to hide the claim of a piece, short enough for an even end.
constexpr uint32_t kPanelsPerPiece = 16;

constexpr size_t RoundUp(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// One tensor and where it goes: a matrix to pack, a vector to widen, or only a table to look rows
// up in.
struct Job {
  const TensorInfo* tensor;
  PackedMatrix* matrix;
  const float** vector;
  size_t arena_bytes;
};

bool IsMisaligned(const TensorInfo& tensor) {
  const size_t element_bytes = Describe(tensor.type).block_elements == 1
                                   ? Describe(tensor.type).block_bytes
                                   : sizeof(uint16_t);
  return reinterpret_cast<uintptr_t>(tensor.bytes.data()) % element_bytes != 0;
}

absl::StatusOr<platform::AlignedBuffer> CopyOf(const TensorInfo& tensor) {
  SPINDLE_ASSIGN_OR_RETURN(platform::AlignedBuffer copy,
                           platform::AlignedBuffer::Allocate(tensor.bytes.size()));
  std::memcpy(copy.data(), tensor.bytes.data(), tensor.bytes.size());
  return copy;
}

class Loader {
 public:
  Loader(const formats::ModelFile& file,
         const ModelConfig& config,
         kernels::ComputeMode mode,
         const kernels::KernelTable& kernels,
         platform::ComputePool& pool)
      : file_(file), config_(config), mode_(mode), kernels_(kernels), pool_(pool) {}

  // Lists all tensors and checks names, shapes and types before anything is read.
  absl::Status Plan() {
    weights_.layers.resize(config_.num_layers);
    SPINDLE_RETURN_IF_ERROR(PlanOnce());
    for (uint32_t layer = 0; layer < config_.num_layers; ++layer) {
      SPINDLE_RETURN_IF_ERROR(PlanLayer(layer));
    }
    for (const TensorInfo& tensor : file_.tensors()) {
      if (!known_.contains(tensor.name) && !IsIgnorable(file_.kind(), tensor.name)) {
        return absl::UnimplementedError("tensor '" + tensor.name +
                                        "' is not part of architecture '" + config_.architecture +
                                        "'");
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Weights> Run(const std::function<void(double)>& progress) {
    size_t arena_bytes = 0;
    size_t total_bytes = 0;
    for (const Job& job : jobs_) {
      arena_bytes += job.arena_bytes;
      total_bytes += job.tensor->bytes.size();
    }
    SPINDLE_ASSIGN_OR_RETURN(weights_.arena, platform::AlignedBuffer::Allocate(arena_bytes));
    Sha256 all;
    size_t done_bytes = 0;
    uint8_t* place = weights_.arena.data();
    for (const Job& job : jobs_) {
      SPINDLE_ASSIGN_OR_RETURN(const Digest digest, Fill(job, place));
      place += job.arena_bytes;
      all.Field(job.tensor->name).Number(static_cast<uint64_t>(job.tensor->type)).Bytes(digest);
      for (const uint64_t dimension : job.tensor->shape) {
        all.Number(dimension);
      }
      file_.DropCache(*job.tensor);
      done_bytes += job.tensor->bytes.size();
      if (progress) {
        progress(static_cast<double>(done_bytes) / static_cast<double>(total_bytes));
      }
    }
    weights_.digest = all.Finish();
    return std::move(weights_);
  }

 private:
  // The named tensor with its shape checked; null when absent.
  absl::StatusOr<const TensorInfo*> Take(Role role, uint32_t layer, std::vector<uint64_t> shape) {
    const std::string name = TensorName(file_.kind(), role, layer);
    const TensorInfo* tensor = file_.Find(name);
    if (tensor != nullptr && tensor->shape != shape) {
      return absl::DataLossError("tensor '" + name + "' has shape " + ShapeText(tensor->shape) +
                                 ", the configuration asks for " + ShapeText(shape));
    }
    if (tensor != nullptr && known_.insert(tensor->name).second) {
      uint64_t elements = 1;
      for (const uint64_t dimension : shape) {
        elements *= dimension;
      }
      weights_.num_parameters += elements;
    }
    return tensor;
  }

  absl::Status Missing(Role role, uint32_t layer) const {
    return absl::DataLossError("tensor '" + TensorName(file_.kind(), role, layer) + "' is missing");
  }

  absl::Status Matrix(
      Role role, uint32_t layer, uint32_t outputs, uint32_t inputs, PackedMatrix* to) {
    SPINDLE_ASSIGN_OR_RETURN(const TensorInfo* tensor, Take(role, layer, {outputs, inputs}));
    if (tensor == nullptr) {
      return Missing(role, layer);
    }
    const uint64_t bytes = kernels_.packed_bytes(tensor->type, outputs, inputs, mode_);
    if (bytes == 0) {
      return absl::UnimplementedError("tensor '" + tensor->name + "': no kernel for " +
                                      std::string(Describe(tensor->type).name) + " rows of " +
                                      std::to_string(inputs) + " elements");
    }
    jobs_.push_back({tensor, to, nullptr, RoundUp(bytes)});
    *to = {nullptr,
           bytes,
           outputs,
           inputs,
           tensor->type,
           mode_,
           kernels_.row_format(tensor->type, mode_)};
    return absl::OkStatus();
  }

  absl::Status Vector(Role role, uint32_t layer, uint32_t size, const float** to) {
    SPINDLE_ASSIGN_OR_RETURN(const TensorInfo* tensor, Take(role, layer, {size}));
    if (tensor == nullptr) {
      return Missing(role, layer);
    }
    jobs_.push_back({tensor, nullptr, to, RoundUp(size * sizeof(float))});
    return absl::OkStatus();
  }

  absl::Status PlanOnce() {
    const uint32_t hidden = config_.hidden_size;
    SPINDLE_RETURN_IF_ERROR(Vector(Role::kFinalNorm, 0, hidden, &weights_.final_norm));
    SPINDLE_ASSIGN_OR_RETURN(const TensorInfo* table,
                             Take(Role::kEmbedding, 0, {config_.vocab_size, hidden}));
    if (table == nullptr) {
      return Missing(Role::kEmbedding, 0);
    }
    if (!config_.tied_embeddings) {
      jobs_.push_back({table, nullptr, nullptr, 0});
      SPINDLE_RETURN_IF_ERROR(Matrix(Role::kHead, 0, config_.vocab_size, hidden, &weights_.head));
    } else {
      SPINDLE_RETURN_IF_ERROR(
          Matrix(Role::kEmbedding, 0, config_.vocab_size, hidden, &weights_.head));
      known_.insert(TensorName(file_.kind(), Role::kHead, 0));  // a stored copy is not read
    }
    weights_.embedding = {table->bytes.data(), table->type};
    if (IsMisaligned(*table)) {
      SPINDLE_ASSIGN_OR_RETURN(weights_.embedding_copy, CopyOf(*table));
      weights_.embedding.rows = weights_.embedding_copy.data();
    }
    return absl::OkStatus();
  }

  absl::Status PlanLayer(uint32_t layer) {
    LayerWeights* w = &weights_.layers[layer];
    const uint32_t hidden = config_.hidden_size;
    const uint32_t q_size = config_.num_q_heads * config_.head_dim;
    const uint32_t kv_size = config_.num_kv_heads * config_.head_dim;
    SPINDLE_RETURN_IF_ERROR(Vector(Role::kAttentionNorm, layer, hidden, &w->attention_norm));
    SPINDLE_RETURN_IF_ERROR(Matrix(Role::kQ, layer, q_size, hidden, &w->q));
    SPINDLE_RETURN_IF_ERROR(Matrix(Role::kK, layer, kv_size, hidden, &w->k));
    SPINDLE_RETURN_IF_ERROR(Matrix(Role::kV, layer, kv_size, hidden, &w->v));
    if (config_.qkv_bias) {
      SPINDLE_RETURN_IF_ERROR(Vector(Role::kQBias, layer, q_size, &w->q_bias));
      SPINDLE_RETURN_IF_ERROR(Vector(Role::kKBias, layer, kv_size, &w->k_bias));
      SPINDLE_RETURN_IF_ERROR(Vector(Role::kVBias, layer, kv_size, &w->v_bias));
    }
    if (config_.qk_norm) {
      SPINDLE_RETURN_IF_ERROR(Vector(Role::kQNorm, layer, config_.head_dim, &w->q_norm));
      SPINDLE_RETURN_IF_ERROR(Vector(Role::kKNorm, layer, config_.head_dim, &w->k_norm));
    }
    SPINDLE_RETURN_IF_ERROR(
        Matrix(Role::kAttentionOutput, layer, hidden, q_size, &w->attention_output));
    SPINDLE_RETURN_IF_ERROR(Vector(Role::kFfnNorm, layer, hidden, &w->ffn_norm));
    SPINDLE_RETURN_IF_ERROR(Matrix(Role::kGate, layer, config_.ffn_size, hidden, &w->gate));
    SPINDLE_RETURN_IF_ERROR(Matrix(Role::kUp, layer, config_.ffn_size, hidden, &w->up));
    return Matrix(Role::kDown, layer, hidden, config_.ffn_size, &w->down);
  }

  // Packs or widens one tensor to `place` and hashes it at the same time, so that the file is read
  // once.
  absl::StatusOr<Digest> Fill(const Job& job, uint8_t* place) {
    const TensorInfo& tensor = *job.tensor;
    platform::AlignedBuffer copy;
    const uint8_t* source = tensor.bytes.data();
    if (IsMisaligned(tensor)) {
      SPINDLE_ASSIGN_OR_RETURN(copy, CopyOf(tensor));
      source = copy.data();
    }
    Digest digest{};
    uint32_t num_pieces = 0;
    if (job.matrix != nullptr) {
      num_pieces =
          (kernels::NumPanels(job.matrix->num_outputs) + kPanelsPerPiece - 1) / kPanelsPerPiece;
    }
    const auto work = [&](kernels::WorkRange range, kernels::Exec*) -> int {
      for (uint32_t unit = range.begin; unit < range.end; ++unit) {
        if (unit == 0) {
          digest = Sha256().Bytes(tensor.bytes).Finish();
          continue;
        }
        const PackedMatrix& m = *job.matrix;
        const uint32_t begin = (unit - 1) * kPanelsPerPiece;
        const uint32_t end = std::min(begin + kPanelsPerPiece, kernels::NumPanels(m.num_outputs));
        const int code = kernels_.pack(
            tensor.type, source, mode_, m.num_outputs, m.num_inputs, place, {begin, end});
        if (code != kernels::kOk) {
          return code;
        }
      }
      return kernels::kOk;
    };
    SPINDLE_RETURN_IF_ERROR(pool_.Run(1 + num_pieces, 1, work));
    if (job.matrix != nullptr) {
      job.matrix->data = place;
    } else if (job.vector != nullptr) {
      auto* values = reinterpret_cast<float*>(place);
      SPINDLE_RETURN_IF_ERROR(platform::ToStatus(kernels_.dequantize_row(
          tensor.type, source, static_cast<uint32_t>(tensor.shape[0]), values)));
      *job.vector = values;
    }
    return digest;
  }

  const formats::ModelFile& file_;
  const ModelConfig& config_;
  kernels::ComputeMode mode_;
  const kernels::KernelTable& kernels_;
  platform::ComputePool& pool_;
  Weights weights_;
  std::vector<Job> jobs_;
  std::unordered_set<std::string> known_;
};

}  // namespace

absl::StatusOr<Weights> LoadWeights(const formats::ModelFile& file,
                                    const ModelConfig& config,
                                    kernels::ComputeMode mode,
                                    const kernels::KernelTable& kernels,
                                    platform::ComputePool& pool,
                                    const std::function<void(double)>& progress) {
  Loader loader(file, config, mode, kernels, pool);
  SPINDLE_RETURN_IF_ERROR(loader.Plan());
  return loader.Run(progress);
}

}  // namespace spindle::model
