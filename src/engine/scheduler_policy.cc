#include "engine/scheduler_policy.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/status_macros.h"

namespace spindle::engine {

uint32_t PriorityClass(int32_t priority) {
  constexpr int32_t kLowest = -100;
  constexpr int32_t kNumValues = 201;
  const int32_t offset = priority - kLowest;
  return static_cast<uint32_t>(offset) * kNumPriorityClasses / kNumValues;
}

uint32_t AgedClass(uint32_t priority_class, Duration waited, Duration aging) {
  if (aging <= Duration::zero()) {
    return priority_class;
  }
  const auto steps = waited / aging;
  return steps >= priority_class ? 0 : priority_class - static_cast<uint32_t>(steps);
}

bool RunsBefore(const WaitingRank& a, const WaitingRank& b, SchedulingPolicy policy) {
  const bool by_class = policy == SchedulingPolicy::kPriority;
  const auto key = [by_class](const WaitingRank& rank) {
    return std::tuple(by_class ? rank.aged_class : 0U,
                      !rank.resumed,
                      rank.resumed ? 0U : rank.served,
                      rank.arrival,
                      rank.choice);
  };
  return key(a) < key(b);
}

std::optional<size_t> ChooseVictim(std::span<const VictimView> running,
                                   VictimRule rule,
                                   SchedulingPolicy policy) {
  const bool by_class = policy == SchedulingPolicy::kPriority;
  const auto key = [by_class](const VictimView& view) {
    return std::tuple(by_class ? view.priority_class : 0U, view.arrival, view.choice);
  };
  std::optional<size_t> victim;
  for (size_t i = 0; i < running.size(); ++i) {
    const VictimView& view = running[i];
    const bool spared =
        view.remaining_tokens <= kNearEndTokens || view.preemptions >= kMaxPreemptions;
    if (spared && rule == VictimRule::kNormal) {
      continue;
    }
    if (!victim.has_value() || key(view) > key(running[*victim])) {
      victim = i;
    }
  }
  return victim;
}

uint32_t ReservedOutput(uint32_t max_tokens, double mean_output_tokens) {
  const double wanted = std::max<double>(kMinReservedOutput, std::ceil(2.0 * mean_output_tokens));
  return wanted >= max_tokens ? max_tokens : static_cast<uint32_t>(wanted);
}

bool FitsMemory(const MemoryView& memory, uint64_t needed_now, uint64_t reserved) {
  if (!memory.anything_running) {
    return needed_now <= memory.available;
  }
  const uint64_t watermark = (memory.capacity + kWatermarkDivisor - 1) / kWatermarkDivisor;
  return needed_now + reserved + memory.outstanding + watermark <= memory.available;
}

RowBudget::RowBudget(uint32_t max_rows, uint32_t decode_rows, bool chunked)
    : max_rows_(max_rows),
      left_(std::max(kChunkTokens, max_rows > decode_rows ? max_rows - decode_rows : 0U)),
      chunked_(chunked) {}

uint32_t RowBudget::LeftFor(uint32_t grain) const {
  return placed_any_ ? left_ : std::max(left_, grain);
}

bool RowBudget::Completes(uint32_t pending, uint32_t max_chunk, uint32_t left) const {
  if (pending > max_chunk) {
    return false;
  }
  return pending <= left || (!chunked_ && !placed_any_);
}

bool RowBudget::CanPlace(uint32_t pending, uint32_t max_chunk, uint32_t grain) const {
  const uint32_t left = LeftFor(grain);
  if (max_chunk == 0 || left == 0) {
    return false;
  }
  if (has_long_) {
    // The long one keeps at least a chunk, so that it always progresses.
    return !has_rider_ && pending <= max_chunk && pending <= max_rows_ / 4 &&
           pending + long_grain_ <= left;
  }
  // An unfinished chunk ends at a chunk border, so it needs a whole one.
  return Completes(pending, max_chunk, left) ||
         (left >= std::min(grain, max_chunk) && (chunked_ || pending > max_chunk));
}

std::optional<uint32_t> RowBudget::Place(uint32_t pending, uint32_t max_chunk, uint32_t grain) {
  SPINDLE_DCHECK(CanPlace(pending, max_chunk, grain));
  left_ = LeftFor(grain);
  if (Completes(pending, max_chunk, left_)) {
    has_rider_ = has_long_;
    left_ -= std::min(left_, pending);
    placed_any_ = true;
    return pending;
  }
  has_long_ = true;
  placed_any_ = true;
  long_limit_ = std::min(pending, max_chunk);
  long_grain_ = grain;
  return std::nullopt;
}

uint32_t RowBudget::LongRows() const {
  if (!has_long_) {
    return 0;
  }
  const uint32_t rows = std::min(left_, long_limit_);
  return rows >= long_grain_ ? rows / long_grain_ * long_grain_ : rows;
}

}  // namespace spindle::engine
