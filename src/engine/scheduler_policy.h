// The rules of scheduling as pure functions over numbers: classes, order, victims, memory, and the
// division of a step's rows. Thread-safety: pure functions and values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/clock.h"
#include "engine/engine_options.h"

namespace spindle::engine {

inline constexpr uint32_t kNumPriorityClasses = 5;
// A prefill chunk ends at a multiple of this unless it ends the prompt: stripes fill whole.
inline constexpr uint32_t kChunkTokens = 64;
// Prompt rows whose logits one step computes at most, beside one row per sequence: bounds the
// memory of logits (64 rows of 128 Ki tokens are 32 MiB).
inline constexpr uint32_t kMaxPromptLogitRows = 64;
// Generated tokens that one step computes again at most, of sequences with a sparse algorithm: each
// chooses what it attends to, as it did at first, and choices take memory.
inline constexpr uint32_t kMaxReplayRows = 32;
// Share of the KV that admission leaves free while something runs, so that decoding sequences can
// grow without preemption: 1/20.
inline constexpr uint64_t kWatermarkDivisor = 20;
// A sequence this close to its token limit is not preempted: it frees its memory sooner by ending.
inline constexpr uint32_t kNearEndTokens = 16;
inline constexpr uint32_t kMaxPreemptions = 3;
// How far admission looks past a request that does not fit, and how often past the same one.
inline constexpr uint32_t kLookAhead = 16;
inline constexpr uint32_t kMaxBypasses = 8;
// Smallest output that admission reserves memory for when the limit is larger.
inline constexpr uint32_t kMinReservedOutput = 256;

// Five equal ranges of [-100, 100]; 0 is the most urgent. REQUIRES: priority in that range.
[[nodiscard]] uint32_t PriorityClass(int32_t priority);

// One class up per `aging` waited, down to 0. `aging` zero: no aging.
[[nodiscard]] uint32_t AgedClass(uint32_t priority_class, Duration waited, Duration aging);

// Place in the queue: lower runs first.
struct WaitingRank {
  uint32_t aged_class;
  bool resumed;      // was preempted, or is a later choice of a request that has started
  uint64_t served;   // what its sender has had and asks for before it; 0 where nobody has a sender
  uint64_t arrival;  // submission number of the request
  uint32_t choice;
};

[[nodiscard]] bool RunsBefore(const WaitingRank& a, const WaitingRank& b, SchedulingPolicy policy);

// A running sequence as the choice of a victim sees it.
struct VictimView {
  uint32_t priority_class;
  uint64_t arrival;
  uint32_t choice;
  uint32_t preemptions;
  uint32_t remaining_tokens;  // until its token limit
};

enum class VictimRule : uint8_t {
  kNormal,      // spares sequences near their end or preempted kMaxPreemptions times
  kLastResort,  // nothing could run otherwise: spares nobody
};

// Index of the lowest class's youngest sequence, or nothing when all are spared.
[[nodiscard]] std::optional<size_t> ChooseVictim(std::span<const VictimView> running,
                                                 VictimRule rule,
                                                 SchedulingPolicy policy);

// Tokens of output to set memory aside for: min(limit, max(256, twice the average)).
[[nodiscard]] uint32_t ReservedOutput(uint32_t max_tokens, double mean_output_tokens);

// Stripes in the store as admission sees them.
struct MemoryView {
  uint64_t capacity;
  uint64_t available;    // free + evictable
  uint64_t outstanding;  // reserved by running sequences but not taken yet
  bool anything_running;
};

// May a request start that takes `needed_now` stripes for its prompt and may grow by `reserved`?
// With nothing running neither reserve nor watermark counts: what follows is its own growth.
[[nodiscard]] bool FitsMemory(const MemoryView& memory, uint64_t needed_now, uint64_t reserved);

// Divides the rows of one step: decode rows first, then prefills. A step leaves at most one prefill
// unfinished (the "long" one); beside it at most one short one (≤ a quarter of the budget) rides
// along and is finished in the step.
class RowBudget {
 public:
  // `max_rows`: rows of a step. At least kChunkTokens rows are left to prefills however many rows
  // decode. Without `chunked` a prompt that is longer than what is left still goes in one piece.
  RowBudget(uint32_t max_rows, uint32_t decode_rows, bool chunked);

  // Would Place accept a prefill of `pending` rows of which at most `max_chunk` may run now? Its
  // unfinished chunks are multiples of `grain`; the first prefill of a step gets that many rows.
  [[nodiscard]] bool CanPlace(uint32_t pending,
                              uint32_t max_chunk,
                              uint32_t grain = kChunkTokens) const;

  // Takes the prefill into the step. Returns its rows when it is finished by this step, or nothing
  // when it becomes the long one. REQUIRES: CanPlace.
  std::optional<uint32_t> Place(uint32_t pending,
                                uint32_t max_chunk,
                                uint32_t grain = kChunkTokens);

  // Rows of the long prefill once all others are placed; 0 when there is none.
  [[nodiscard]] uint32_t LongRows() const;

 private:
  [[nodiscard]] uint32_t LeftFor(uint32_t grain) const;
  [[nodiscard]] bool Completes(uint32_t pending, uint32_t max_chunk, uint32_t left) const;

  uint32_t max_rows_;
  uint32_t left_;
  bool chunked_;
  bool placed_any_ = false;
  bool has_long_ = false;
  bool has_rider_ = false;
  uint32_t long_limit_ = 0;
  uint32_t long_grain_ = kChunkTokens;
};

}  // namespace spindle::engine
