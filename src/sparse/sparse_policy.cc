#include "sparse/sparse_policy.h"

#include <algorithm>
#include <cmath>

#include "base/prefix_key.h"

namespace spindle::sparse {
namespace {

double MultiplierAt(const std::vector<float>& multipliers, size_t i) {
  return i < multipliers.size() ? double{multipliers[i]} : 1.0;
}

}  // namespace

uint32_t SparsePolicy::AnchorOf(uint32_t position, uint32_t decode_begin) const {
  const auto lane = static_cast<uint32_t>(position % kStripeTokens);
  const uint32_t anchor = position - lane % settings_.reselect_interval;
  const uint32_t first_sparse = std::max(1U, settings_.min_context) - 1;
  return std::max({anchor, decode_begin, first_sparse});
}

uint32_t SparsePolicy::BudgetTokens(LayerIdx layer, KvHeadIdx head, uint32_t num_tokens) const {
  const double budget = settings_.budget_fraction > 0 ? settings_.budget_fraction * num_tokens
                                                      : settings_.budget_tokens;
  const double scaled = budget * MultiplierAt(settings_.layer_multipliers, layer.value()) *
                        MultiplierAt(settings_.head_multipliers, head.value());
  return static_cast<uint32_t>(std::min<double>(std::ceil(scaled), num_tokens));
}

}  // namespace spindle::sparse
