// What the disk tier does for requests: brings cached prefixes of waiting choices back, and keeps
// what was computed. Without a disk tier every call is a no-op. Rules: kv/disk_tier.h.
// Thread-safety: engine-thread only. Borrows the tier and the rates.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/clock.h"
#include "engine/request.h"
#include "engine/throughput.h"
#include "kv/disk_tier.h"

namespace spindle::engine {

class DiskPrefix {
 public:
  // `tier` may be null.
  DiskPrefix(kv::DiskTier* tier, const Throughput& throughput)
      : tier_(tier), throughput_(throughput) {}

  // Begins to load what the disk has behind the first `num_host` stripes of `keys`, or goes on with
  // it. True while the waiting choice had better not start. `tokens` as in kv::PrefixChain.
  [[nodiscard]] bool AwaitsLoad(Choice& choice,
                                std::span<const Digest> keys,
                                std::span<const TokenId> tokens,
                                uint32_t num_host);

  // Stripes of the host tier that are kept for the choice while it waits.
  [[nodiscard]] uint32_t StripesHeld(const Choice& choice) const;

  // The choice starts, or does not wait any more.
  void EndLoad(Choice& choice);

  // The prompt of a running choice has its KV.
  void OfferPrompt(const Choice& choice);
  // A running choice ends.
  void OfferAll(const Choice& choice);

  // Lets go of stripes that only the tier holds, loads of `waiting` choices included. Those that
  // the device is at work on follow when it is done.
  void ReleaseStripes(std::span<Choice* const> waiting);

  // Stripes may be owned although nothing runs.
  [[nodiscard]] bool HoldsStripes() const;

  // Before every step.
  void Advance();
  [[nodiscard]] std::optional<TimePoint> NextAdvance() const;

 private:
  void Offer(const Choice& choice, uint32_t num_stripes, bool count_use);

  kv::DiskTier* const tier_;
  const Throughput& throughput_;
};

}  // namespace spindle::engine
