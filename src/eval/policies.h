// The policies that an evaluation compares: dense, the bounds on both sides of what an algorithm
// can do, and the algorithms at every budget. Thread-safety: immutable after Create, except the
// records.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "eval/selection_probe.h"
#include "kv/kv_geometry.h"
#include "sparse/algorithm_set.h"
#include "sparse/prefill_policy.h"
#include "sparse/sparse_policy.h"

namespace spindle::eval {

enum class PolicyRole : uint8_t {
  kDense,
  kStreaming,  // sink and recent tokens only
  kRandom,     // random pages of 16 tokens
  kOracle,     // the best partitions, as many tokens as `algorithm` attends to, if that can be told
  kAlgorithm,
  kPrefill,  // the context is computed sparsely, what follows densely
};

// "dense", "streaming" …
[[nodiscard]] std::string_view NameOf(PolicyRole role);

struct EvalPolicy {
  PolicyRole role = PolicyRole::kDense;
  // With its settings, as in the options; of the oracle: the one it is matched with; of sparse
  // prefill: the method.
  std::string algorithm = {};
  double budget = 0;                           // share of the context to select; 0: none
  std::shared_ptr<SelectionProbe> probe = {};  // shared by the policies of one algorithm
  std::unique_ptr<const sparse::SparsePolicy> policy = {};    // null: dense
  std::shared_ptr<const sparse::PrefillPolicy> prefill = {};  // of the context; null: dense

  // "quest@12.5%", "quest:bound_weight=0.5@12.5%", "oracle(quest)@12.5%", "streaming",
  // "prefill(xattention:stride=8)".
  [[nodiscard]] std::string Name() const;
};

struct PolicyOptions {
  // "quest", "quest:bound_weight=0.5": settings that only the algorithm has.
  std::vector<std::string> algorithms = {"quest", "shadowkv"};
  std::vector<double> budgets = {0.25, 0.125, 0.06, 0.03};  // shares in (0, 1]
  std::vector<std::string> prefills = {};  // "xattention", "tri_shape:recent=896:start=256"
  uint32_t sink_tokens = 4;
  uint32_t recent_tokens = 64;
  uint32_t mass_stride = 4;  // attention mass is computed for every so many steps
  uint64_t seed = 1;
};

// Dense first; then streaming, random at each budget, each algorithm with its oracle at each, and
// each sparse prefill.
// Quest leaves its first two layers dense, as its authors do, and so does its oracle. Policies
// outlive the model that they are used with, which keeps indexes by the address of their algorithm.
// `algorithms`: those that serve the model.
// ERRORS: kInvalidArgument naming the option (unknown algorithm or method, one named twice, budget
// or knob out of range, settings that an algorithm cannot follow).
[[nodiscard]] absl::StatusOr<std::vector<EvalPolicy>> MakePolicies(
    const PolicyOptions& options,
    const kv::KvGeometry& geometry,
    const sparse::AlgorithmSet& algorithms = {});

// The policy of the same algorithm that selects everything and ranks it all the same: to be
// compared with dense. REQUIRES: role kAlgorithm.
[[nodiscard]] EvalPolicy MakeFullPolicy(const EvalPolicy& policy);

// Without settings: "quest:bound_weight=0.5" → "quest".
[[nodiscard]] std::string_view BaseName(std::string_view algorithm);

// Tokens of what the algorithm selects; 16 where that is no fixed number.
[[nodiscard]] uint32_t PartitionTokens(std::string_view algorithm);

// "12.5%" or "0.125", with commas. ERRORS: kInvalidArgument naming the text and the range.
[[nodiscard]] absl::StatusOr<std::vector<double>> ParseBudgets(std::string_view text);

// 12.5 → "12.5%".
[[nodiscard]] std::string BudgetText(double budget);

}  // namespace spindle::eval
