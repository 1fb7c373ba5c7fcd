// A store, a pool and an attention runtime with inputs that are a pure function of (stream, layer,
// position), so that the same tokens can be run in any order, chunking and company.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/registry.h"
#include "kv/kv_store.h"
#include "platform/compute_pool.h"
#include "sparse/attention_runtime.h"
#include "sparse/selected_pages.h"

namespace spindle::sparse {

inline constexpr const char* kTableNames[] = {"reference", "baseline", "avx2", "avx512", "amx"};

[[nodiscard]] inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct RigOptions {
  const char* table = "reference";
  uint32_t num_layers = 1;
  uint32_t num_q_heads = 3;
  uint32_t num_kv_heads = 1;
  uint32_t head_dim = 64;
  DType type = DType::kBF16;
  std::vector<uint32_t> windows = {0};  // of layer l: windows[l % size]
  kernels::RopePairing pairing = kernels::RopePairing::kHalfSplit;
  bool head_norms = false;
  uint32_t num_threads = 1;
  uint32_t num_stripes = 64;
  bool mirror = false;            // through a fast tier …
  uint32_t frames_per_group = 0;  // … with so many frames for each group of a sequence
  bool has_clusters = false;      // … and passes that hold whatever is selected of a segment
  kv::EmulatedLink* link = nullptr;
  kv::AccessRecorder* recorder = nullptr;  // of the mirror mode
};

// Rows of one sequence in a step; `stream` selects the inputs.
struct RigRows {
  SequenceId sequence;
  uint64_t stream;
  uint32_t first_position;
  uint32_t num_rows;
  const SparsePolicy* policy = nullptr;
  uint32_t decode_begin = 0;
  KeptChoice* kept = nullptr;
  DecodeUse* use = nullptr;
  const PrefillPolicy* prefill = nullptr;
  PrefillUse* prefill_use = nullptr;
  std::span<LayerUse> layers = {};
};

class AttentionRig {
 public:
  static constexpr uint32_t kMaxPositions = 3328;  // more than three segments

  explicit AttentionRig(const RigOptions& options)
      : options_(options), table_(kernels::FindKernelsByName(options.table)) {
    const kv::KvGeometry geometry{
        options.num_layers, options.num_kv_heads, options.head_dim, options.type};
    auto store = kv::KvStore::Create({.host_bytes = options.num_stripes * geometry.stripe_bytes()},
                                     geometry);
    EXPECT_TRUE(store.ok()) << store.status();
    store_ = std::move(store).value();
    auto pool = platform::ComputePool::Create({.num_threads = options.num_threads});
    EXPECT_TRUE(pool.ok()) << pool.status();
    pool_ = std::move(pool).value();
    if (options.mirror) {
      MakeTier(geometry);
    }
    runtime_ = std::make_unique<AttentionRuntime>(
        *store_, *pool_, *table_, FastMemory{tier_.get(), options.link, options.recorder});
    BuildRope();
    for (uint32_t i = 0; i < options.head_dim; ++i) {
      q_norm_.push_back(1.0F + 0.3F * Value(1, i));
      k_norm_.push_back(1.0F - 0.2F * Value(2, i));
    }
  }

  [[nodiscard]] kv::KvStore& store() { return *store_; }

  [[nodiscard]] AttentionRuntime& runtime() const { return *runtime_; }

  [[nodiscard]] const RigOptions& options() const { return options_; }

  [[nodiscard]] const tensor::RopeTable& rope() const { return rope_; }

  [[nodiscard]] const std::vector<float>& q_norm() const { return q_norm_; }

  [[nodiscard]] const std::vector<float>& k_norm() const { return k_norm_; }

  [[nodiscard]] size_t q_width() const { return size_t{options_.num_q_heads} * options_.head_dim; }

  [[nodiscard]] size_t kv_width() const {
    return size_t{options_.num_kv_heads} * options_.head_dim;
  }

  // Floats per token of a result: all layers.
  [[nodiscard]] size_t token_width() const { return options_.num_layers * q_width(); }

  [[nodiscard]] tensor::AttentionSpec Spec(uint32_t layer) const {
    tensor::AttentionSpec spec;
    spec.num_q_heads = options_.num_q_heads;
    spec.num_kv_heads = options_.num_kv_heads;
    spec.head_dim = options_.head_dim;
    spec.scale = 1.0F / std::sqrt(static_cast<float>(options_.head_dim));
    spec.window = options_.windows[layer % options_.windows.size()];
    spec.pairing = options_.pairing;
    spec.rope = &rope_;
    spec.q_norm = options_.head_norms ? q_norm_.data() : nullptr;
    spec.k_norm = options_.head_norms ? k_norm_.data() : nullptr;
    spec.norm_eps = 1e-6F;
    return spec;
  }

  // `policy`: of its rows, as far as it has clusters.
  [[nodiscard]] SequenceId Open(const SparsePolicy* policy = nullptr) {
    const SequenceId sequence = store_->Open(BudgetGroupId(1), {}, 0);
    if (tier_ != nullptr) {
      OpenSet(sequence, policy);
      Resize(sequence, options_.frames_per_group);
    }
    return sequence;
  }

  void OpenSet(SequenceId sequence, const SparsePolicy* policy = nullptr) {
    const FastPageIds ids(store_->geometry(), policy == nullptr ? nullptr : &policy->algorithm());
    sets_[sequence.value()] =
        tier_->Open(BudgetGroupId(1), ids.CountFor(kMaxPositions), ids.ids_per_segment()).value();
  }

  // Of the mirror mode: what the engine's budget does.
  void Resize(SequenceId sequence, uint32_t frames_per_group) {
    const kv::CacheSetId set = SetOf(sequence);
    EXPECT_TRUE(tier_->Cover(set, max_pages()).ok());
    EXPECT_TRUE(tier_->Resize(set, frames_per_group).ok());
    if (options_.recorder != nullptr) {
      options_.recorder->Resize(set, frames_per_group);
    }
  }

  // Of the mirror mode.
  [[nodiscard]] kv::FastTier& tier() { return *tier_; }

  [[nodiscard]] kv::CacheSetId SetOf(SequenceId sequence) { return sets_.at(sequence.value()); }

  [[nodiscard]] uint32_t max_pages() const {
    return kMaxPositions / store_->geometry().page_tokens();
  }

  // Element i of the raw q (plane 0), k (1) or v (2) of a token.
  [[nodiscard]] static float Input(
      uint64_t stream, uint32_t layer, uint32_t position, uint32_t plane, size_t i) {
    return Value((((stream * 64 + layer) * 4 + plane) << 20) + position, i);
  }

  // Runs one step over all layers and commits. Result: [all rows][token_width()].
  std::vector<float> Step(std::span<const RigRows> rows) {
    std::vector<SequenceRows> step;
    uint32_t num_rows = 0;
    for (const RigRows& part : rows) {
      EXPECT_TRUE(store_->Extend(part.sequence, part.first_position + part.num_rows).ok());
      step.push_back({.sequence = part.sequence,
                      .row_begin = num_rows,
                      .num_rows = part.num_rows,
                      .first_position = part.first_position,
                      .policy = part.policy,
                      .decode_begin = part.decode_begin,
                      .prefill = part.prefill,
                      .cache_set = tier_ == nullptr ? kv::CacheSetId{} : SetOf(part.sequence),
                      .kept = part.kept,
                      .use = part.use,
                      .prefill_use = part.prefill_use,
                      .layers = part.layers});
      num_rows += part.num_rows;
    }
    EXPECT_TRUE(runtime_->BeginStep(step).ok());
    std::vector<float> result(num_rows * token_width());
    for (uint32_t layer = 0; layer < options_.num_layers; ++layer) {
      const absl::Status status = AttendLayer(rows, num_rows, layer, result.data());
      EXPECT_TRUE(status.ok()) << status;
    }
    for (const RigRows& part : rows) {
      store_->Commit(part.sequence, part.first_position + part.num_rows);
    }
    return result;
  }

  // Positions [begin, end) of a stream in chunks of at most `chunk`.
  std::vector<float> Run(
      SequenceId sequence, uint64_t stream, uint32_t begin, uint32_t end, uint32_t chunk) {
    std::vector<float> result;
    for (uint32_t first = begin; first < end; first += chunk) {
      const RigRows rows{sequence, stream, first, std::min(chunk, end - first)};
      const std::vector<float> part = Step({&rows, 1});
      result.insert(result.end(), part.begin(), part.end());
    }
    return result;
  }

 private:
  // In (-2, 2), roughly bell-shaped.
  [[nodiscard]] static float Value(uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9e3779b97f4a7c15U + b * 0xd1b54a32d192ed03U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    x ^= x >> 31;
    const auto low = static_cast<float>(x & 0xffffU) / 65536.0F;
    const auto high = static_cast<float>((x >> 16) & 0xffffU) / 65536.0F;
    return 2.0F * (low + high - 1.0F);
  }

  void MakeTier(const kv::KvGeometry& geometry) {
    kv::FastTierOptions options;
    options.geometry = geometry;
    options.num_workers = pool_->num_workers();
    options.num_rings = options.num_workers;
    options.ring_frames = options_.has_clusters
                              ? (MostPagesOfSegment(geometry) + 7) / 8 * 8
                              : static_cast<uint32_t>(kSegmentTokens / geometry.page_tokens());
    options.metadata_bytes = uint64_t{16} << 20;
    options.poison_free_frames = true;
    const uint64_t frames =
        uint64_t{options.num_rings} * options.ring_frames +
        uint64_t{8} * geometry.num_layers * geometry.num_kv_heads * options_.frames_per_group;
    options.fast_bytes = frames * geometry.page_bytes();
    auto tier = kv::FastTier::Create(options, *table_);
    ASSERT_TRUE(tier.ok()) << tier.status();
    tier_ = *std::move(tier);
  }

  void BuildRope() {
    rope_.max_positions = kMaxPositions;
    rope_.rope_dim = options_.head_dim;
    const uint32_t half = rope_.rope_dim / 2;
    for (uint32_t position = 0; position < kMaxPositions; ++position) {
      for (uint32_t i = 0; i < half; ++i) {
        const double angle = position * std::pow(10000.0, -static_cast<double>(i) / half);
        rope_.cos.push_back(static_cast<float>(std::cos(angle)));
        rope_.sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }

  absl::Status AttendLayer(std::span<const RigRows> rows,
                           uint32_t num_rows,
                           uint32_t layer,
                           float* result) {
    // Strides wider than the rows, as in a fused QKV product.
    const size_t stride = q_width() + 2 * kv_width();
    const size_t out_stride = q_width() + 5;
    std::vector<float> qkv((num_rows + 1) * stride);  // valid pointers for an empty step, too
    std::vector<float> out(num_rows * out_stride);
    uint32_t row = 0;
    for (const RigRows& part : rows) {
      for (uint32_t i = 0; i < part.num_rows; ++i, ++row) {
        FillRow(part.stream, layer, part.first_position + i, &qkv[row * stride]);
      }
    }
    const tensor::AttentionSpec spec = Spec(layer);
    const absl::Status status = runtime_->Attend({
        .layer = LayerIdx(static_cast<uint16_t>(layer)),
        .spec = &spec,
        .q = qkv.data(),
        .k = qkv.data() + q_width(),
        .v = qkv.data() + q_width() + kv_width(),
        .q_stride = stride,
        .k_stride = stride,
        .v_stride = stride,
        .out = out.data(),
        .out_stride = out_stride,
    });
    for (row = 0; row < num_rows; ++row) {
      std::copy_n(
          &out[row * out_stride], q_width(), &result[row * token_width() + layer * q_width()]);
    }
    return status;
  }

  void FillRow(uint64_t stream, uint32_t layer, uint32_t position, float* row) const {
    for (size_t i = 0; i < q_width(); ++i) {
      row[i] = Input(stream, layer, position, 0, i);
    }
    for (size_t i = 0; i < kv_width(); ++i) {
      row[q_width() + i] = Input(stream, layer, position, 1, i);
      row[q_width() + kv_width() + i] = Input(stream, layer, position, 2, i);
    }
  }

  const RigOptions options_;
  const kernels::KernelTable* table_;
  tensor::RopeTable rope_;
  std::vector<float> q_norm_;
  std::vector<float> k_norm_;
  std::unique_ptr<kv::KvStore> store_;
  std::unique_ptr<platform::ComputePool> pool_;
  std::unique_ptr<kv::FastTier> tier_;
  std::map<uint64_t, kv::CacheSetId> sets_;  // by sequence
  std::unique_ptr<AttentionRuntime> runtime_;
};

}  // namespace spindle::sparse
