// What the disk tier does for requests: brings cached prefixes of waiting choices back, keeps what
// was computed, also beyond the life of the process (sessions) and of a preempted choice's memory
// (spills). Without a disk tier every call is a no-op. Rules: kv/disk_tier.h.
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

  // There is a disk tier.
  [[nodiscard]] bool present() const { return tier_ != nullptr; }

  // Begins to load what the disk has behind the first `num_host` stripes of `keys`, or goes on with
  // it. True while the waiting choice had better not start. `tokens` as in kv::PrefixChain.
  [[nodiscard]] bool AwaitsLoad(Choice& choice,
                                std::span<const Digest> keys,
                                std::span<const TokenId> tokens,
                                uint32_t num_host);

  // Stripes of the host tier that are kept for the choice while it waits.
  [[nodiscard]] uint32_t StripesHeld(const Choice& choice) const;

  // The load of a waiting choice, if it has one.
  [[nodiscard]] std::optional<kv::StripeLoader::Info> LoadOf(const Choice& choice) const {
    return choice.load.has_value() ? std::optional(tier_->InfoOf(*choice.load)) : std::nullopt;
  }

  // Copies the rows of an open tail that was saved behind the first `num_shared` stripes of the
  // choice's history into `sequence`, which has room for the history. Returns how many rows now
  // hold what computing them would give; at least one token is left to compute.
  [[nodiscard]] uint32_t CopyTail(const Choice& choice, SequenceId sequence, uint32_t num_shared);

  // The choice starts, or does not wait any more.
  void EndLoad(Choice& choice);

  // The prompt of a running choice has its KV.
  void OfferPrompt(const Choice& choice);
  // A running choice ends.
  void OfferAll(const Choice& choice);

  // A running choice ends whose request wants its KV kept, as far as its first `num_kept` tokens.
  // Takes over its sequence (which is then no sequence) if that works.
  void Keep(Choice& choice, uint32_t num_kept);

  // A running choice gives up its memory: what it has goes to disk if the device is idle enough and
  // loading will be quicker than computing. Takes over its sequence then, which holds its memory
  // until it is written.
  void Spill(Choice& choice);

  // Lets go of stripes that only the tier holds, loads of `waiting` choices included. Those that
  // the device is at work on follow when it is done.
  void ReleaseStripes(std::span<Choice* const> waiting);

  // The same for sessions that were restored but are not in use. True if there were any.
  bool ReleaseSessions();

  // Stripes may be owned although nothing runs.
  [[nodiscard]] bool HoldsStripes() const;

  // Before every step.
  void Advance();
  [[nodiscard]] std::optional<TimePoint> NextAdvance() const;

 private:
  void Offer(const Choice& choice, uint32_t num_stripes, bool count_use);
  // Behind the first `end` stripes of `tokens`.
  [[nodiscard]] std::optional<kv::SessionKeeper::Tail> FindTail(const Choice& choice,
                                                                std::span<const Digest> keys,
                                                                std::span<const TokenId> tokens,
                                                                uint32_t end);
  // Stripes of a running choice that the host tier's cache has.
  [[nodiscard]] uint32_t NumPublished(const Choice& choice) const;

  kv::DiskTier* const tier_;
  const Throughput& throughput_;
};

}  // namespace spindle::engine
