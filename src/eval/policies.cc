#include "eval/policies.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "eval/baseline_algorithms.h"
#include "sparse/prefill_registry.h"
#include "sparse/quest/quest_algorithm.h"
#include "sparse/shadowkv/shadowkv_algorithm.h"
#include "sparse/streaming/streaming_algorithm.h"

namespace spindle::eval {
namespace {

using sparse::SparseAlgorithm;
using sparse::SparseSettings;

constexpr uint32_t kPageTokens = 16;
constexpr uint32_t kQuestDenseLayers = 2;

std::vector<bool> DenseLayersOf(std::string_view algorithm) {
  return std::vector<bool>(BaseName(algorithm) == "quest" ? kQuestDenseLayers : 0, true);
}

// Of "NAME:KNOB=VALUE:KNOB=VALUE", the settings.
absl::StatusOr<sparse::NamedValues> ParseSettings(const std::string& option,
                                                  const std::string& text) {
  sparse::NamedValues named;
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    double value = 0;
    if (equals == std::string::npos || !absl::SimpleAtod(parts[i].substr(equals + 1), &value)) {
      return absl::InvalidArgumentError(option + ": a setting is KNOB=NUMBER, got '" + parts[i] +
                                        "'");
    }
    named.emplace_back(parts[i].substr(0, equals), value);
  }
  return named;
}

class PolicyMaker {
 public:
  PolicyMaker(const PolicyOptions& options, const kv::KvGeometry& geometry)
      : options_(options), geometry_(geometry) {}

  [[nodiscard]] std::shared_ptr<SelectionProbe> Probe(
      std::shared_ptr<const SparseAlgorithm> algorithm) const {
    return std::make_shared<SelectionProbe>(geometry_, std::move(algorithm), options_.mass_stride);
  }

  absl::Status Add(PolicyRole role,
                   const std::string& algorithm,
                   double budget,
                   const std::shared_ptr<SelectionProbe>& probe) {
    SparseSettings settings;
    settings.budget_tokens = 0;
    settings.budget_fraction = budget;
    settings.sink_tokens = options_.sink_tokens;
    settings.recent_tokens = options_.recent_tokens;
    settings.min_context = 0;
    settings.dense_layers = DenseLayersOf(algorithm);
    absl::Status status = probe->CheckSettings(settings);
    if (role == PolicyRole::kAlgorithm) {
      SPINDLE_ASSIGN_OR_RETURN(const sparse::NamedValues named,
                               ParseSettings("--algorithms", algorithm));
      const SparseAlgorithm& inner = *probe->inner();
      absl::StatusOr<std::vector<double>> knobs =
          sparse::KnobValues(named, inner.knobs(), "setting", inner.name());
      status.Update(knobs.status());
      settings.knobs = std::move(knobs).value_or(std::vector<double>());
      settings.estimates_mass = inner.mass_estimate();
    }
    if (!status.ok()) {
      return absl::InvalidArgumentError("--algorithms " + algorithm + ": " +
                                        std::string(status.message()));
    }
    policies_.push_back(
        {.role = role,
         .algorithm = algorithm,
         .budget = budget,
         .probe = probe,
         .policy = std::make_unique<const sparse::SparsePolicy>(probe, std::move(settings))});
    return absl::OkStatus();
  }

  void AddDense() { policies_.emplace_back(); }

  std::vector<EvalPolicy> Take() { return std::move(policies_); }

 private:
  const PolicyOptions& options_;
  const kv::KvGeometry& geometry_;
  std::vector<EvalPolicy> policies_;
};

absl::Status CheckOptions(const PolicyOptions& options, const sparse::AlgorithmSet& algorithms) {
  for (size_t i = 0; i < options.algorithms.size(); ++i) {
    const std::string& name = options.algorithms[i];
    const auto first = std::find(options.algorithms.begin(), options.algorithms.end(), name);
    if (first - options.algorithms.begin() != static_cast<ptrdiff_t>(i)) {
      return absl::InvalidArgumentError("--algorithms names '" + name + "' twice");
    }
    if (BaseName(name) == "dense" || BaseName(name) == "streaming") {
      return absl::InvalidArgumentError("--algorithms: '" + name + "' is always compared with");
    }
    if (algorithms.Find(std::string(BaseName(name))) == nullptr) {
      std::string known;
      for (const auto& algorithm : algorithms.all()) {
        known += known.empty() ? "" : ", ";
        known += algorithm->name();
      }
      return absl::InvalidArgumentError("--algorithms: no algorithm has the name '" + name +
                                        "'; there are " + known +
                                        " (seer_r needs gates: --sparse-gates)");
    }
  }
  for (const double budget : options.budgets) {
    if (!(budget > 0 && budget <= 1)) {
      return absl::InvalidArgumentError("--budgets must be in (0%, 100%], got " +
                                        BudgetText(budget));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<EvalPolicy> MakePrefillPolicy(const std::string& text) {
  const std::string name(BaseName(text));
  std::shared_ptr<const sparse::PrefillMethod> method = sparse::FindPrefillMethod(name);
  if (method == nullptr) {
    std::string known;
    for (const auto& each : sparse::PrefillMethods()) {
      known += (known.empty() ? "" : ", ") + std::string(each->name());
    }
    return absl::InvalidArgumentError("--prefill: no method has the name '" + name +
                                      "'; there are " + known);
  }
  SPINDLE_ASSIGN_OR_RETURN(const sparse::NamedValues named, ParseSettings("--prefill", text));
  absl::StatusOr<std::shared_ptr<const sparse::PrefillPolicy>> prefill =
      sparse::PrefillPolicy::Create(std::move(method), named);
  if (!prefill.ok()) {
    return absl::InvalidArgumentError("--prefill " + text + ": " +
                                      std::string(prefill.status().message()));
  }
  return EvalPolicy{
      .role = PolicyRole::kPrefill, .algorithm = text, .prefill = *std::move(prefill)};
}

}  // namespace

std::string_view NameOf(PolicyRole role) {
  switch (role) {
    case PolicyRole::kDense:
      return "dense";
    case PolicyRole::kStreaming:
      return "streaming";
    case PolicyRole::kRandom:
      return "random";
    case PolicyRole::kOracle:
      return "oracle";
    case PolicyRole::kAlgorithm:
      return "algorithm";
    case PolicyRole::kPrefill:
      return "prefill";
  }
  return "?";
}

std::string EvalPolicy::Name() const {
  const std::string at = budget > 0 ? "@" + BudgetText(budget) : "";
  switch (role) {
    case PolicyRole::kOracle:
      return "oracle(" + algorithm + ")" + at;
    case PolicyRole::kAlgorithm:
      return algorithm + at;
    case PolicyRole::kPrefill:
      return "prefill(" + algorithm + ")";
    default:
      return std::string(NameOf(role)) + at;
  }
}

absl::StatusOr<std::vector<EvalPolicy>> MakePolicies(const PolicyOptions& options,
                                                     const kv::KvGeometry& geometry,
                                                     const sparse::AlgorithmSet& algorithms) {
  SPINDLE_RETURN_IF_ERROR(CheckOptions(options, algorithms));
  PolicyMaker maker(options, geometry);
  maker.AddDense();
  SPINDLE_RETURN_IF_ERROR(maker.Add(
      PolicyRole::kStreaming, "", 0, maker.Probe(std::make_shared<sparse::StreamingAlgorithm>())));
  const auto random = maker.Probe(std::make_shared<RandomAlgorithm>(kPageTokens, options.seed));
  for (const double budget : options.budgets) {
    SPINDLE_RETURN_IF_ERROR(maker.Add(PolicyRole::kRandom, "", budget, random));
  }
  for (const std::string& name : options.algorithms) {
    const std::shared_ptr<const SparseAlgorithm> algorithm =
        algorithms.Find(std::string(BaseName(name)));
    const auto probe = maker.Probe(algorithm);
    // Clusters of segments cannot be counted beside an index of stripes: the budget then.
    const bool can_match = algorithm->index_unit() == sparse::IndexUnit::kStripe;
    const auto oracle = maker.Probe(std::make_shared<OracleAlgorithm>(
        geometry, PartitionTokens(name), can_match ? algorithm : nullptr));
    for (const double budget : options.budgets) {
      SPINDLE_RETURN_IF_ERROR(maker.Add(PolicyRole::kOracle, name, budget, oracle));
      SPINDLE_RETURN_IF_ERROR(maker.Add(PolicyRole::kAlgorithm, name, budget, probe));
    }
  }
  std::vector<EvalPolicy> policies = maker.Take();
  for (const std::string& prefill : options.prefills) {
    SPINDLE_ASSIGN_OR_RETURN(EvalPolicy policy, MakePrefillPolicy(prefill));
    policies.push_back(std::move(policy));
  }
  return policies;
}

EvalPolicy MakeFullPolicy(const EvalPolicy& policy) {
  SPINDLE_CHECK(policy.role == PolicyRole::kAlgorithm);
  SparseSettings settings;
  settings.budget_fraction = 1;
  settings.min_context = 0;
  settings.always_ranks = true;
  settings.knobs = policy.policy->settings().knobs;
  return EvalPolicy{
      .role = PolicyRole::kAlgorithm,
      .algorithm = policy.algorithm,
      .budget = 1,
      .policy = std::make_unique<const sparse::SparsePolicy>(policy.probe->inner(), settings)};
}

std::string_view BaseName(std::string_view algorithm) {
  return algorithm.substr(0, algorithm.find(':'));
}

uint32_t PartitionTokens(std::string_view algorithm) {
  const std::string_view name = BaseName(algorithm);
  if (name == "shadowkv") {
    return sparse::ShadowKvAlgorithm::kChunkTokens;
  }
  if (name == "seer_r") {
    return 64;  // blocks of its authors' decoding kernels
  }
  return sparse::QuestAlgorithm::kPageTokens;
}

absl::StatusOr<std::vector<double>> ParseBudgets(std::string_view text) {
  std::vector<double> budgets;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string part(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
    const bool is_percent = part.ends_with('%');
    const std::string number = is_percent ? part.substr(0, part.size() - 1) : part;
    double value = 0;
    if (!absl::SimpleAtod(number, &value) || !(value > 0 && value <= (is_percent ? 100 : 1))) {
      return absl::InvalidArgumentError("a budget is a share in (0%, 100%], got '" + part + "'");
    }
    budgets.push_back(is_percent ? value / 100 : value);
  }
  return budgets;
}

std::string BudgetText(double budget) {
  return fmt::format("{:.4g}%", budget * 100);
}

}  // namespace spindle::eval
