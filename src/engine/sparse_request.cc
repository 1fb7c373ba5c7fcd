#include "engine/sparse_request.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "sparse/algorithm_registry.h"

namespace spindle::engine {
namespace {

using sparse::SparseSettings;

constexpr uint32_t kDefaultBudgetTokens = 2048;
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

absl::StatusOr<SparseSettings> SettingsOf(const SparseRequest& wishes,
                                          const SparseRequest& defaults,
                                          const kv::KvGeometry& geometry) {
  SparseSettings settings;
  // A budget of one kind replaces the server's of the other.
  const SparseRequest& budget =
      wishes.budget_tokens.has_value() || wishes.budget_fraction.has_value() ? wishes : defaults;
  settings.budget_tokens = budget.budget_tokens.value_or(kDefaultBudgetTokens);
  settings.budget_fraction = budget.budget_fraction.value_or(0.0);
  settings.sink_tokens = Choose(wishes.sink_tokens, defaults.sink_tokens, settings.sink_tokens);
  settings.recent_tokens =
      Choose(wishes.recent_tokens, defaults.recent_tokens, settings.recent_tokens);
  settings.min_context = Choose(wishes.min_context, defaults.min_context, settings.min_context);
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
  return settings;
}

MethodDigest MethodOf(const sparse::SparseAlgorithm& algorithm, const SparseSettings& settings) {
  Sha256 hash;
  hash.Field("sparse")
      .Field(algorithm.name())
      .Number(settings.budget_tokens)
      .Number(std::bit_cast<uint64_t>(settings.budget_fraction))
      .Number(settings.sink_tokens)
      .Number(settings.recent_tokens)
      .Number(settings.min_context)
      .Number(settings.dense_layers.size());
  for (const bool is_dense : settings.dense_layers) {
    hash.Number(is_dense ? 1 : 0);
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

// An expectation, until steps have been measured.
double MandatoryPages(const sparse::SparseAlgorithm& algorithm,
                      const SparseSettings& settings,
                      uint32_t page_tokens,
                      uint32_t max_model_len) {
  const double context = max_model_len;
  const double budget =
      settings.budget_fraction > 0 ? settings.budget_fraction * context : settings.budget_tokens;
  const double always = static_cast<double>(settings.sink_tokens) + settings.recent_tokens;
  if (algorithm.index_unit() == sparse::IndexUnit::kSegment) {
    // Pieces of clusters are two thirds full; half a segment is not indexed yet.
    const double tail = static_cast<double>(kSegmentTokens) / 2;
    return std::min(1.5 * budget + always + tail, 1.5 * context) / page_tokens + 2;
  }
  return std::min(budget + always, context) / page_tokens + 2;
}

}  // namespace

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
                                           uint32_t max_model_len) {
  const std::string& name = NamesDefault(wishes.algorithm) ? defaults.algorithm : wishes.algorithm;
  SparseDecode decode;
  if (NamesDefault(name) || name == "dense") {
    return decode;
  }
  std::shared_ptr<const sparse::SparseAlgorithm> algorithm = sparse::FindAlgorithm(name);
  if (algorithm == nullptr) {
    return absl::NotFoundError("no attention algorithm has the name '" + name + "'");
  }
  SPINDLE_ASSIGN_OR_RETURN(SparseSettings settings, SettingsOf(wishes, defaults, geometry));
  SPINDLE_RETURN_IF_ERROR(algorithm->CheckSettings(settings));
  decode.algorithm = algorithm->name();
  decode.method = MethodOf(*algorithm, settings);
  decode.mandatory_pages =
      MandatoryPages(*algorithm, settings, geometry.page_tokens(), max_model_len);
  decode.policy =
      std::make_shared<const sparse::SparsePolicy>(std::move(algorithm), std::move(settings));
  return decode;
}

}  // namespace spindle::engine
