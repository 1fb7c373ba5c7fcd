#include "sparse/attention_runtime.h"

#include <string>
#include <utility>

#include "base/status_macros.h"
#include "platform/memory.h"
#include "sparse/attention_scratch.h"
#include "sparse/in_place_attention.h"
#include "sparse/step_choices.h"
#include "sparse/step_indexes.h"
#include "sparse/step_jobs.h"
#include "sparse/step_use.h"

namespace spindle::sparse {
namespace {

// Rows per piece of rope_append: about 10 µs of work, several times a pool barrier.
constexpr uint32_t kRowGrain = 16;

}  // namespace

struct AttentionRuntime::Impl {
  kv::KvStore& store;
  platform::ComputePool& pool;
  const kernels::KernelTable& kernels;
  StepJobs jobs;
  StepIndexes indexes;
  StepChoices choices;
  StepUse use;
  std::unique_ptr<MirrorAttention> mirror;  // null in place
  std::unique_ptr<LayerAttention> in_place;
  LayerAttention& attention;
  platform::AlignedBuffer q;  // rotated queries [num_rows][num_q_heads × head_dim]

  Impl(kv::KvStore& kv_store,
       platform::ComputePool& compute_pool,
       const kernels::KernelTable& table,
       const FastMemory& fast)
      : store(kv_store),
        pool(compute_pool),
        kernels(table),
        jobs(kv_store),
        indexes(kv_store, compute_pool, table),
        choices(kv_store.geometry(), compute_pool, table),
        mirror(fast.tier == nullptr ? nullptr
                                    : std::make_unique<MirrorAttention>(kv_store.geometry(),
                                                                        *fast.tier,
                                                                        fast.link,
                                                                        fast.recorder,
                                                                        compute_pool,
                                                                        table)),
        in_place(
            fast.tier != nullptr
                ? nullptr
                : std::make_unique<InPlaceAttention>(
                      kv_store.geometry(), kv_store.Stats().capacity_stripes, compute_pool, table)),
        attention(mirror != nullptr ? static_cast<LayerAttention&>(*mirror) : *in_place) {}

  [[nodiscard]] absl::Status Check(const AttendArgs& args) const;
  [[nodiscard]] absl::Status RotateAndAppend(const AttendArgs& args);
};

absl::Status AttentionRuntime::Impl::Check(const AttendArgs& args) const {
  const kv::KvGeometry& geometry = store.geometry();
  const tensor::AttentionSpec& spec = *args.spec;
  if (spec.num_kv_heads != geometry.num_kv_heads || spec.head_dim != geometry.head_dim ||
      args.layer.value() >= geometry.num_layers || spec.num_q_heads % spec.num_kv_heads != 0) {
    return absl::InternalError("attention: layer " + std::to_string(args.layer.value()) +
                               " does not fit the KV store's geometry");
  }
  if (jobs.last_position() >= spec.rope->max_positions) {
    return absl::OutOfRangeError("attention: position " + std::to_string(jobs.last_position()) +
                                 " is outside the RoPE table of " +
                                 std::to_string(spec.rope->max_positions) + " positions");
  }
  return absl::OkStatus();
}

absl::Status AttentionRuntime::Impl::RotateAndAppend(const AttendArgs& args) {
  const tensor::AttentionSpec& spec = *args.spec;
  const size_t q_stride = size_t{spec.num_q_heads} * spec.head_dim;
  const uint32_t num_rows = jobs.num_rows();
  SPINDLE_RETURN_IF_ERROR(GrowFloats(num_rows * q_stride, &q));
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
      .positions = jobs.positions().data(),
      .slots = jobs.SlotsOf(args.layer.value()).data(),
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

AttentionRuntime::AttentionRuntime(kv::KvStore& store,
                                   platform::ComputePool& pool,
                                   const kernels::KernelTable& kernels,
                                   const FastMemory& fast)
    : impl_(std::make_unique<Impl>(store, pool, kernels, fast)) {}

AttentionRuntime::~AttentionRuntime() = default;

absl::Status AttentionRuntime::BeginStep(std::span<const SequenceRows> rows) {
  Impl& impl = *impl_;
  impl.jobs.Clear();
  for (const SequenceRows& sequence : rows) {
    impl.jobs.Add(sequence);
  }
  impl.choices.BeginStep(impl.jobs);
  impl.attention.BeginStep(impl.jobs);
  impl.use.BeginStep(impl.jobs, impl.store.geometry().num_kv_heads);
  return impl.indexes.BeginStep(rows);
}

absl::Status AttentionRuntime::Attend(const AttendArgs& args) {
  Impl& impl = *impl_;
  if (impl.jobs.num_rows() == 0) {
    return absl::OkStatus();
  }
  SPINDLE_RETURN_IF_ERROR(impl.Check(args));
  SPINDLE_RETURN_IF_ERROR(impl.RotateAndAppend(args));
  SPINDLE_RETURN_IF_ERROR(impl.indexes.Build(args.layer, *args.spec));
  const float* const q = impl.q.As<float>().data();
  const size_t q_stride = size_t{args.spec->num_q_heads} * args.spec->head_dim;
  SPINDLE_RETURN_IF_ERROR(impl.choices.Choose({.layer = args.layer,
                                               .spec = args.spec,
                                               .q = q,
                                               .q_stride = q_stride,
                                               .indexes = &impl.indexes},
                                              &impl.use));
  SPINDLE_RETURN_IF_ERROR(impl.attention.Attend({.layer = args.layer,
                                                 .spec = args.spec,
                                                 .q = q,
                                                 .q_stride = q_stride,
                                                 .out = args.out,
                                                 .out_stride = args.out_stride,
                                                 .choices = &impl.choices}));
  if (args.spec->window == 0) {
    impl.use.EndLayer(args.layer);
  }
  if (args.layer.value() + 1U == impl.store.geometry().num_layers) {
    impl.indexes.EndStep();
    impl.use.EndStep();
  }
  return absl::OkStatus();
}

MirrorCounters AttentionRuntime::Counters() const {
  return impl_->mirror == nullptr ? MirrorCounters() : impl_->mirror->Counters();
}

std::span<const IndexedTokens> AttentionRuntime::Indexed() const {
  return impl_->indexes.Indexed();
}

}  // namespace spindle::sparse
