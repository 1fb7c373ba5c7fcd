// Brings stripes of a prefix from disk into the host tier. A load is a sequence of the host tier
// whose stripes are written by the device instead of by the model: it shares what the host has,
// takes room for the rest, and seals stripe by stripe as verified records arrive, in order. Sealed
// stripes are in the prefix cache at once, for whoever wants them.
//
// Thread-safety: engine-thread only, except the counters. Borrows both stores.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/ids.h"
#include "kv/disk/disk_store.h"
#include "kv/kv_store.h"
#include "kv/prefix_chain.h"

namespace spindle::kv {

using LoadId = StrongId<struct LoadIdTag, uint64_t>;

class StripeLoader {
 public:
  struct Counters {
    std::atomic<uint64_t> begun{0};
    std::atomic<uint64_t> cut{0};            // ended by their deadline or a damaged record
    std::atomic<uint64_t> loaded_tokens{0};  // that entered the prefix cache
    std::atomic<uint64_t> lost_tokens{0};    // that cut loads did not bring
    // Of the device; moving average, 0 before the first load.
    std::atomic<double> bytes_per_second{0.0};
  };

  StripeLoader(KvStore& host, disk::DiskStore& disk, const Clock& clock)
      : host_(host), disk_(disk), clock_(clock) {}

  ~StripeLoader();
  StripeLoader(const StripeLoader&) = delete;
  StripeLoader& operator=(const StripeLoader&) = delete;

  // Whether a load brings this stripe in.
  [[nodiscard]] bool IsLoading(const Digest& key) const;

  // Expected time for so many stripes. What was measured counts for a minute: a device that was
  // slow for a while, and therefore not used, gets another chance.
  [[nodiscard]] double LoadSeconds(uint32_t num_stripes) const;

  struct Request {
    BudgetGroupId group{};
    PrefixChain chain{};
    uint32_t num_host = 0;                        // leading stripes that the host tier has
    uint32_t num_disk = 0;                        // stripes behind them
    std::optional<OpenTail> tail = std::nullopt;  // behind the last of them
    // Nothing: no request waits, so that it may take ten seconds longer than expected.
    std::optional<double> prefill_tokens_per_second = std::nullopt;
  };

  // See DiskTier::BeginLoad.
  [[nodiscard]] absl::StatusOr<LoadId> Begin(const Request& request);
  [[nodiscard]] bool IsDone(LoadId id) const;

  // Leading stripes of the chain that the host tier has now.
  [[nodiscard]] uint32_t NumSealed(LoadId id) const { return Get(id).sealed; }

  // The tail's rows, one stripe; null unless it has arrived, and everything before it too. Valid
  // until End.
  [[nodiscard]] const uint8_t* TailData(LoadId id) const;
  [[nodiscard]] std::span<const TokenId> TailTokens(LoadId id) const;
  [[nodiscard]] uint32_t StripesHeld(LoadId id) const;

  struct Info {
    uint32_t num_stripes;  // brought so far
    TimePoint started;
  };

  [[nodiscard]] Info InfoOf(LoadId id) const {
    const Load& load = Get(id);
    return {load.sealed - load.first, load.started};
  }

  void End(LoadId id);

  // A completion or notice of the device.
  void Deliver(const disk::Completion& completion);

  // Cuts what is late, and asks the device for more.
  void Advance();

  // Nothing more is wanted; what is in flight still has to be delivered.
  void CutAll();

  [[nodiscard]] std::optional<TimePoint> NextDeadline() const;

  [[nodiscard]] bool HoldsStripes() const;

  [[nodiscard]] const Counters& counters() const { return counters_; }

  // kInternal naming the first broken invariant.
  [[nodiscard]] absl::Status CheckIntegrity() const;

 private:
  struct Load {
    uint64_t id = 0;  // 0 = the place is vacant
    SequenceId sequence;
    OwnedChain chain;
    uint32_t first = 0;      // stripes [first, end) come from disk
    uint32_t end = 0;        // shrinks when a stripe cannot be had in time
    uint32_t submitted = 0;  // the next stripe to ask for
    uint32_t sealed = 0;     // the next stripe to seal; done when it reaches `end`
    uint32_t in_flight = 0;
    bool ended = false;  // by the caller
    TimePoint started;
    TimePoint deadline;
    TimePoint last_arrival{};  // at the device, not at the engine thread

    enum class Tail : uint8_t { kNone, kWaiting, kInFlight, kArrived, kLost };
    Tail tail_state = Tail::kNone;
    OpenTail tail;
    disk::Ticket tail_ticket = 0;

    struct Stripe {
      disk::Ticket ticket = 0;
      bool arrived = false;
      ContentChecksum checksum;
    };

    std::vector<Stripe> stripes;  // from `first` on
  };

  [[nodiscard]] const Load& Get(LoadId id) const;
  [[nodiscard]] Load& Get(LoadId id);
  Load& NewLoad();
  [[nodiscard]] Duration TimeAllowed(uint32_t num_stripes,
                                     std::optional<double> prefill_rate) const;
  void Submit(uint32_t place);
  void SubmitTail(uint32_t place);
  void LoseTail(Load& load);
  void SealArrived(Load& load);
  void ObserveRate(const Load& load);
  // Bytes per second; 0 when nothing was measured of late.
  [[nodiscard]] double MeasuredRate() const;
  void Cut(Load& load, uint32_t end);
  void FinishIfEnded(Load& load);

  KvStore& host_;
  disk::DiskStore& disk_;
  const Clock& clock_;
  std::deque<Load> loads_;  // places are used again
  uint64_t num_loads_ = 0;
  TimePoint rate_observed_at_{};
  Counters counters_;
};

}  // namespace spindle::kv
