// How the rows of generated tokens are attended; prompts are always attended densely.
// Thread-safety: plain value.
#pragma once

#include <memory>
#include <string>

#include "base/prefix_key.h"
#include "sparse/sparse_policy.h"

namespace spindle::engine {

struct SparseDecode {
  std::shared_ptr<const sparse::SparsePolicy> policy;  // null: densely
  std::string algorithm = "dense";                     // its name
  double mandatory_pages = 0;  // it is expected to choose per step, layer and KV head
  MethodDigest method{};       // of prefix keys: whatever decides its choices
};

}  // namespace spindle::engine
