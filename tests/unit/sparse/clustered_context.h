// A context of random rows around topics, in stripes of a store's layout, with RetroInfer's index
// of its segments, and the algorithm's choices over it. Thread-safety: none needed; single-threaded
// tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/codes.h"
#include "kernels/registry.h"
#include "platform/memory.h"
#include "sparse/retroinfer/cluster_index.h"
#include "sparse/retroinfer/retroinfer_algorithm.h"
#include "sparse/sparse_settings.h"
#include "support/index_vectors.h"

namespace spindle::sparse {

inline constexpr uint32_t kContextDim = 32;
inline constexpr float kContextScale = 0.2F;

// Stripes of one layer and head with random rows, and the index of every complete segment.
class ClusteredContext {
 public:
  ClusteredContext(uint32_t num_tokens, std::mt19937& rng, IndexType type = IndexType::kBf16)
      : algorithm_(type),
        layout_{kContextDim, type},
        geometry_{1, 1, kContextDim, DType::kBF16},
        num_tokens_(num_tokens),
        scratch_(platform::AlignedBuffer::Allocate(kernels::kScratchBytes).value()) {
    workspace_.exec = &exec_;
    std::normal_distribution<float> normal;
    // Topics, so that clusters differ in size.
    std::vector<float> topics(size_t{40} * kContextDim);
    for (float& x : topics) {
      x = normal(rng);
    }
    keys_.resize(size_t{num_tokens} * kContextDim);
    values_.resize(keys_.size());
    for (uint32_t t = 0; t < num_tokens; ++t) {
      if (t % 64 == 0) {
        stripes_.emplace_back(geometry_.stripe_bytes());
      }
      const size_t topic = std::min(rng() % 40, rng() % 40);
      for (uint32_t d = 0; d < kContextDim; ++d) {
        keys_[size_t{t} * kContextDim + d] =
            Stored(t, d, 0, topics[topic * kContextDim + d] + 0.6F * normal(rng));
        values_[size_t{t} * kContextDim + d] = Stored(t, d, geometry_.v_offset(), normal(rng));
      }
    }
    for (uint32_t segment = 0; segment < num_tokens / 1024; ++segment) {
      std::vector<const uint8_t*> stripes;
      for (uint32_t i = 0; i < 16; ++i) {
        stripes.push_back(stripes_[segment * 16 + i].data());
      }
      blobs_.emplace_back(algorithm_.index_bytes(geometry_) / 8);
      addresses_.push_back(reinterpret_cast<const uint8_t*>(blobs_.back().data()));
      EXPECT_EQ(algorithm_.BuildSegment({.geometry = &geometry_,
                                         .stripes = stripes,
                                         .offset = 0,
                                         .segment = segment,
                                         .index = reinterpret_cast<uint8_t*>(blobs_.back().data())},
                                        build_),
                kernels::kOk);
    }
  }

  Selection Choose(const SparseSettings& settings, uint32_t budget, const std::vector<float>& q) {
    std::vector<uint8_t*> stripes;
    for (std::vector<uint8_t>& stripe : stripes_) {
      stripes.push_back(stripe.data());
    }
    const StoredKeys keys{.geometry = &geometry_, .stripes = stripes, .kv_offset = 0};
    Selection selection;
    algorithm_.Select({.position = num_tokens_ - 1,
                       .settings = &settings,
                       .budget_tokens = budget,
                       .q = q.data(),
                       .group = static_cast<uint32_t>(q.size() / kContextDim),
                       .head_dim = kContextDim,
                       .scale = kContextScale,
                       .index = {.stripes = {}, .offset = 0, .segments = addresses_},
                       .keys = settings.NeedsMass() ? &keys : nullptr},
                      workspace_,
                      &selection);
    return selection;
  }

  struct Cluster {
    uint32_t place;  // 64 · segment + id
    std::vector<uint32_t> positions;
    std::vector<double> mean;
    std::vector<double> value_mean;
  };

  // Clusters of the first segments, as the index has them.
  [[nodiscard]] std::vector<Cluster> Clusters(uint32_t num_segments) const {
    std::vector<Cluster> clusters;
    for (uint32_t place = 0; place < num_segments * 64; ++place) {
      const uint8_t* const index = addresses_[place / 64];
      Cluster cluster{.place = place, .positions = {}, .mean = {}, .value_mean = {}};
      for (uint32_t i = layout_.Begin(index, place % 64); i < layout_.Begin(index, place % 64 + 1);
           ++i) {
        uint16_t token = 0;
        std::memcpy(&token, index + layout_.tokens_offset() + 2 * size_t{i}, 2);
        cluster.positions.push_back(place / 64 * 1024 + token);
      }
      for (uint32_t d = 0; d < kContextDim; ++d) {
        cluster.mean.push_back(test::ElementOf(layout_.means(), index, place % 64, d));
        cluster.value_mean.push_back(
            test::ElementOf(layout_.means(), index + layout_.values_offset(), place % 64, d));
      }
      if (!cluster.positions.empty()) {
        clusters.push_back(std::move(cluster));
      }
    }
    return clusters;
  }

  [[nodiscard]] float Key(uint32_t t, uint32_t d) const {
    return keys_[size_t{t} * kContextDim + d];
  }

  [[nodiscard]] float Value(uint32_t t, uint32_t d) const {
    return values_[size_t{t} * kContextDim + d];
  }

 private:
  float Stored(uint32_t t, uint32_t d, size_t plane, float value) {
    const uint16_t half = kernels::FloatToBf16(value);
    std::memcpy(
        &stripes_[t / 64][geometry_.row_offset(0, t % 64) + plane + 2 * size_t{d}], &half, 2);
    return kernels::Bf16ToFloat(half);
  }

  const RetroInferAlgorithm algorithm_;
  const ClusterIndex layout_;
  const kv::KvGeometry geometry_;
  const uint32_t num_tokens_;
  platform::AlignedBuffer scratch_;
  kernels::Exec exec_{scratch_.data(), kernels::kScratchBytes, 0, nullptr};
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<std::vector<uint8_t>> stripes_;
  std::vector<std::vector<uint64_t>> blobs_;
  std::vector<const uint8_t*> addresses_;
  BuildWorkspace build_{*kernels::BestKernels()};
  SelectWorkspace workspace_{*kernels::BestKernels()};
};

inline std::vector<float> RandomGroupQuery(uint32_t group, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> q(size_t{group} * kContextDim);
  for (float& x : q) {
    x = normal(rng);
  }
  return q;
}

inline double Logit(const ClusteredContext::Cluster& cluster, const float* q) {
  double sum = 0;
  for (uint32_t d = 0; d < kContextDim; ++d) {
    sum += cluster.mean[d] * double{q[d]};
  }
  return sum * double{kContextScale};
}

// Positions of the retrieval zone.
inline std::set<uint32_t> Retrieved(const Selection& selection) {
  std::set<uint32_t> positions;
  for (const ClusterUse& cluster : selection.clusters) {
    for (uint32_t i = 0; i < cluster.count; ++i) {
      const uint32_t position = cluster.segment * 1024 + cluster.tokens[i];
      EXPECT_TRUE(positions.insert(position).second) << position;
    }
  }
  return positions;
}

}  // namespace spindle::sparse
