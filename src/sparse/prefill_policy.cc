#include "sparse/prefill_policy.h"

#include <bit>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "base/status_macros.h"

namespace spindle::sparse {
namespace {

// Where blocks would begin behind any position, nothing is sparse.
uint32_t BeginOf(uint32_t block) {
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  return block > kNone / kPrefillBlockTokens ? kNone : block * kPrefillBlockTokens;
}

}  // namespace

PrefillPolicy::PrefillPolicy(std::shared_ptr<const PrefillMethod> method,
                             std::vector<double> knobs,
                             std::vector<bool> dense_layers)
    : method_(std::move(method)),
      knobs_(std::move(knobs)),
      dense_layers_(std::move(dense_layers)),
      sparse_begin_(BeginOf(method_->FirstSparseBlock(knobs_))),
      last_dense_(method_->LastDense(knobs_)) {
  Sha256 hash;
  hash.Field("sparse-prefill")
      .Field(method_->name())
      .Number(kPrefillBlockTokens)
      .Number(knobs_.size());
  for (const double knob : knobs_) {
    hash.Number(std::bit_cast<uint64_t>(knob));
  }
  hash.Number(dense_layers_.size());
  for (const bool is_dense : dense_layers_) {
    hash.Number(is_dense ? 1 : 0);
  }
  fingerprint_ = hash.Finish();
}

absl::StatusOr<std::shared_ptr<const PrefillPolicy>> PrefillPolicy::Create(
    std::shared_ptr<const PrefillMethod> method,
    const NamedValues& named,
    std::vector<bool> dense_layers) {
  constexpr std::string_view kField = "prefill_params";
  SPINDLE_ASSIGN_OR_RETURN(std::vector<double> knobs,
                           KnobValues(named, method->knobs(), kField, method->name()));
  if (const absl::Status status = method->CheckKnobs(knobs); !status.ok()) {
    return absl::InvalidArgumentError(std::string(kField) + "." + std::string(status.message()));
  }
  return std::make_shared<const PrefillPolicy>(
      std::move(method), std::move(knobs), std::move(dense_layers));
}

}  // namespace spindle::sparse
