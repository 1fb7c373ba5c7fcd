// The engine thread's view of requests and their choices. A request is what was submitted; each of
// its choices is one sequence of tokens with its own KV.
// Thread-safety: engine-thread only after Inbox::TrySubmit, except `displaced`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "base/ids.h"
#include "engine/engine.h"
#include "engine/fair_share.h"
#include "engine/stream_state.h"
#include "engine/stripe_methods.h"
#include "kv/disk_tier.h"
#include "kv/fast/fast_tier.h"
#include "sampling/sampler_state.h"
#include "sparse/decode_use.h"
#include "sparse/kept_choice.h"
#include "sparse/prefill_use.h"

namespace spindle::engine {

enum class ChoiceState : uint8_t {
  kBlocked,   // a later choice while the prompt is not computed yet
  kWaiting,   // wants to be admitted; holds no KV
  kRunning,   // holds KV
  kFinished,  // holds no KV
};

// A running choice's part of the fast tier; see FastBudget.
struct FastUse {
  kv::CacheSetId set{};
  uint32_t covered_pages = 0;     // of its directories
  uint32_t frames_per_group = 0;  // that it has
  bool is_open = false;
  bool holds_prompt_index = false;  // of those of its request, it is charged for the prompt's index
  uint64_t index_frames = 0;        // that its index takes the place of
  uint32_t skipped_steps = 0;       // since it last took part in a step
  bool is_paused = false;           // has no frames, and takes part in no step
  uint32_t steps_in_state = 0;      // since it was opened, paused or resumed
  // Measured, per group and step.
  double mandatory_pages = 0;
  double gain = 0;
  uint64_t working_set_pages = 0;  // of all groups together
  // Counters at the last measurement.
  uint32_t measured_tokens = 0;
  uint64_t pages = 0;
  uint64_t refaults = 0;
  uint64_t evicted = 0;
};

// Token ranges of a running choice, by position:
//   [0, 64 · sealed) immutable ⊆ [0, committed) has KV ⊆ [0, history.size()) known tokens.
// The next step computes rows [committed, history.size()); the last of them gives the next token's
// logits. One such row is a decode step, more are prefill: recompute after preemption is the same
// thing as a first prefill.
struct Choice {
  Request* request = nullptr;
  uint32_t index = 0;
  ChoiceState state = ChoiceState::kWaiting;
  bool in_prefill = false;               // since admission, until its first own token
  bool resumed = false;                  // goes before new requests of its class
  SequenceId sequence;                   // valid while kRunning
  FastUse fast;                          // valid while kRunning
  sparse::DecodeUse use;                 // of all its rows, those computed again included
  std::vector<sparse::LayerUse> layers;  // `use` by layer, where it is asked for; from its start on
  sparse::PrefillUse prefill_use;  // of sparse blocks of the prompt, those computed again included
  sparse::KeptChoice kept;         // also while kWaiting
  uint32_t committed = 0;
  uint32_t num_sealed = 0;        // leading stripes
  uint32_t num_stripes = 0;       // room, in stripes; while kRunning
  uint32_t reserved_stripes = 0;  // room that admission set memory aside for
  uint32_t num_generated = 0;
  uint32_t num_preemptions = 0;
  uint32_t lost_tokens = 0;            // whose KV preemption gave up; while kWaiting
  std::optional<uint32_t> stop_after;  // the consumer's StopChoice
  std::vector<TokenId> history;        // prompt, then generated
  std::vector<Digest> keys;            // chain over the full stripes of history, as far as needed
  std::optional<sampling::SamplerState> sampler;
  std::optional<kv::LoadId> load;    // of the disk tier; while kWaiting
  bool disk_tried = false;           // the disk has given what it can; while kWaiting
  std::optional<kv::SpillId> spill;  // what it left on disk when it was preempted; while kWaiting
  uint32_t spilled_stripes = 0;      // … and how many of them come before the open tail

  [[nodiscard]] uint32_t pending() const {
    return static_cast<uint32_t>(history.size()) - committed;
  }
};

struct Request {
  EngineRequest spec;
  // Full prompt stripes are sealed under a chain from this root: the caller's, or a private one
  // that only lets the choices share (no other request can look it up).
  Digest key_root{};
  std::vector<Digest> prompt_keys;      // of the full stripes of the prompt
  StripeMethods methods;                // how stripes of prompt and answers are computed
  bool seals = false;                   // stripes are sealed at all
  bool reads_cache = false;             // looks up what other requests computed
  std::vector<uint64_t> unit_ids;       // of the prompt, for a request trace; until it is added
  uint64_t trace_number = 0;            // in that trace
  std::shared_ptr<StreamState> stream;  // shared with the consumer
  std::vector<Choice> choices;          // never resized: their addresses are kept
  uint64_t arrival = 0;
  uint32_t priority_class = 0;
  BudgetGroupId group;
  FairShare::Account* account = nullptr;  // of its sender, where senders have shares
  std::atomic<bool> displaced{false};     // pushed out of the queue; set by Inbox

  TimePoint submitted;
  std::optional<TimePoint> deadline;       // spec.deadline
  std::optional<TimePoint> time_limit;     // of the whole request
  std::optional<TimePoint> queue_limit;    // while not started
  std::optional<TimePoint> stalled_since;  // the stream is full
  std::optional<TimePoint> admitted;
  std::optional<TimePoint> first_token;
  uint32_t num_finished = 0;
  uint32_t num_bypassed = 0;         // how often another was admitted past it
  uint32_t num_prompt_logprobs = 0;  // events sent
  uint32_t computed_prompt_tokens = 0;
  RequestStats stats;

  [[nodiscard]] bool started() const { return admitted.has_value(); }

  [[nodiscard]] uint32_t prompt_size() const { return static_cast<uint32_t>(spec.prompt.size()); }

  [[nodiscard]] uint32_t num_choices() const { return static_cast<uint32_t>(choices.size()); }
};

}  // namespace spindle::engine
