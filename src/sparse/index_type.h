// What indexes of keys are stored as, an option of the server. Thread-safety: pure functions.
#pragma once

#include "base/hash.h"
#include "kernels/api/index_vectors.h"

namespace spindle::sparse {

using IndexType = kernels::IndexType;

// For SparseAlgorithm::fingerprint: other vectors make other choices. Zeros for bf16.
[[nodiscard]] Digest IndexFingerprint(IndexType type);

}  // namespace spindle::sparse
