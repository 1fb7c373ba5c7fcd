// Buffers of attention plans that grow to the largest step and stay. Thread-safety: one user.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/api/attention.h"
#include "platform/memory.h"

namespace spindle::sparse {

// Makes `buffer` hold at least `num_floats`, with headroom so that growing contexts rarely get
// here. ERRORS: kResourceExhausted.
[[nodiscard]] inline absl::Status GrowFloats(uint64_t num_floats, platform::AlignedBuffer* buffer) {
  if (buffer->size() >= num_floats * sizeof(float)) {
    return absl::OkStatus();
  }
  absl::StatusOr<platform::AlignedBuffer> larger =
      platform::AlignedBuffer::Allocate(2 * num_floats * sizeof(float));
  if (larger.ok()) {
    *buffer = *std::move(larger);
  }
  return larger.status();
}

}  // namespace spindle::sparse
