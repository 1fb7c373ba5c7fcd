// The engine: continuous batching of token sequences over one model. Knows tokens, not text.
// Thread-safety: thread-safe; all work happens on one engine thread that the object owns.
// Contract: every accepted request gets exactly one kDone, on every path, cancel and shutdown
// included.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "spindle/sampling_params.h"

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/ids.h"
#include "engine/engine_options.h"
#include "engine/fast_load.h"
#include "engine/kv_metrics.h"
#include "engine/output_stream.h"
#include "engine/sparse_decode.h"
#include "kv/kv_store.h"
#include "kv/kv_tiers.h"
#include "metrics/metrics.h"
#include "model/model.h"

namespace spindle::engine {

// Keeps the KV of a request on disk when it ends.
struct Retention {
  kv::SessionName session;  // without an id it gets one that follows from the content
  uint64_t seconds = 0;     // how long at least, as far as there is room
};

struct EngineRequest {
  std::string id;                      // unique among active requests
  std::vector<TokenId> prompt;         // ≥ 1 token, ids checked by serving
  SamplingParams sampling;             // ranges checked by serving
  int32_t priority = 0;                // [-100, 100], lower runs first
  Digest prefix_root{};                // root key: model, tenant, salt (see base/prefix_key.h)
  bool cache_prompt = true;            // false: neither read from nor added to the prefix cache
  bool max_tokens_given = false;       // sampling.max_tokens is the client's number, not a default:
                                       // then the request must fit the KV with all of it
  bool may_stop_early = true;          // the consumer may call StopChoice (stop strings): generated
                                       // stripes enter the prefix cache only once their tokens were
                                       // taken from the stream. False: as soon as they are full
  bool report_progress = false;        // kPrefill events
  std::string key_name;                // for listings
  std::string sender;                  // whose share of the service it takes; all requests of an
                                       // engine have one, or none has
  std::string tenant;                  // whose it is, for traces; empty: nobody's in particular
  std::optional<SparseDecode> decode;  // nullopt: the engine's
  uint32_t audit_every = 0;  // every so many sparse steps are computed densely as well, for
                             // RequestStats::audit; 0: none
  bool layer_stats = false;  // RequestStats::layers
  bool uses_disk = true;     // its stripes may go to and come from the disk tier
  float fast_fraction = 0;   // fast_bytes as a share of the fast tier; 0 = none
  // Cap on what its pages and indexes take of the fast tier, all choices together; 0 = none.
  uint64_t fast_bytes = 0;
  // Wanted pages kept from earlier steps, per mandatory page; nullopt: the engine's.
  std::optional<float> buffer_ratio;
  std::optional<Retention> retention;  // REQUIRES: keeps_sessions(); cache_prompt
  std::optional<TimePoint> deadline;   // then cancelled with kDeadlineExceeded
};

// Why a request was not accepted. Numbers are filled where they apply.
struct SubmitRefusal {
  enum class Kind : uint8_t {
    kQueueFull,        // with retry_after
    kNeverFits,        // needed_bytes > capacity_bytes
    kContextExceeded,  // prompt + max_tokens > max_model_len
    kShuttingDown,
    kDeadlinePassed,
    kFastBudgetTooSmall,  // fast_bytes < needed_bytes
    kFastBudgetTooLarge,  // fast_bytes > capacity_bytes
    kFastNeverFits,       // the index alone leaves no room: needed_bytes > capacity_bytes
  };

  Kind kind;
  uint64_t needed_bytes = 0;
  uint64_t capacity_bytes = 0;
  std::chrono::milliseconds retry_after{0};
};

using SubmitResult = std::variant<std::shared_ptr<OutputStream>, SubmitRefusal>;

struct ActiveRequest {
  std::string id;
  RequestPhase phase;
  int32_t priority;
  uint32_t prompt_tokens;
  uint32_t generated_tokens;
  uint32_t cached_tokens;
  std::chrono::milliseconds age;
  uint64_t kv_bytes;
  std::string key_name;
};

struct EngineLoad {
  uint32_t running;  // sequences in prefill or decode
  uint32_t waiting;  // queued and preempted requests
  uint64_t waiting_tokens;
  std::chrono::milliseconds oldest_wait;
  kv::KvStats kv;
  std::optional<FastLoad> fast;           // unset: attention reads in place
  std::optional<kv::DiskTierStats> disk;  // unset: no disk tier
  PrefixTotals prefix;                    // since the start
};

class StepRunner;

class Engine {
 public:
  // Takes the model and the KV tiers; starts the engine thread. Metrics of the scheduler, requests
  // and KV are registered with `registry`. `clock` must outlive the engine. ERRORS:
  // kResourceExhausted (activations), kInvalidArgument (options, naming field and range).
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        std::unique_ptr<model::Model> model,
                                                        kv::KvTiers kv,
                                                        std::unique_ptr<platform::ComputePool> pool,
                                                        const kernels::KernelTable& kernels,
                                                        std::vector<TokenId> end_tokens,
                                                        metrics::Registry& registry,
                                                        const Clock& clock);
  // The same over any forward pass (tests, other backends); see engine/step_runner.h.
  static absl::StatusOr<std::unique_ptr<Engine>> CreateWithRunner(
      const EngineOptions& options,
      std::unique_ptr<StepRunner> runner,
      kv::KvTiers kv,
      const kernels::KernelTable& kernels,
      std::vector<TokenId> end_tokens,
      metrics::Registry& registry,
      const Clock& clock);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] const model::ModelConfig& model_config() const;
  [[nodiscard]] const Digest& model_fingerprint() const;
  [[nodiscard]] const kv::KvGeometry& kv_geometry() const;

  // Never blocks on the engine thread. The stream's first event is kStarted, or kDone if it ends
  // before.
  [[nodiscard]] SubmitResult Submit(EngineRequest request);

  // Cancels by id; false when no such request is active.
  bool Cancel(const std::string& id, CancelCause cause);

  // A snapshot that is at most one step old. Never waits for a step.
  [[nodiscard]] std::vector<ActiveRequest> ActiveRequests() const;
  [[nodiscard]] EngineLoad Load() const;

  // Drops unreferenced cached stripes; waits for the current step. Returns how many.
  uint64_t ResetPrefixCache();

  // Sessions (kv/session_keeper.h); all calls wait for the current step. ERRORS: those of
  // kv::SessionKeeper, and kUnimplemented without a disk tier.
  [[nodiscard]] bool keeps_sessions() const;
  // Nothing as tenant: of all.
  [[nodiscard]] absl::StatusOr<std::vector<kv::SessionInfo>> ListSessions(
      const std::optional<std::string>& tenant);
  [[nodiscard]] absl::StatusOr<kv::SessionInfo> FindSession(const kv::SessionName& name);
  [[nodiscard]] absl::Status RestoreSession(const kv::SessionName& name);
  [[nodiscard]] absl::Status SetSessionPinned(const kv::SessionName& name, bool pinned);
  [[nodiscard]] absl::Status DeleteSession(const kv::SessionName& name);

  // Refuses new requests from now on; accepted ones continue.
  void BeginDrain();
  // Waits until nothing is active or `deadline` passes, then cancels the rest (kShutdown) and stops
  // the thread.
  void Shutdown(TimePoint deadline);

  // Time since the engine thread last began or ended a step or idled; the watchdog compares it with
  // --watchdog.
  [[nodiscard]] Duration SinceLastTick() const;

  // kInternal naming the first broken invariant of engine and store; waits for the current step.
  [[nodiscard]] absl::Status CheckIntegrity();

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  // On the engine thread, between steps.
  template <typename Result, typename Command>
  Result WithSessions(const Command& command);

  std::unique_ptr<Impl> impl_;
};

}  // namespace spindle::engine
