// What a request produces, from the engine thread to one consumer: a bounded queue of events, with
// the consumer's way back (cancel, stop). Shared by the engine and the consumer for as long as
// either needs it. Thread-safety: the consumer side from one thread at a time; the producer side is
// the engine's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/ids.h"
#include "engine/audit_use.h"
#include "sparse/decode_use.h"
#include "sparse/prefill_use.h"

namespace spindle::engine {

enum class FinishReason : uint8_t {
  kStop,     // end token, stop id, or StopChoice
  kLength,   // token limit or context end
  kAborted,  // cancelled
  kError,
};

enum class CancelCause : uint8_t {
  kClientGone,
  kAdmin,
  kDeadline,
  kSlowReader,
  kTimeout,
  kShutdown
};

// Why a request ended; the cause of a kDone event, which fixes its status code:
//   kCompleted                                        OK
//   kClientGone, kAdmin, kSlowReader                  Cancelled
//   kDeadline, kRequestTimeout                        DeadlineExceeded
//   kQueueTimeout, kShutdown                          Unavailable
//   kDisplaced (with retry_after), kOutOfMemory       ResourceExhausted
//   kNoTokenAllowed (bias and bans left nothing)      InvalidArgument
//   kInternal                                         Internal
enum class EndCause : uint8_t {
  kCompleted,
  kClientGone,
  kAdmin,
  kDeadline,
  kSlowReader,
  kRequestTimeout,
  kQueueTimeout,
  kShutdown,
  kDisplaced,
  kOutOfMemory,
  kNoTokenAllowed,
  kInternal,
};

struct TopLogprob {
  TokenId token;
  float logprob;
};

// Where a request stands; also the phase label of cancellations.
enum class RequestPhase : uint8_t { kQueued, kPrefill, kDecode, kPaused, kPreempted };

// What a request held of the KV: of all choices at their ends, shared stripes count for each.
struct KvUse {
  uint32_t page_tokens = 0;
  uint64_t pages = 0;
  uint64_t bytes = 0;
  uint64_t disk_bytes = 0;  // loaded from disk for it
};

// Times and counts of a finished request.
struct RequestStats {
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;  // prompt tokens taken from the prefix cache
  uint32_t disk_tokens = 0;    // … that came from disk for this request
  uint32_t generated_tokens =
      0;  // over all choices, end tokens included, surplus after a stop excluded
  uint32_t preemptions = 0;
  uint32_t longest_choice = 0;  // generated tokens
  KvUse kv;
  std::string algorithm = "dense";       // of attention, of generated tokens
  sparse::DecodeUse sparse;              // of all choices, where it is not "dense"
  std::string prefill_method = "dense";  // of the prompt
  sparse::PrefillUse prefill;            // of its sparse blocks, where it is not "dense"
  std::vector<sparse::LayerUse> layers;  // `sparse` by layer; only where it is asked for
  AuditUse audit;                        // … of its audited steps
  Duration queue_time{0};
  Duration load_time{0};  // of it, waiting for the disk
  Duration prefill_time{0};
  Duration time_to_first_token{0};
  Duration decode_time{0};
};

struct StreamEvent {
  enum class Kind : uint8_t {
    kStarted,        // admitted: stats.prompt_tokens and cached_tokens are known
    kPrefill,        // progress: `processed` of stats.prompt_tokens tokens
    kPromptLogprob,  // one prompt token, in order; only when asked for
    kToken,          // one sampled token of `choice`
    kFinished,       // exactly one per choice of a request that was started
    kDone,           // exactly one, the last event; `status` and `cause` tell how it went
  };

  Kind kind = Kind::kDone;
  uint32_t choice = 0;
  TokenId token = -1;
  bool is_end_token = false;    // an end or stop id: not part of the text
  float logprob = 0.0F;         // NaN for the first prompt token
  std::vector<TopLogprob> top;  // falling logprob, ties by id; empty unless logprobs were asked for
  FinishReason reason = FinishReason::kStop;
  TokenId stop_token = -1;  // kFinished by an id
  uint32_t processed = 0;
  absl::Status status;                       // kDone; the code follows `cause`
  EndCause cause = EndCause::kCompleted;     // kDone
  std::chrono::milliseconds retry_after{0};  // kDone with kDisplaced
  RequestStats stats;  // kStarted and kPrefill: prompt and cached tokens; kDone: all
};

class OutputStream {
 public:
  virtual ~OutputStream() = default;

  // Takes the next event; false when there is none at the moment. Never blocks.
  [[nodiscard]] virtual bool Next(StreamEvent* event) = 0;

  // `ready` is called (from the engine thread, must not block) when events appear after Next
  // returned false, and once immediately if some are waiting already. Replaces the previous
  // callback; an empty function removes it, and after that call returns it is not running any more.
  virtual void SetReadyCallback(std::function<void()> ready) = 0;

  // No steps for this request after the current one; its pages are released. A kDone with
  // kCancelled (or kDeadlineExceeded) still arrives. Idempotent, thread-safe.
  virtual void Cancel(CancelCause cause) = 0;

  // The consumer found a stop string, complete with the choice's token number `num_tokens`
  // (1-based). Later tokens are surplus: not counted, not kept in the cache. The choice finishes
  // with kStop; no event if it had finished before. REQUIRES: called before the next event is taken
  // with Next.
  virtual void StopChoice(uint32_t choice, uint32_t num_tokens) = 0;
};

}  // namespace spindle::engine
