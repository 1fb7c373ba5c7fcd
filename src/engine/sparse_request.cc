#include "engine/sparse_request.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "sparse/prefill_registry.h"

namespace spindle::engine {
namespace {

using sparse::SparseSettings;

constexpr uint32_t kDefaultBudgetTokens = 2048;
constexpr double kDefaultMinMass = 0.5;
constexpr int32_t kMaxNamedLayers = 4096;

bool NamesDefault(const std::string& algorithm) {
  return algorithm.empty() || algorithm == "auto";
}

absl::StatusOr<std::vector<bool>> DenseLayers(const std::vector<int32_t>& layers,
                                              uint32_t num_layers) {
  std::vector<bool> dense(num_layers, false);
  const auto count = static_cast<int32_t>(num_layers);
  for (const int32_t layer : layers) {
    if (layer < -count || layer >= count) {
      return absl::InvalidArgumentError("dense_layers must be in [" + std::to_string(-count) +
                                        ", " + std::to_string(count - 1) + "], got " +
                                        std::to_string(layer));
    }
    dense[static_cast<size_t>(layer < 0 ? layer + count : layer)] = true;
  }
  return dense;
}

absl::Status CheckMultipliers(const char* name, const std::vector<float>& values, uint32_t most) {
  if (values.size() > most) {
    return absl::InvalidArgumentError(std::string(name) + " must have at most " +
                                      std::to_string(most) + " numbers, got " +
                                      std::to_string(values.size()));
  }
  if (!std::ranges::all_of(values, [](float value) { return value > 0 && value <= 1024; })) {
    return absl::InvalidArgumentError(std::string(name) + " must be in (0, 1024]");
  }
  return absl::OkStatus();
}

template <typename T>
T Choose(const std::optional<T>& wish, const std::optional<T>& preset, T otherwise) {
  return wish.value_or(preset.value_or(otherwise));
}

using Params = sparse::NamedValues;

// By name: a wish replaces the server's value of that one alone.
Params Merge(const Params& wishes, Params defaults) {
  for (const auto& wish : wishes) {
    const auto same = std::ranges::find(defaults, wish.first, &Params::value_type::first);
    if (same == defaults.end()) {
      defaults.push_back(wish);
    } else {
      same->second = wish.second;
    }
  }
  return defaults;
}

bool HasBudget(const SparseRequest& request) {
  return request.budget_tokens.has_value() || request.budget_fraction.has_value();
}

// A budget of one kind replaces the server's of the other. Where the estimate decides, only a
// budget of its own limits it.
void ApplyBudget(const SparseRequest& wishes,
                 const SparseRequest& defaults,
                 SparseSettings* settings) {
  const SparseRequest& budget = HasBudget(wishes) ? wishes : defaults;
  settings->budget_tokens = budget.budget_tokens.value_or(kDefaultBudgetTokens);
  settings->budget_fraction = budget.budget_fraction.value_or(0.0);
  const bool limits_own = wishes.top_p_mass.has_value() ? HasBudget(wishes) : HasBudget(budget);
  if (settings->top_p_mass > 0 && !limits_own) {
    settings->budget_fraction = 1;
    // All of the mass is all of the context.
    settings->min_context =
        settings->top_p_mass >= 1 ? std::numeric_limits<uint32_t>::max() : settings->min_context;
  }
}

// What needs an estimate of attention mass.
absl::Status ApplyMass(const SparseRequest& wishes,
                       const SparseRequest& defaults,
                       const sparse::SparseAlgorithm& algorithm,
                       SparseSettings* settings) {
  if (!algorithm.mass_estimate()) {
    const char* const asked = wishes.top_p_mass.has_value()           ? "top_p_mass"
                              : wishes.dense_fallback.value_or(false) ? "fallback"
                              : wishes.min_mass.has_value()           ? "min_mass"
                                                                      : nullptr;
    return asked == nullptr
               ? absl::OkStatus()
               : absl::FailedPreconditionError(
                     std::string(asked) + " needs an algorithm with an estimate of attention " +
                     "mass, which '" + std::string(algorithm.name()) + "' does not make");
  }
  settings->top_p_mass = Choose(wishes.top_p_mass, defaults.top_p_mass, 0.0);
  const bool falls_back = Choose(wishes.dense_fallback, defaults.dense_fallback, false);
  if (wishes.min_mass.has_value() && !falls_back) {
    return absl::FailedPreconditionError("min_mass has a meaning only with the fallback 'dense'");
  }
  settings->min_mass = falls_back ? Choose(wishes.min_mass, defaults.min_mass, kDefaultMinMass) : 0;
  settings->estimates_mass = wishes.estimates_mass;
  if (settings->top_p_mass < 0 || settings->top_p_mass > 1) {
    return absl::InvalidArgumentError("top_p_mass must be in (0, 1], got " +
                                      std::to_string(settings->top_p_mass));
  }
  if (settings->min_mass < 0 || settings->min_mass > 1) {
    return absl::InvalidArgumentError("min_mass must be in [0, 1], got " +
                                      std::to_string(settings->min_mass));
  }
  return absl::OkStatus();
}

absl::StatusOr<SparseSettings> SettingsOf(const SparseRequest& wishes,
                                          const SparseRequest& defaults,
                                          const sparse::SparseAlgorithm& algorithm,
                                          const kv::KvGeometry& geometry) {
  const bool is_servers = algorithm.name() == defaults.algorithm;
  SparseSettings settings;
  settings.min_context = Choose(wishes.min_context, defaults.min_context, settings.min_context);
  SPINDLE_RETURN_IF_ERROR(ApplyMass(wishes, defaults, algorithm, &settings));
  ApplyBudget(wishes, defaults, &settings);
  settings.sink_tokens = Choose(wishes.sink_tokens, defaults.sink_tokens, settings.sink_tokens);
  if (!wishes.sink_tokens.has_value() && !is_servers && !algorithm.CheckSettings(settings).ok()) {
    settings.sink_tokens = SparseSettings().sink_tokens;  // the server's is for other algorithms
  }
  settings.recent_tokens =
      Choose(wishes.recent_tokens, defaults.recent_tokens, settings.recent_tokens);
  settings.reselect_interval = Choose(wishes.reselect_interval, defaults.reselect_interval, 1U);
  if (!algorithm.can_hold()) {
    if (wishes.reselect_interval.value_or(1) > 1) {
      return absl::FailedPreconditionError("reselect_interval above 1 is not offered by '" +
                                           std::string(algorithm.name()) + "'");
    }
    settings.reselect_interval = 1;
  }
  // The server's parameters are those of its algorithm.
  SPINDLE_ASSIGN_OR_RETURN(
      settings.knobs,
      sparse::KnobValues(Merge(wishes.params, is_servers ? defaults.params : Params()),
                         algorithm.knobs(),
                         "params",
                         algorithm.name()));
  SPINDLE_ASSIGN_OR_RETURN(
      settings.dense_layers,
      DenseLayers(Choose(wishes.dense_layers, defaults.dense_layers, {}), geometry.num_layers));
  settings.layer_multipliers =
      wishes.layer_multipliers.empty() ? defaults.layer_multipliers : wishes.layer_multipliers;
  settings.head_multipliers =
      wishes.head_multipliers.empty() ? defaults.head_multipliers : wishes.head_multipliers;
  SPINDLE_RETURN_IF_ERROR(
      CheckMultipliers("layer_multipliers", settings.layer_multipliers, geometry.num_layers));
  SPINDLE_RETURN_IF_ERROR(
      CheckMultipliers("head_multipliers", settings.head_multipliers, geometry.num_kv_heads));
  if (settings.budget_fraction < 0 || settings.budget_fraction > 1) {
    return absl::InvalidArgumentError("budget_fraction must be in (0, 1], got " +
                                      std::to_string(settings.budget_fraction));
  }
  if (settings.reselect_interval < 1 || settings.reselect_interval > kMaxReselectInterval) {
    return absl::InvalidArgumentError(absl::StrCat("reselect_interval must be in [1, ",
                                                   kMaxReselectInterval,
                                                   "], got ",
                                                   settings.reselect_interval));
  }
  return settings;
}

MethodDigest MethodOf(const sparse::SparseAlgorithm& algorithm, const SparseSettings& settings) {
  Sha256 hash;
  hash.Field("sparse")
      .Field(algorithm.name())
      .Bytes(algorithm.fingerprint())
      .Number(settings.budget_tokens)
      .Number(std::bit_cast<uint64_t>(settings.budget_fraction))
      .Number(settings.sink_tokens)
      .Number(settings.recent_tokens)
      .Number(settings.min_context)
      .Number(std::bit_cast<uint64_t>(settings.top_p_mass))
      .Number(std::bit_cast<uint64_t>(settings.min_mass))
      .Number(settings.reselect_interval)
      .Number(settings.dense_layers.size());
  for (const bool is_dense : settings.dense_layers) {
    hash.Number(is_dense ? 1 : 0);
  }
  hash.Number(settings.knobs.size());
  for (const double knob : settings.knobs) {
    hash.Number(std::bit_cast<uint64_t>(knob));
  }
  for (const std::vector<float>* multipliers :
       {&settings.layer_multipliers, &settings.head_multipliers}) {
    hash.Number(multipliers->size());
    for (const float multiplier : *multipliers) {
      hash.Number(std::bit_cast<uint32_t>(multiplier));
    }
  }
  return hash.Finish();
}

// What can only narrow a choice says nothing where all is attended.
absl::Status CheckDense(const SparseRequest& wishes, const sparse::AlgorithmSet& algorithms) {
  const char* const asked = wishes.budget_tokens.has_value()           ? "budget_tokens"
                            : wishes.budget_fraction.has_value()       ? "budget_fraction"
                            : !wishes.layer_multipliers.empty()        ? "layer_multipliers"
                            : !wishes.head_multipliers.empty()         ? "head_multipliers"
                            : wishes.reselect_interval.value_or(1) > 1 ? "reselect_interval"
                                                                       : nullptr;
  if (asked == nullptr) {
    return absl::OkStatus();
  }
  if (!NamesDefault(wishes.algorithm)) {
    return absl::FailedPreconditionError(
        absl::StrCat(asked, " has no meaning with the algorithm 'dense'"));
  }
  std::string names;
  for (const std::shared_ptr<const sparse::SparseAlgorithm>& algorithm : algorithms.all()) {
    if (algorithm->name() != "dense") {
      names += (names.empty() ? "" : ", ") + std::string(algorithm->name());
    }
  }
  return absl::FailedPreconditionError(absl::StrCat(
      asked, " needs an algorithm that selects, and the server's is 'dense': name one of ", names));
}

// Null: densely.
absl::StatusOr<std::shared_ptr<const sparse::PrefillPolicy>> PrefillOf(
    const SparseRequest& wishes,
    const SparseRequest& defaults,
    const std::vector<bool>& dense_layers) {
  const std::string& name = wishes.prefill.empty() ? defaults.prefill : wishes.prefill;
  const bool is_servers = name == defaults.prefill;
  const Params params =
      Merge(wishes.prefill_params, is_servers ? defaults.prefill_params : Params());
  if (name.empty() || name == "dense") {
    if (!params.empty()) {
      return absl::FailedPreconditionError(
          "prefill_params has no meaning where the prefill is 'dense'");
    }
    return std::shared_ptr<const sparse::PrefillPolicy>();
  }
  std::shared_ptr<const sparse::PrefillMethod> method = sparse::FindPrefillMethod(name);
  SPINDLE_CHECK(method != nullptr);
  return sparse::PrefillPolicy::Create(std::move(method), params, dense_layers);
}

}  // namespace

SparseRequest Overlay(SparseRequest wishes, const SparseRequest& defaults) {
  const auto fill = [](auto* wish, const auto& preset) {
    if (!wish->has_value()) {
      *wish = preset;
    }
  };
  // Where the estimate decides, only a budget of its own limits it.
  if (!HasBudget(wishes) && !wishes.top_p_mass.has_value()) {
    wishes.budget_tokens = defaults.budget_tokens;
    wishes.budget_fraction = defaults.budget_fraction;
  }
  const bool same_algorithm =
      NamesDefault(wishes.algorithm) || wishes.algorithm == defaults.algorithm;
  if (NamesDefault(wishes.algorithm)) {
    wishes.algorithm = defaults.algorithm;
  }
  fill(&wishes.sink_tokens, defaults.sink_tokens);
  fill(&wishes.recent_tokens, defaults.recent_tokens);
  fill(&wishes.min_context, defaults.min_context);
  fill(&wishes.dense_layers, defaults.dense_layers);
  fill(&wishes.top_p_mass, defaults.top_p_mass);
  fill(&wishes.dense_fallback, defaults.dense_fallback);
  fill(&wishes.min_mass, defaults.min_mass);
  fill(&wishes.reselect_interval, defaults.reselect_interval);
  if (wishes.layer_multipliers.empty()) {
    wishes.layer_multipliers = defaults.layer_multipliers;
  }
  if (wishes.head_multipliers.empty()) {
    wishes.head_multipliers = defaults.head_multipliers;
  }
  // Parameters are those of an algorithm or method.
  if (same_algorithm) {
    wishes.params = Merge(wishes.params, defaults.params);
  }
  if (wishes.prefill.empty() || wishes.prefill == defaults.prefill) {
    wishes.prefill = defaults.prefill;
    wishes.prefill_params = Merge(wishes.prefill_params, defaults.prefill_params);
  }
  return wishes;
}

absl::StatusOr<std::vector<int32_t>> ParseDenseLayers(std::string_view text) {
  std::vector<int32_t> layers;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    const size_t colon = part.find(':');
    const std::string_view word = colon == std::string_view::npos ? "" : part.substr(0, colon);
    int32_t number = 0;
    const bool is_number =
        absl::SimpleAtoi(std::string(part.substr(word.empty() ? 0 : colon + 1)), &number);
    if (!is_number || (!word.empty() && (number < 0 || number > kMaxNamedLayers)) ||
        (!word.empty() && word != "first" && word != "last")) {
      return absl::InvalidArgumentError(
          "layers are numbers, first:N and last:N with commas, got '" + std::string(part) + "'");
    }
    if (word.empty()) {
      layers.push_back(number);
    }
    for (int32_t i = 0; i < number && !word.empty(); ++i) {
      layers.push_back(word == "first" ? i : -1 - i);
    }
  }
  return layers;
}

absl::StatusOr<SparseDecode> ResolveSparse(const SparseRequest& wishes,
                                           const SparseRequest& defaults,
                                           const kv::KvGeometry& geometry,
                                           const sparse::AlgorithmSet& algorithms) {
  const std::string& name = NamesDefault(wishes.algorithm) ? defaults.algorithm : wishes.algorithm;
  std::shared_ptr<const sparse::SparseAlgorithm> algorithm =
      algorithms.Find(NamesDefault(name) ? "dense" : name);
  if (algorithm == nullptr) {
    return absl::NotFoundError("no attention algorithm of this model has the name '" + name +
                               "' (seer_r needs gates: --sparse-gates)");
  }
  SPINDLE_ASSIGN_OR_RETURN(SparseSettings settings,
                           SettingsOf(wishes, defaults, *algorithm, geometry));
  SPINDLE_RETURN_IF_ERROR(algorithm->CheckSettings(settings));
  SparseDecode decode;
  SPINDLE_ASSIGN_OR_RETURN(decode.prefill, PrefillOf(wishes, defaults, settings.dense_layers));
  if (algorithm->name() == "dense") {
    SPINDLE_RETURN_IF_ERROR(CheckDense(wishes, algorithms));
    return decode;
  }
  decode.algorithm = algorithm->name();
  decode.method = MethodOf(*algorithm, settings);
  decode.policy =
      std::make_shared<const sparse::SparsePolicy>(std::move(algorithm), std::move(settings));
  return decode;
}

}  // namespace spindle::engine
