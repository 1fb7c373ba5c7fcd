// How the rows of a request are attended: those of generated tokens, and those of its prompt.
// Thread-safety: plain value.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/prefix_key.h"
#include "sparse/prefill_policy.h"
#include "sparse/sparse_policy.h"

namespace spindle::engine {

struct SparseDecode {
  std::shared_ptr<const sparse::SparsePolicy> policy;  // null: densely
  std::string algorithm = "dense";                     // its name
  // Pages that a recorded schedule chooses per step, layer and KV head. 0: the policy says.
  double mandatory_pages = 0;
  MethodDigest method{};  // of prefix keys: whatever decides its choices
  std::shared_ptr<const sparse::PrefillPolicy> prefill = nullptr;  // of the prompt; null: densely

  // The name of its method.
  [[nodiscard]] std::string_view PrefillName() const {
    return prefill == nullptr ? std::string_view("dense") : prefill->method().name();
  }
};

}  // namespace spindle::engine
