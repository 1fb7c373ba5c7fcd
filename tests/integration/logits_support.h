// What the logits tests share: a model with its store and attention runtime, and golden files.
// Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/model_file.h"
#include "kv/kv_store.h"
#include "model/model.h"
#include "platform/compute_pool.h"
#include "sparse/attention_runtime.h"

namespace spindle::test {

struct RigOptions {
  std::string path;
  std::string kernels = "auto";
  model::ModelOptions model;
  DType kv_type = DType::kBF16;
  uint32_t num_threads = 1;
  uint32_t max_rows = 512;        // of one step
  uint32_t max_logit_rows = 512;  // of one step
};

// Receives (index of the prompt, position, logits [vocab]).
using LogitSink = std::function<void(size_t, uint32_t, std::span<const float>)>;

// Everything from the file to logits, without the engine.
class ModelRig {
 public:
  static absl::StatusOr<std::unique_ptr<ModelRig>> Create(const RigOptions& options);

  [[nodiscard]] model::Model& model() { return *model_; }

  // Runs all prompts side by side: each step takes the next `chunk` tokens of every prompt that has
  // some left.
  absl::Status Run(std::span<const std::vector<TokenId>> prompts,
                   uint32_t chunk,
                   const LogitSink& sink);

  // Logits of all positions of one prompt, [n][vocab].
  std::vector<float> LogitsOf(const std::vector<TokenId>& prompt, uint32_t chunk);

  // Logits of some rows of one prompt run as one step, [rows][vocab].
  std::vector<float> LogitsOfRows(const std::vector<TokenId>& prompt,
                                  std::span<const uint32_t> rows);

  // Heap allocations while one step of the whole prompt runs.
  uint64_t AllocationsOfAStep(const std::vector<TokenId>& prompt);

 private:
  ModelRig() = default;

  std::unique_ptr<platform::ComputePool> pool_;
  std::shared_ptr<const formats::ModelFile> file_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<kv::KvStore> store_;
  std::unique_ptr<sparse::AttentionRuntime> runtime_;
};

// One prompt of a golden file (tools/golden/golden_file.py).
struct GoldenPrompt {
  static constexpr size_t kTop = 32;

  std::vector<TokenId> tokens;
  std::vector<int32_t> ids;        // [n][kTop], descending logits
  std::vector<float> logits;       // [n][kTop]
  std::vector<float> log_sum_exp;  // [n]
};

// `name`: file name in tests/golden/logits.
absl::StatusOr<std::vector<GoldenPrompt>> ReadGolden(const std::string& name);

// How far logits are from a golden file, over the top 32 of all positions.
struct Agreement {
  uint64_t positions = 0;
  uint64_t decided = 0;            // reference margin over 0.05
  uint64_t decided_same = 0;       // of those, same arg-max
  double largest_lost_margin = 0;  // among positions with another arg-max
  double relative_error = 0;       // |difference| / |reference|
  double rms_difference = 0;
  double largest_lse_difference = 0;
};

absl::StatusOr<Agreement> Compare(ModelRig& rig,
                                  std::span<const GoldenPrompt> golden,
                                  uint32_t chunk);

// The acceptance rules, checked with gtest's EXPECT_…: fp32 throughout (`--dtype f32`), and the
// default arithmetic. The limit of the exact mode leaves room for the fp16 of the golden file.
void ExpectExact(const RigOptions& base, const std::string& golden_name);
//   decided_share  least share of decided positions with the same arg-max
void ExpectClose(const RigOptions& options, const std::string& golden_name, double decided_share);

}  // namespace spindle::test
