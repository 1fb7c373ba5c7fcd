// Receives requests on their callers' threads: refuses what can never run, computes prefix keys,
// and puts the rest into the inbox.
// Thread-safety: thread-safe. Borrows the options, the throughput and the clock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/engine_options.h"
#include "engine/inbox.h"
#include "engine/step_runner.h"
#include "engine/throughput.h"
#include "kv/fast/fast_tier.h"
#include "kv/kv_store.h"
#include "kv/trace/request_recorder.h"

namespace spindle::engine {

class FrontDesk {
 public:
  // Runner, store, fast tier and recorder (null: none) are only read here.
  FrontDesk(const EngineOptions& options,
            const StepRunner& runner,
            const kv::KvStore& store,
            const kv::FastTier* fast,
            const kv::RequestRecorder* recorder,
            std::shared_ptr<Inbox> inbox,
            const Throughput& throughput,
            const Clock& clock);

  // See Engine::Submit. Cost: one hash per 64 prompt tokens.
  [[nodiscard]] SubmitResult Submit(EngineRequest spec);

 private:
  // What the fast tier has for requests. Zeros without one.
  struct FastLimits {
    uint64_t capacity_bytes = 0;
    kv::KvGeometry geometry = {};
  };

  [[nodiscard]] static FastLimits LimitsOf(const kv::FastTier* fast,
                                           const kv::KvGeometry& geometry);
  // Fills in what the request leaves to the engine.
  void ResolveDefaults(EngineRequest* spec) const;
  [[nodiscard]] std::optional<SubmitRefusal> CheckFastBytes(const EngineRequest& spec) const;
  // Least fast memory of so many choices: their index, and for each one tile of each KV head of a
  // layer. 0: they need none.
  [[nodiscard]] uint64_t LeastFastBytes(const EngineRequest& spec, uint32_t num_choices) const;
  // Tokens of a choice that are certain to come.
  [[nodiscard]] static uint64_t LeastTokens(const EngineRequest& spec);
  // The refusal of a request that can never run.
  [[nodiscard]] std::optional<SubmitRefusal> CheckFeasible(const EngineRequest& spec) const;
  [[nodiscard]] std::unique_ptr<Request> MakeRequest(EngineRequest spec);
  // Of the prompt, in a request trace. A request with cache_prompt = false shares none.
  [[nodiscard]] std::vector<uint64_t> UnitIds(const Request& request,
                                              const EngineRequest& spec) const;
  // Root of a chain that no other request has: outside the domain of RootKey.
  [[nodiscard]] Digest PrivateRoot();

  const EngineOptions& options_;
  const uint64_t max_model_len_;
  const uint64_t capacity_stripes_;
  const uint64_t stripe_bytes_;
  const FastLimits fast_;
  const kv::RequestRecorder* const recorder_;
  const std::shared_ptr<Inbox> inbox_;  // shared with the streams
  const Throughput& throughput_;
  const Clock& clock_;
  std::atomic<uint64_t> num_private_roots_{0};
};

}  // namespace spindle::engine
