// How much of their contexts the rows of generated tokens attended to.
// Thread-safety: value type.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace spindle::sparse {

// Of one sequence since it began. The share of a row is the mean, over its sparse layers and KV
// heads, of distinct attended tokens ÷ context tokens.
struct DecodeUse {
  uint32_t sparse_rows = 0;    // with a choice in some layer
  uint32_t fallback_rows = 0;  // of these: in some layer its estimate was too small
  uint32_t dense_rows = 0;     // under a policy, and yet attended to everything
  double share_sum = 0;        // of sparse rows
  double share_min = 1;
  double share_max = 0;
  double last_share = 0;     // of the last row; 0: it attended to everything
  double estimated_sum = 0;  // of sparse rows: the share that was estimated instead
  bool last_fell_back = false;
  // The estimated mass of a row is the mean, over its sparse layers and KV heads, of the share of
  // attention mass on what is attended, of the query head that has least.
  uint32_t mass_rows = 0;  // with an estimate in every sparse layer
  double mass_sum = 0;
  double mass_min = 1;
  double last_mass = 0;  // 0: the last row has none

  // `mass`: NaN without an estimate.
  void AddSparseRow(double share, double estimated_share, double mass, bool fell_back) {
    ++sparse_rows;
    fallback_rows += fell_back ? 1U : 0U;
    last_fell_back = fell_back;
    last_mass = 0;
    if (!std::isnan(mass)) {
      ++mass_rows;
      mass_sum += mass;
      mass_min = std::min(mass_min, mass);
      last_mass = mass;
    }
    last_share = share;
    estimated_sum += estimated_share;
    share_sum += share;
    share_min = std::min(share_min, share);
    share_max = std::max(share_max, share);
  }

  void AddDenseRows(uint32_t count) {
    dense_rows += count;
    last_share = 0;
    last_mass = 0;
    last_fell_back = false;
  }

  // Without sparse rows everything was attended to, and nothing estimated.
  [[nodiscard]] double MeanShare() const { return sparse_rows == 0 ? 1 : share_sum / sparse_rows; }

  [[nodiscard]] double MaxShare() const { return sparse_rows == 0 ? 1 : share_max; }

  [[nodiscard]] double MeanEstimated() const {
    return sparse_rows == 0 ? 0 : estimated_sum / sparse_rows;
  }

  // REQUIRES: mass_rows > 0.
  [[nodiscard]] double MeanMass() const { return mass_sum / mass_rows; }

  DecodeUse& operator+=(const DecodeUse& other) {
    sparse_rows += other.sparse_rows;
    fallback_rows += other.fallback_rows;
    dense_rows += other.dense_rows;
    share_sum += other.share_sum;
    estimated_sum += other.estimated_sum;
    share_min = std::min(share_min, other.share_min);
    share_max = std::max(share_max, other.share_max);
    mass_rows += other.mass_rows;
    mass_sum += other.mass_sum;
    mass_min = std::min(mass_min, other.mass_min);
    return *this;
  }
};

// Of one layer, since the sequence began; shares and masses as in DecodeUse, over KV heads.
struct LayerUse {
  uint32_t rows = 0;  // with a choice in this layer
  double share_sum = 0;
  uint32_t mass_rows = 0;  // of these: with an estimate
  double mass_sum = 0;
  // Pages that generated tokens attended to in the fast tier: there already, or copied first.
  uint64_t page_hits = 0;
  uint64_t page_misses = 0;

  void AddRow(double share, double mass) {
    ++rows;
    share_sum += share;
    if (!std::isnan(mass)) {
      ++mass_rows;
      mass_sum += mass;
    }
  }

  // 1 where the layer never chose.
  [[nodiscard]] double MeanShare() const { return rows == 0 ? 1 : share_sum / rows; }

  // REQUIRES: mass_rows > 0.
  [[nodiscard]] double MeanMass() const { return mass_sum / mass_rows; }

  // 1 where no page had to be copied, as without a fast tier.
  [[nodiscard]] double HitRate() const {
    return page_misses == 0
               ? 1
               : static_cast<double>(page_hits) / static_cast<double>(page_hits + page_misses);
  }

  LayerUse& operator+=(const LayerUse& other) {
    rows += other.rows;
    share_sum += other.share_sum;
    mass_rows += other.mass_rows;
    mass_sum += other.mass_sum;
    page_hits += other.page_hits;
    page_misses += other.page_misses;
    return *this;
  }
};

// Layer by layer; `to` grows to the layers of `from`.
inline void AddLayers(std::span<const LayerUse> from, std::vector<LayerUse>* to) {
  to->resize(std::max(to->size(), from.size()));
  for (size_t i = 0; i < from.size(); ++i) {
    (*to)[i] += from[i];
  }
}

}  // namespace spindle::sparse
