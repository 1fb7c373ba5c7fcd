#include "sparse/attention_runtime.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "platform/memory.h"
#include "sparse/algorithm_registry.h"
#include "sparse/run_builder.h"

namespace spindle::sparse {
namespace {

// Rows per piece of rope_append: about 10 µs of work, several times a pool barrier.
constexpr uint32_t kRowGrain = 16;
// Fewer items than this are merged without waking the pool.
constexpr uint32_t kMergeGrain = 8;

// Makes `buffer` hold at least `num_floats`, with headroom so that growing contexts rarely get
// here.
absl::Status Grow(uint64_t num_floats, platform::AlignedBuffer* buffer) {
  if (buffer->size() >= num_floats * sizeof(float)) {
    return absl::OkStatus();
  }
  SPINDLE_ASSIGN_OR_RETURN(*buffer,
                           platform::AlignedBuffer::Allocate(2 * num_floats * sizeof(float)));
  return absl::OkStatus();
}

// One sequence of the step and its part of the run list.
struct StepSequence {
  SequenceRows rows;
  size_t run_begin;
  size_t run_end;
};

}  // namespace

struct AttentionRuntime::Impl {
  kv::KvStore& store;
  platform::ComputePool& pool;
  const kernels::KernelTable& kernels;
  const SparseAlgorithm& algorithm;

  // Fixed by BeginStep.
  uint32_t num_rows = 0;
  uint32_t last_position = 0;
  std::vector<StepSequence> sequences;
  std::vector<int32_t> positions;      // [num_rows]
  std::vector<kernels::KvSlot> slots;  // [num_rows], of layer `slots_layer`
  uint32_t slots_layer = 0;
  std::vector<TileLive> tiles;       // of one sequence at a time
  std::vector<kernels::KvRun> runs;  // of all sequences, for layer 0 and head 0

  // Of one layer.
  std::vector<kernels::AttentionItem> items;  // sequence-major, then KV heads
  platform::AlignedBuffer q;                  // rotated queries [num_rows][num_q_heads × head_dim]

  // The plan depends on shapes only, so that layers of a step share it.
  kernels::AttentionPlan plan{};
  bool has_plan = false;
  uint32_t plan_window = 0;
  std::vector<kernels::AttentionUnit> units;
  platform::AlignedBuffer partials;

  Impl(kv::KvStore& kv_store,
       platform::ComputePool& compute_pool,
       const kernels::KernelTable& table)
      : store(kv_store), pool(compute_pool), kernels(table), algorithm(*FindAlgorithm("dense")) {
    // Addresses only, until contexts are really that long; batches that share stripes may need
    // more.
    const uint64_t max_tiles = store.Stats().capacity_stripes;
    tiles.resize(max_tiles);
    runs.reserve(max_tiles * (kStripeTokens / store.geometry().page_tokens()));
  }

  void AddSequence(const SequenceRows& rows);
  void MoveSlotsTo(uint32_t layer);
  [[nodiscard]] absl::Status Check(const AttendArgs& args) const;
  [[nodiscard]] absl::Status RotateAndAppend(const AttendArgs& args);
  void BuildItems(const AttendArgs& args);
  [[nodiscard]] absl::Status Plan(const kernels::AttentionArgs& args);
  [[nodiscard]] absl::Status RunAttention(const AttendArgs& args);
};

void AttentionRuntime::Impl::AddSequence(const SequenceRows& rows) {
  const kv::KvGeometry& geometry = store.geometry();
  const kv::SequenceView view = store.View(rows.sequence);
  const SelectJob job{.first_position = rows.first_position, .num_rows = rows.num_rows};
  SPINDLE_CHECK(rows.row_begin == num_rows && rows.num_rows > 0);
  SPINDLE_CHECK(kv::KvStore::StripesFor(job.num_tokens()) <= view.stripes.size());
  // Sealed stripes may be shared: never write there.
  SPINDLE_CHECK(rows.first_position >= store.NumSealed(rows.sequence) * kStripeTokens);

  const size_t run_begin = runs.size();
  const uint32_t num_tiles = algorithm.Select(job, tiles);
  AppendRuns(geometry, view.stripes, std::span(tiles).first(num_tiles), &runs);
  sequences.push_back({.rows = rows, .run_begin = run_begin, .run_end = runs.size()});

  for (uint32_t position = rows.first_position; position < job.num_tokens(); ++position) {
    uint8_t* k = view.stripes[position / kStripeTokens] +
                 geometry.row_offset(0, static_cast<uint32_t>(position % kStripeTokens));
    slots.push_back({.k = k, .v = k + geometry.v_offset()});
    positions.push_back(static_cast<int32_t>(position));
  }
  num_rows += rows.num_rows;
  last_position = std::max(last_position, job.num_tokens() - 1);
}

// Slots of another layer lie a constant distance away.
void AttentionRuntime::Impl::MoveSlotsTo(uint32_t layer) {
  const auto extent = static_cast<ptrdiff_t>(store.geometry().extent_bytes());
  const ptrdiff_t distance =
      (static_cast<ptrdiff_t>(layer) - static_cast<ptrdiff_t>(slots_layer)) * extent;
  for (kernels::KvSlot& slot : slots) {
    slot.k += distance;
    slot.v += distance;
  }
  slots_layer = layer;
}

absl::Status AttentionRuntime::Impl::Check(const AttendArgs& args) const {
  const kv::KvGeometry& geometry = store.geometry();
  const tensor::AttentionSpec& spec = *args.spec;
  if (spec.num_kv_heads != geometry.num_kv_heads || spec.head_dim != geometry.head_dim ||
      args.layer.value() >= geometry.num_layers || spec.num_q_heads % spec.num_kv_heads != 0) {
    return absl::InternalError("attention: layer " + std::to_string(args.layer.value()) +
                               " does not fit the KV store's geometry");
  }
  if (last_position >= spec.rope->max_positions) {
    return absl::OutOfRangeError("attention: position " + std::to_string(last_position) +
                                 " is outside the RoPE table of " +
                                 std::to_string(spec.rope->max_positions) + " positions");
  }
  return absl::OkStatus();
}

absl::Status AttentionRuntime::Impl::RotateAndAppend(const AttendArgs& args) {
  const tensor::AttentionSpec& spec = *args.spec;
  const size_t q_stride = size_t{spec.num_q_heads} * spec.head_dim;
  SPINDLE_RETURN_IF_ERROR(Grow(num_rows * q_stride, &q));
  MoveSlotsTo(args.layer.value());
  const kernels::RopeAppendArgs append{
      .q = args.q,
      .k = args.k,
      .v = args.v,
      .q_stride = args.q_stride,
      .k_stride = args.k_stride,
      .v_stride = args.v_stride,
      .q_norm = spec.q_norm,
      .k_norm = spec.k_norm,
      .norm_eps = spec.norm_eps,
      .rope_cos = spec.rope->cos.data(),
      .rope_sin = spec.rope->sin.data(),
      .positions = positions.data(),
      .slots = slots.data(),
      .head_stride_bytes = store.geometry().head_bytes(),
      .q_out = q.As<float>().data(),
      .q_out_stride = q_stride,
      .num_rows = num_rows,
      .num_q_heads = spec.num_q_heads,
      .num_kv_heads = spec.num_kv_heads,
      .head_dim = spec.head_dim,
      .rope_dim = spec.rope->rope_dim,
      .pairing = spec.pairing,
      .kv_type = store.geometry().type,
  };
  return pool.Run(num_rows, kRowGrain, [&](kernels::WorkRange range, kernels::Exec* exec) {
    return kernels.rope_append(append, range, exec);
  });
}

void AttentionRuntime::Impl::BuildItems(const AttendArgs& args) {
  const tensor::AttentionSpec& spec = *args.spec;
  const kv::KvGeometry& geometry = store.geometry();
  const size_t head_floats = size_t{spec.group()} * spec.head_dim;
  const size_t q_stride = spec.num_kv_heads * head_floats;
  const float* rotated = q.As<float>().data();
  items.clear();
  for (const StepSequence& sequence : sequences) {
    for (uint32_t head = 0; head < spec.num_kv_heads; ++head) {
      items.push_back({
          .q = rotated + sequence.rows.row_begin * q_stride + head * head_floats,
          .out = args.out + sequence.rows.row_begin * args.out_stride + head * head_floats,
          .lse = nullptr,
          .runs = runs.data() + sequence.run_begin,
          .num_runs = static_cast<uint32_t>(sequence.run_end - sequence.run_begin),
          .num_rows = sequence.rows.num_rows,
          .first_position = sequence.rows.first_position,
          .window = spec.window,
          .kv_offset = args.layer.value() * geometry.extent_bytes() + head * geometry.head_bytes(),
      });
    }
  }
}

absl::Status AttentionRuntime::Impl::Plan(const kernels::AttentionArgs& args) {
  const uint32_t window = args.items[0].window;
  if (has_plan && plan_window == window) {
    return absl::OkStatus();
  }
  const size_t state_floats = size_t{args.group} * (args.head_dim + 2);
  const auto refresh = [&] {
    plan.units = units.data();
    plan.unit_capacity = static_cast<uint32_t>(units.size());
    plan.partials = partials.As<float>().data();
    plan.partial_capacity = static_cast<uint32_t>(partials.size() / sizeof(float) / state_floats);
  };
  refresh();
  int code = kernels.plan_attention(args, pool.num_workers(), &plan);
  if (code == kernels::kScratchTooSmall) {
    if (plan.num_units > units.size()) {
      units.resize(2 * size_t{plan.num_units});
    }
    SPINDLE_RETURN_IF_ERROR(Grow(plan.num_partials * state_floats, &partials));
    refresh();
    code = kernels.plan_attention(args, pool.num_workers(), &plan);
  }
  has_plan = code == kernels::kOk;
  plan_window = window;
  return platform::ToStatus(code);
}

absl::Status AttentionRuntime::Impl::RunAttention(const AttendArgs& args) {
  const tensor::AttentionSpec& spec = *args.spec;
  BuildItems(args);
  const kernels::AttentionArgs attention{
      .items = items.data(),
      .num_items = static_cast<uint32_t>(items.size()),
      .q_stride = size_t{spec.num_q_heads} * spec.head_dim,
      .out_stride = args.out_stride,
      .head_dim = spec.head_dim,
      .group = spec.group(),
      .scale = spec.scale,
      .softcap = spec.softcap,
      .kv_type = store.geometry().type,
  };
  SPINDLE_RETURN_IF_ERROR(Plan(attention));
  SPINDLE_RETURN_IF_ERROR(
      pool.Run(plan.num_units, 1, [&](kernels::WorkRange range, kernels::Exec* exec) {
        return kernels.attention(attention, plan, range, exec);
      }));
  if (plan.num_partials == 0) {
    return absl::OkStatus();
  }
  return pool.Run(
      attention.num_items, kMergeGrain, [&](kernels::WorkRange range, kernels::Exec* exec) {
        return kernels.merge_attention(attention, plan, range, exec);
      });
}

AttentionRuntime::AttentionRuntime(kv::KvStore& store,
                                   platform::ComputePool& pool,
                                   const kernels::KernelTable& kernels)
    : impl_(std::make_unique<Impl>(store, pool, kernels)) {}

AttentionRuntime::~AttentionRuntime() = default;

void AttentionRuntime::BeginStep(std::span<const SequenceRows> rows) {
  Impl& impl = *impl_;
  impl.num_rows = 0;
  impl.last_position = 0;
  impl.sequences.clear();
  impl.positions.clear();
  impl.slots.clear();
  impl.slots_layer = 0;
  impl.runs.clear();
  impl.has_plan = false;
  for (const SequenceRows& sequence : rows) {
    impl.AddSequence(sequence);
  }
}

absl::Status AttentionRuntime::Attend(const AttendArgs& args) {
  if (impl_->num_rows == 0) {
    return absl::OkStatus();
  }
  SPINDLE_RETURN_IF_ERROR(impl_->Check(args));
  SPINDLE_RETURN_IF_ERROR(impl_->RotateAndAppend(args));
  return impl_->RunAttention(args);
}

}  // namespace spindle::sparse
