// A model with its KV store, for evaluations: a prompt is computed once, and what follows
// is tried on forks of its state. Works below the engine, so that logits and choices can be looked
// at. Engine-thread only (one thread). Deterministic: rows do not depend on what else is in a step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/ids.h"
#include "formats/model_file.h"
#include "kernels/registry.h"
#include "kv/kv_geometry.h"
#include "kv/kv_store.h"
#include "model/model.h"
#include "platform/compute_pool.h"
#include "sparse/attention_runtime.h"
#include "sparse/prefill_policy.h"
#include "sparse/prefill_use.h"
#include "sparse/sparse_policy.h"

namespace spindle::eval {

struct EvalModelOptions {
  model::ModelOptions model = {};
  DType kv_type = DType::kBF16;
  uint32_t threads = 0;  // 0 = usable CPUs
  bool pin_threads = false;
  uint64_t kv_bytes = uint64_t{4} << 30;  // of all sequences; committed as it is used
  uint32_t max_sequences = 64;            // of one step
};

// What a sequence appends in one step.
struct Continuation {
  SequenceId sequence;
  std::span<const TokenId> tokens;  // at least one
  const sparse::SparsePolicy* policy = nullptr;
  const sparse::PrefillPolicy* prefill = nullptr;  // of tokens of the prompt
  sparse::PrefillUse* prefill_use = nullptr;       // … adds to it; may be null
};

class EvalModel {
 public:
  static constexpr uint32_t kChunkRows = 512;  // of one prefill step

  // ERRORS: those of model::Model::Load and of the KV store.
  static absl::StatusOr<std::unique_ptr<EvalModel>> Load(
      std::shared_ptr<const formats::ModelFile> file,
      const EvalModelOptions& options,
      const kernels::KernelTable& kernels,
      const model::LoadProgress& progress);
  ~EvalModel();

  [[nodiscard]] const model::ModelConfig& config() const { return model_->config(); }

  [[nodiscard]] const kv::KvGeometry& geometry() const { return store_->geometry(); }

  // A new sequence that holds `tokens`, computed by `prefill` (null: densely); rows that come later
  // count as generated. ERRORS: kResourceExhausted (store), those of kernels. REQUIRES: at least
  // one token.
  [[nodiscard]] absl::StatusOr<SequenceId> Prefill(std::span<const TokenId> tokens,
                                                   const sparse::PrefillPolicy* prefill = nullptr,
                                                   sparse::PrefillUse* use = nullptr);

  [[nodiscard]] absl::StatusOr<SequenceId> Fork(SequenceId sequence);

  void Close(SequenceId sequence);

  // Appends to all of them in one forward pass. Logits of the last token of each, [continuations]
  // [vocab_size], valid until the next call. REQUIRES: at most max_sequences continuations and
  // kChunkRows tokens. ERRORS: as Prefill.
  [[nodiscard]] absl::StatusOr<std::span<const float>> Append(
      std::span<const Continuation> continuations);

  [[nodiscard]] uint32_t NumTokens(SequenceId sequence) const;

 private:
  EvalModel() = default;

  // Where the generated tokens of a sequence begin.
  struct Book {
    SequenceId sequence;
    uint32_t decode_begin;
  };

  [[nodiscard]] uint32_t DecodeBegin(SequenceId sequence) const;

  std::unique_ptr<platform::ComputePool> pool_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<kv::KvStore> store_;
  std::unique_ptr<sparse::AttentionRuntime> runtime_;
  std::vector<Book> books_;
  uint64_t num_opened_ = 0;
};

// Sequences of contexts, closed with this; forks of them live on. Borrows the model.
class ContextGroup {
 public:
  explicit ContextGroup(EvalModel& model) : model_(model) {}

  ~ContextGroup();
  ContextGroup(const ContextGroup&) = delete;
  ContextGroup& operator=(const ContextGroup&) = delete;

  // As EvalModel::Prefill.
  absl::StatusOr<SequenceId> Add(std::span<const TokenId> context,
                                 const sparse::PrefillPolicy* prefill = nullptr,
                                 sparse::PrefillUse* use = nullptr);

  [[nodiscard]] const std::vector<SequenceId>& sequences() const { return sequences_; }

 private:
  EvalModel& model_;
  std::vector<SequenceId> sequences_;
};

// Forks, closed with this.
class ForkGroup {
 public:
  // Borrows the model. ERRORS: kResourceExhausted.
  static absl::StatusOr<ForkGroup> Create(EvalModel& model, SequenceId parent, size_t count);

  // One of each.
  static absl::StatusOr<ForkGroup> Create(EvalModel& model, std::span<const SequenceId> parents);
  ~ForkGroup();
  ForkGroup(ForkGroup&& other) noexcept;
  ForkGroup& operator=(ForkGroup&&) = delete;

  [[nodiscard]] const std::vector<SequenceId>& forks() const { return forks_; }

 private:
  explicit ForkGroup(EvalModel& model) : model_(&model) {}

  EvalModel* model_;
  std::vector<SequenceId> forks_;
};

}  // namespace spindle::eval
