// What every attention algorithm implements: Index (what it remembers of the keys) and Select
// (which token positions a row may attend). It never sees pages, tiers or threads. The attention
// runtime turns its choice into runs of KV rows, moves pages where that is needed, and adds
// causality and sliding windows itself.
// Thread-safety: implementations are stateless and thread-safe; compute workers call them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/prefix_key.h"
#include "kernels/api/index.h"
#include "kernels/codes.h"
#include "kernels/registry.h"
#include "kv/kv_geometry.h"
#include "sparse/build_workspace.h"
#include "sparse/knob.h"
#include "sparse/select_workspace.h"
#include "sparse/selection.h"
#include "sparse/sparse_settings.h"
#include "sparse/stored_keys.h"
#include "tensor/attention_spec.h"

namespace spindle::sparse {

// The index of a sequence for one layer and KV head, position order: that of stripe i lies at
// stripes[i] + offset, or that of segment i at segments[i] + offset, whichever the algorithm has.
struct IndexView {
  std::span<const uint8_t* const> stripes;
  uint64_t offset = 0;
  std::span<const uint8_t* const> segments = {};  // complete ones
};

// The row that a choice is made for, at `position`; KV and, where units are complete, index cover
// [0, position].
struct SelectJob {
  uint32_t position;
  uint32_t decode_step = 0;  // from the first generated token on
  LayerIdx layer{};
  KvHeadIdx head{};
  const SparseSettings* settings = nullptr;
  uint32_t budget_tokens = 0;  // to select, for this layer and head; see SparsePolicy
  const float* q = nullptr;    // [group][head_dim] rotated, not scaled
  uint32_t group = 0;          // query heads of the KV head
  uint32_t head_dim = 0;
  float scale = 0.0F;    // of q·k
  float softcap = 0.0F;  // of scaled scores; 0: none
  IndexView index = {};
  const tensor::AttentionSpec* spec = nullptr;  // of the layer: how queries and keys were rotated
  // Of all tokens, where the share of the choice is asked for; else null. Only for that.
  const StoredKeys* keys = nullptr;

  [[nodiscard]] uint32_t num_tokens() const { return position + 1; }
};

// Keys of one stripe, layer and KV head that have come: lanes [lane_begin, lane_end) are new, those
// before were there already.
struct IndexJob {
  kernels::StripeKeys keys;
  uint32_t lane_begin;
  uint32_t lane_end;
  uint8_t* index;               // [index_bytes] of the stripe, layer and head; 16-byte aligned
  uint32_t first_position = 0;  // of lane 0
  LayerIdx layer{};
  KvHeadIdx head{};
  const tensor::AttentionSpec* spec = nullptr;  // of the layer: how keys were rotated
};

// A complete segment of one layer and KV head.
struct SegmentJob {
  const kv::KvGeometry* geometry;
  std::span<const uint8_t* const> stripes;  // its own, position order
  uint64_t offset;                          // of the layer and head, from a stripe's address on
  uint32_t segment;                         // absolute
  uint8_t* index;  // [index_bytes] of the segment, layer and head; 16-byte aligned

  // The K row of one of the segment's tokens; its V row lies geometry->v_offset() further.
  [[nodiscard]] const uint8_t* KeyOf(uint32_t token) const {
    return stripes[token / kStripeTokens] + offset +
           geometry->row_offset(0, static_cast<uint32_t>(token % kStripeTokens));
  }
};

// What one blob of an index is about.
enum class IndexUnit : uint8_t { kStripe, kSegment };

class SparseAlgorithm {
 public:
  virtual ~SparseAlgorithm() = default;

  // As in requests, configuration and metrics.
  [[nodiscard]] virtual std::string_view name() const = 0;

  // ERRORS: kInvalidArgument naming the setting that the algorithm cannot follow, and its range.
  [[nodiscard]] virtual absl::Status CheckSettings(const SparseSettings& /*settings*/) const {
    return absl::OkStatus();
  }

  // What it selects: "block", "chunk", "cluster"; empty: positions.
  [[nodiscard]] virtual std::string_view partition() const { return {}; }

  [[nodiscard]] virtual std::span<const Knob> knobs() const { return {}; }

  // Of knobs()[i].
  [[nodiscard]] double KnobOf(const SparseSettings& settings, size_t i) const {
    return i < settings.knobs.size() ? settings.knobs[i] : knobs()[i].preset;
  }

  // About how many tokens it attends to beside the budget, the sink and the recent ones: what
  // scheduling goes by before it has measured.
  [[nodiscard]] virtual uint32_t extra_tokens(const SparseSettings& /*settings*/) const {
    return 0;
  }

  // A later row can attend to what a row has chosen.
  [[nodiscard]] virtual bool can_hold() const { return true; }

  // Select can tell how much of a row's attention mass its choice covers.
  [[nodiscard]] virtual bool mass_estimate() const { return false; }

  [[nodiscard]] virtual IndexUnit index_unit() const { return IndexUnit::kStripe; }

  // Beside the settings, what decides its choices: trained weights. Zeros: nothing.
  [[nodiscard]] virtual Digest fingerprint() const { return {}; }

  // Of its own, beside the model's. 0: it needs none.
  [[nodiscard]] virtual uint64_t weight_bytes() const { return 0; }

  // Index bytes of a unit, per layer and KV head: a multiple of 16. 0: no index.
  [[nodiscard]] virtual uint32_t index_bytes(const kv::KvGeometry& geometry) const = 0;

  // Index: completes the units that end in (lane_begin, lane_end]. A function of the stripe's keys
  // alone, so that sequences share it with the stripe, and incremental equals bulk.
  // ERRORS: kernel codes.
  [[nodiscard]] virtual int BuildIndex(const IndexJob& /*job*/,
                                       const kernels::KernelTable& /*kernels*/) const {
    return kernels::kOk;
  }

  // Index of segments: a function of the segment's keys, values and place alone.
  [[nodiscard]] virtual int BuildSegment(const SegmentJob& /*job*/,
                                         BuildWorkspace& /*workspace*/) const {
    return kernels::kOk;
  }

  // Select: fills `out`, which is empty. Live lanes lie in [0, job.num_tokens()). The choice is a
  // function of the job alone: the same after a preemption, in any batch. Allocates only where
  // `out` has no capacity for the context.
  virtual void Select(const SelectJob& job, SelectWorkspace& workspace, Selection* out) const = 0;
};

}  // namespace spindle::sparse
