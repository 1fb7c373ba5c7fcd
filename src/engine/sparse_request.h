// What a request, or the server's defaults, say about sparse attention, and what that means for a
// model. Thread-safety: plain value and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/sparse_decode.h"
#include "kv/kv_geometry.h"
#include "sparse/algorithm_set.h"

namespace spindle::engine {

// Unset fields: the server's defaults. Meanings and ranges: docs/http-api.md.
struct SparseRequest {
  std::string algorithm = {};  // empty or "auto": the server's
  std::optional<uint32_t> budget_tokens = {};
  std::optional<double> budget_fraction = {};  // (0, 1]; not with budget_tokens
  std::optional<uint32_t> sink_tokens = {};
  std::optional<uint32_t> recent_tokens = {};
  std::optional<uint32_t> min_context = {};
  std::optional<std::vector<int32_t>> dense_layers = {};    // negative ones count from the end
  std::vector<float> layer_multipliers = {};                // > 0
  std::vector<float> head_multipliers = {};                 // > 0
  std::optional<double> top_p_mass = {};                    // (0, 1]
  std::optional<bool> dense_fallback = {};                  // layers whose estimate is under …
  std::optional<double> min_mass = {};                      // … this, [0, 1], are dense
  std::optional<uint32_t> reselect_interval = {};           // [1, kMaxReselectInterval]
  std::vector<std::pair<std::string, double>> params = {};  // knobs of the algorithm, by name
  std::string prefill = {};  // how the prompt is attended: "dense" or a method; empty: server's
  std::vector<std::pair<std::string, double>> prefill_params = {};  // knobs of that method, by name
  bool estimates_mass = false;  // where the algorithm can: for statistics
};

inline constexpr uint32_t kMaxReselectInterval = 64;

// `wishes`, and where they say nothing `defaults`; a budget of either kind is one of both.
[[nodiscard]] SparseRequest Overlay(SparseRequest wishes, const SparseRequest& defaults);

// Layers as text: numbers and `first:N`, `last:N`, with commas. ERRORS: kInvalidArgument.
[[nodiscard]] absl::StatusOr<std::vector<int32_t>> ParseDenseLayers(std::string_view text);

// `wishes` over `defaults`. The method of prefix keys follows from all that decides choices.
// ERRORS, whose messages begin with the field's name: kInvalidArgument (out of range; layers and
// heads that the model does not have), kUnimplemented (a parameter that the algorithm does not
// have), kFailedPrecondition (what the algorithm does not offer; what would narrow a choice where
// the algorithm is dense; knobs of a prefill that is dense). kNotFound: this model has no such
// algorithm. REQUIRES: `prefill` names a method, "dense" or nothing.
[[nodiscard]] absl::StatusOr<SparseDecode> ResolveSparse(const SparseRequest& wishes,
                                                         const SparseRequest& defaults,
                                                         const kv::KvGeometry& geometry,
                                                         const sparse::AlgorithmSet& algorithms);

}  // namespace spindle::engine
