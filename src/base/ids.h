// Distinct integer types for identifiers, so that a page number is never passed where a sequence is
// expected. Thread-safety: value types.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace spindle {

// A strongly typed integer; Tag only separates the types.
template <typename Tag, typename Rep>
class StrongId {
 public:
  using RepType = Rep;

  constexpr StrongId() = default;

  explicit constexpr StrongId(Rep value) : value_(value) {}

  [[nodiscard]] constexpr Rep value() const { return value_; }

  constexpr auto operator<=>(const StrongId&) const = default;

 private:
  Rep value_ = 0;
};

// One token stream with KV state; unique over the life of the process, never reused.
using SequenceId = StrongId<struct SequenceIdTag, uint64_t>;
// One per request: its sequences (n > 1) share one fast-tier budget.
using BudgetGroupId = StrongId<struct BudgetGroupIdTag, uint64_t>;
// Slot of a 64-token stripe in the host tier.
using StripeId = StrongId<struct StripeIdTag, uint32_t>;
// Zero-based transformer layer.
using LayerIdx = StrongId<struct LayerIdxTag, uint16_t>;
// Zero-based KV head.
using KvHeadIdx = StrongId<struct KvHeadIdxTag, uint16_t>;

// Token id of the model's vocabulary.
using TokenId = int32_t;

}  // namespace spindle

template <typename Tag, typename Rep>
struct std::hash<spindle::StrongId<Tag, Rep>> {
  size_t operator()(const spindle::StrongId<Tag, Rep>& id) const noexcept {
    return std::hash<Rep>{}(id.value());
  }
};
