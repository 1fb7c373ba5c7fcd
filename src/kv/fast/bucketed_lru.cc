#include "kv/fast/bucketed_lru.h"

#include <algorithm>
#include <string>

#include "base/status_macros.h"

namespace spindle::kv {
namespace {

constexpr uint32_t kMinRange = 4;
constexpr uint32_t kMaxRange = 128;
constexpr uint32_t kMaxQuantum = 64;

// Buckets have stamps 1 … range; 0 and 255 have other meanings.
constexpr uint8_t kOldest = 1;

}  // namespace

absl::Status ValidateLruOptions(const LruOptions& options) {
  if (options.range < kMinRange || options.range > kMaxRange || options.range % 2 != 0) {
    return absl::InvalidArgumentError("range of ages must be an even number in 4..128, got " +
                                      std::to_string(options.range));
  }
  if (options.quantum_steps < 1 || options.quantum_steps > kMaxQuantum) {
    return absl::InvalidArgumentError("quantum_steps must be in 1..64, got " +
                                      std::to_string(options.quantum_steps));
  }
  return absl::OkStatus();
}

BucketedLru::BucketedLru(const LruOptions& options, const kernels::KernelTable& kernels)
    : options_(options), kernels_(&kernels) {
  SPINDLE_CHECK(ValidateLruOptions(options).ok());
}

bool BucketedLru::Advance(LruState* state) const {
  ++state->ticks;
  if (state->ticks < options_.quantum_steps) {
    return false;
  }
  state->ticks = 0;
  if (state->now < options_.range) {
    ++state->now;
    return false;
  }
  state->now = static_cast<uint8_t>(options_.range / 2 + 1);
  return true;
}

void BucketedLru::Rescale(std::span<uint8_t> stamps) const {
  const auto half = static_cast<uint8_t>(options_.range / 2);
  for (uint8_t& stamp : stamps) {
    const auto aged = static_cast<uint8_t>(stamp > half ? stamp - half : kOldest);
    const bool keeps = stamp == kernels::kLruFree || stamp == kernels::kLruPinned;
    stamp = keeps ? stamp : aged;
  }
}

void BucketedLru::Advance(LruState* state, std::span<uint8_t> stamps) const {
  if (Advance(state)) {
    Rescale(stamps);
  }
}

uint32_t BucketedLru::Take(LruState* state,
                           std::span<const uint8_t> stamps,
                           uint32_t n,
                           std::span<uint32_t> out) const {
  SPINDLE_DCHECK(stamps.size() <= kMaxSlots && n <= out.size());
  const auto num_slots = static_cast<uint32_t>(stamps.size());
  const kernels::VictimResult result =
      kernels_->select_victims({.stamps = stamps.data(),
                                .num_slots = num_slots,
                                .max_stamp = state->now,
                                .num_wanted = n,
                                .hand = std::min<uint32_t>(state->hand, num_slots)},
                               out.data());
  state->hand = static_cast<uint16_t>(result.hand);
  return result.count;
}

void BucketedLru::Unpin(const LruState& state, std::span<uint8_t> stamps) {
  for (uint8_t& stamp : stamps) {
    stamp = stamp == kernels::kLruPinned ? state.now : stamp;
  }
}

uint32_t BucketedLru::CountUsedWithin(const LruState& state,
                                      std::span<const uint8_t> stamps,
                                      uint32_t steps) const {
  const uint32_t buckets = (steps + options_.quantum_steps - 1) / options_.quantum_steps;
  const auto oldest =
      static_cast<uint8_t>(buckets >= state.now ? kOldest : state.now - buckets + 1);
  uint32_t count = 0;
  for (const uint8_t stamp : stamps) {
    count += stamp >= oldest ? 1U : 0U;
  }
  return count;
}

}  // namespace spindle::kv
