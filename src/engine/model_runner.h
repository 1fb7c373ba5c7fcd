// The forward pass over a real model: model layers, attention runtime, KV store.
// Thread-safety: as StepRunner. Owns the model, the runtime and the compute pool; borrows the
// store.
#pragma once

#include <memory>

#include "engine/step_runner.h"
#include "kernels/registry.h"
#include "kv/kv_store.h"
#include "model/model.h"
#include "platform/compute_pool.h"
#include "sparse/attention_runtime.h"

namespace spindle::engine {

class ModelRunner final : public StepRunner {
 public:
  ModelRunner(std::unique_ptr<model::Model> model,
              std::unique_ptr<platform::ComputePool> pool,
              const kernels::KernelTable& kernels,
              kv::KvStore& store,
              const sparse::FastMemory& fast)
      : pool_(std::move(pool)), model_(std::move(model)), runtime_(store, *pool_, kernels, fast) {}

  [[nodiscard]] const model::ModelConfig& config() const override { return model_->config(); }

  [[nodiscard]] const Digest& fingerprint() const override { return model_->fingerprint(); }

  [[nodiscard]] absl::Status Reserve(uint32_t max_rows, uint32_t max_logit_rows) override {
    return model_->ReserveActivations(max_rows, max_logit_rows);
  }

  [[nodiscard]] absl::StatusOr<std::span<const float>> Forward(
      const model::StepInput& input) override {
    return model_->Forward(input, runtime_);
  }

  [[nodiscard]] sparse::MirrorCounters fast_counters() const override {
    return runtime_.Counters();
  }

  [[nodiscard]] std::span<const sparse::IndexedTokens> indexed_tokens() const override {
    return runtime_.Indexed();
  }

 private:
  const std::unique_ptr<platform::ComputePool> pool_;
  const std::unique_ptr<model::Model> model_;
  sparse::AttentionRuntime runtime_;
};

}  // namespace spindle::engine
