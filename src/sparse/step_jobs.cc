#include "sparse/step_jobs.h"

#include <algorithm>

#include "base/status_macros.h"

namespace spindle::sparse {

StepJobs::StepJobs(kv::KvStore& store, const SparseAlgorithm& dense)
    : store_(store), dense_(dense) {
  // Addresses only, until contexts are really that long; batches that share stripes may need more.
  tiles_.reserve(store.Stats().capacity_stripes);
}

void StepJobs::Clear() {
  sequences_.clear();
  jobs_.clear();
  tiles_.clear();
  positions_.clear();
  slots_.clear();
  slots_layer_ = 0;
  last_position_ = 0;
  max_job_rows_ = 0;
  all_uniform_ = true;
}

void StepJobs::Add(const SequenceRows& sequence) {
  const kv::KvGeometry& geometry = store_.geometry();
  const kv::SequenceView view = store_.View(sequence.sequence);
  const uint32_t position_end = sequence.first_position + sequence.num_rows;
  SPINDLE_CHECK(sequence.row_begin == num_rows() && sequence.num_rows > 0);
  SPINDLE_CHECK(kv::KvStore::StripesFor(position_end) <= view.stripes.size());
  // Sealed stripes may be shared: never write there.
  SPINDLE_CHECK(sequence.first_position >= store_.NumSealed(sequence.sequence) * kStripeTokens);

  const auto job_begin = static_cast<uint32_t>(jobs_.size());
  uint32_t position = sequence.first_position;
  const uint32_t dense_end = sequence.algorithm == nullptr
                                 ? position_end
                                 : std::clamp(sequence.decode_begin, position, position_end);
  if (position < dense_end) {
    AddJob(
        dense_, sequence.row_begin, {.first_position = position, .num_rows = dense_end - position});
  }
  for (position = dense_end; position < position_end; ++position) {
    AddJob(*sequence.algorithm,
           sequence.row_begin + position - sequence.first_position,
           {.first_position = position,
            .num_rows = 1,
            .decode_step = position - sequence.decode_begin});
  }
  sequences_.push_back({.rows = sequence,
                        .stripes = view.stripes,
                        .job_begin = job_begin,
                        .job_end = static_cast<uint32_t>(jobs_.size())});

  for (position = sequence.first_position; position < position_end; ++position) {
    uint8_t* k = view.stripes[position / kStripeTokens] +
                 geometry.row_offset(0, static_cast<uint32_t>(position % kStripeTokens));
    slots_.push_back({.k = k, .v = k + geometry.v_offset()});
    positions_.push_back(static_cast<int32_t>(position));
  }
  last_position_ = std::max(last_position_, position_end - 1);
}

void StepJobs::AddJob(const SparseAlgorithm& algorithm,
                      uint32_t row_begin,
                      const SelectJob& select) {
  StepJob job{.sequence = static_cast<uint32_t>(sequences_.size()),
              .row_begin = row_begin,
              .is_dense = &algorithm == &dense_,
              .algorithm = &algorithm,
              .select = select,
              .tile_begin = static_cast<uint32_t>(tiles_.size()),
              .tile_end = static_cast<uint32_t>(tiles_.size())};
  if (algorithm.is_uniform()) {
    tiles_.resize(tiles_.size() + kv::KvStore::StripesFor(select.num_tokens()));
    job.tile_end += algorithm.Select(select, std::span(tiles_).subspan(job.tile_begin));
    tiles_.resize(job.tile_end);
  } else {
    all_uniform_ = false;
  }
  max_job_rows_ = std::max(max_job_rows_, select.num_rows);
  jobs_.push_back(job);
}

// Slots of another layer lie a constant distance away.
std::span<const kernels::KvSlot> StepJobs::SlotsOf(uint32_t layer) {
  const auto extent = static_cast<ptrdiff_t>(store_.geometry().extent_bytes());
  const ptrdiff_t distance =
      (static_cast<ptrdiff_t>(layer) - static_cast<ptrdiff_t>(slots_layer_)) * extent;
  for (kernels::KvSlot& slot : slots_) {
    slot.k += distance;
    slot.v += distance;
  }
  slots_layer_ = layer;
  return slots_;
}

}  // namespace spindle::sparse
