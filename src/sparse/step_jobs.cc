#include "sparse/step_jobs.h"

#include <algorithm>

#include "base/status_macros.h"
#include "sparse/dense/dense_algorithm.h"

namespace spindle::sparse {

StepJobs::StepJobs(kv::KvStore& store) : store_(store) {
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
  num_sparse_jobs_ = 0;
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
  const auto is_sparse = [&sequence](uint32_t at) {
    return sequence.policy != nullptr && at >= sequence.decode_begin &&
           !sequence.policy->IsDenseAt(at + 1);
  };
  const auto is_in_block = [&sequence](uint32_t at) {
    return sequence.prefill != nullptr && at >= sequence.prefill->SparseBegin() &&
           at < sequence.prefill->SparseEnd(sequence.decode_begin);
  };
  uint32_t position = sequence.first_position;
  while (position < position_end) {
    uint32_t end = position + 1;
    if (is_sparse(position)) {
      AddJob(sequence, position, 1, sequence.policy, nullptr);
    } else if (is_in_block(position)) {
      end = position + kPrefillBlockTokens;
      // A choice is that of all rows of a block.
      SPINDLE_CHECK(position % kPrefillBlockTokens == 0 && end <= position_end);
      AddJob(sequence, position, kPrefillBlockTokens, nullptr, sequence.prefill);
    } else {
      while (end < position_end && !is_sparse(end) && !is_in_block(end)) {
        ++end;
      }
      AddJob(sequence, position, end - position, nullptr, nullptr);
    }
    position = end;
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

void StepJobs::AddJob(const SequenceRows& sequence,
                      uint32_t first_position,
                      uint32_t num_rows,
                      const SparsePolicy* policy,
                      const PrefillPolicy* prefill) {
  const uint32_t num_tokens = first_position + num_rows;
  const auto tile_begin = static_cast<uint32_t>(tiles_.size());
  AppendAllTiles(num_tokens, &tiles_);
  jobs_.push_back({.sequence = static_cast<uint32_t>(sequences_.size()),
                   .row_begin = sequence.row_begin + first_position - sequence.first_position,
                   .num_rows = num_rows,
                   .first_position = first_position,
                   .policy = policy,
                   .prefill = prefill,
                   .decode_step = policy == nullptr ? 0 : first_position - sequence.decode_begin,
                   .anchor = policy == nullptr
                                 ? first_position
                                 : policy->AnchorOf(first_position, sequence.decode_begin),
                   .tile_begin = tile_begin,
                   .tile_end = static_cast<uint32_t>(tiles_.size())});
  max_job_rows_ = std::max(max_job_rows_, num_rows);
  num_sparse_jobs_ += jobs_.back().IsSparse() ? 1U : 0U;
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
