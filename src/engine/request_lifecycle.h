// Owns the requests and carries out their transitions: waiting → running → finished, with the KV
// calls, events, statistics and metrics that belong to each. Decides nothing.
// Thread-safety: engine-thread only. Borrows everything in Parts. Ended requests stay allocated
// until Collect, so that a step may end requests of its own batch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "engine/disk_prefix.h"
#include "engine/engine_metrics.h"
#include "engine/engine_options.h"
#include "engine/fair_share.h"
#include "engine/fast_budget.h"
#include "engine/inbox.h"
#include "engine/request.h"
#include "engine/throughput.h"
#include "kv/kv_store.h"
#include "kv/trace/request_recorder.h"

namespace spindle::engine {

class RequestLifecycle {
 public:
  struct Parts {
    const EngineOptions& options;
    kv::KvStore& store;
    DiskPrefix& disk;
    FastBudget& fast;
    kv::RequestRecorder* recorder;  // null: requests are not recorded
    EngineMetrics& metrics;
    Inbox& inbox;
    Throughput& throughput;
    std::span<const TokenId> end_tokens;
    uint32_t vocab_size;
  };

  explicit RequestLifecycle(const Parts& parts);

  // A submission arrives; its first choice waits.
  void Add(std::unique_ptr<Request> request);

  // Leading stripes of the choice's history that the host tier holds and the choice may use.
  [[nodiscard]] uint32_t MatchPrefix(Choice& choice);

  // True while the disk brings in more of what the choice may use, behind `num_cached` stripes.
  [[nodiscard]] bool AwaitsDisk(Choice& choice, uint32_t num_cached);

  // Lets go of stripes that only the disk tier holds; see DiskPrefix::ReleaseStripes.
  void ReleaseDiskStripes() { parts_.disk.ReleaseStripes(waiting_); }

  // The same for restored sessions only; false if there are none.
  bool ReleaseSessions() { return parts_.disk.ReleaseSessions(); }

  // waiting → running on `num_shared` cached stripes, with room for the whole history. Memory is
  // set aside for `reserved_stripes` in all. ERRORS: kResourceExhausted (no room; nothing changed),
  // kCancelled (the request was displaced
  //         from the queue; it has ended).
  [[nodiscard]] absl::Status Start(Choice& choice,
                                   uint32_t num_shared,
                                   uint32_t reserved_stripes,
                                   TimePoint now);

  // Room for the next token. ERRORS: kResourceExhausted (nothing changed).
  [[nodiscard]] absl::Status Grow(Choice& choice);

  // running → waiting; its tokens are computed again later.
  void Preempt(Choice& choice);

  // The prompt is computed: the blocked choices of the request become running copies of `first`, or
  // wait where there is no slot or no room.
  void ForkChoices(Choice& first);

  // The next `num_rows` rows have KV now; full stripes are sealed.
  void Commit(Choice& choice, uint32_t num_rows);

  // A sampled token; may finish the choice or the request.
  void AddToken(Choice& choice, StreamEvent&& event, TimePoint now);

  // → finished; ends the request after its last choice.
  void FinishChoice(Choice& choice, FinishReason reason, TokenId stop_token, TimePoint now);

  // StopChoice of the consumer.
  void StopChoice(Choice& choice, uint32_t num_tokens, TimePoint now);

  // Ends the request from whatever state, its choices with it.
  void End(Request& request, EndCause cause, TimePoint now);

  // Frees what has ended, and refreshes what listings show.
  void Collect();

  // Stripes of the host tier that are kept for a waiting choice.
  [[nodiscard]] uint32_t StripesHeld(const Choice& choice) const {
    return parts_.disk.StripesHeld(choice);
  }

  // Stripes may become available although nothing runs.
  [[nodiscard]] bool DiskHoldsStripes() const { return parts_.disk.HoldsStripes(); }

  [[nodiscard]] std::span<const std::unique_ptr<Request>> requests() const { return requests_; }

  // In no particular order.
  [[nodiscard]] std::span<Choice* const> waiting() const { return waiting_; }

  // Most urgent first: by class, arrival, choice.
  [[nodiscard]] std::span<Choice* const> running() const { return running_; }

  [[nodiscard]] double mean_output_tokens() const { return parts_.throughput.mean_output_tokens(); }

  // kInternal naming the first broken invariant.
  [[nodiscard]] absl::Status CheckIntegrity() const;

 private:
  // Keys of the leading stripes of the choice's history that it may share; at least one token is
  // always computed.
  [[nodiscard]] std::span<const Digest> UsableKeys(Choice& choice);
  void ExtendKeys(Choice& choice, uint32_t num_stripes);
  // Stripes of a running choice that are full and certainly kept.
  void SealReady(Choice& choice);
  [[nodiscard]] uint32_t KeptTokens(const Choice& choice) const;
  void EnterRunning(Choice& choice);
  // False when there is no slot or no room.
  [[nodiscard]] bool TryFork(const Choice& source, Choice& choice);
  [[nodiscard]] uint32_t ReservedOutputOf(const Choice& choice) const;
  void LeaveWaiting(Choice& choice);
  void CloseSequence(Choice& choice);
  // Common to all ways a choice ends; returns to the caller the decision about the request.
  void RetireChoice(Choice& choice, FinishReason reason, TokenId stop_token);
  // Counts what the admission of a choice found where. `load`: of its load from disk, if it had
  // one.
  void CountAdmission(Choice& choice,
                      const std::optional<kv::StripeLoader::Info>& load,
                      TimePoint now);
  void Started(Request& request, uint32_t cached_tokens, TimePoint now);
  void RefreshProgress(Request& request);

  Parts parts_;
  FairShare shares_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Choice*> waiting_;
  std::vector<Choice*> running_;
  std::vector<std::unique_ptr<Request>> ended_;
};

}  // namespace spindle::engine
