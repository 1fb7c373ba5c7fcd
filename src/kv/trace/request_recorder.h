// Records the requests of a server as JSON lines in the format of Mooncake's release: arrival,
// lengths, and an id per 512 tokens of the prompt (docs/formats.md). An id is equal where the
// prompt is equal up to there and may share KV; ids and names of tenants are digests under a secret
// that is never written, so they tell nothing of the text or of who asked.
//
// Lines go by arrival, so a request waits here until all that came before have ended. Beyond a
// number of bytes that wait, beyond the limit of the file, and when its sink has no room, requests
// are dropped and counted, and the trace ends there.
// Thread-safety: UnitIds on any thread, all else on the engine thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "base/ids.h"
#include "kv/trace/trace_file.h"

namespace spindle::kv {

// Tokens per id.
inline constexpr uint32_t kTraceUnitTokens = 512;

// A request as it arrives.
struct ArrivedRequest {
  TimePoint at = {};
  uint32_t input_tokens = 0;
  int32_t priority = 0;            // -100 … 100, lower first
  std::string_view tenant = {};    // whose it is; empty: nobody's in particular
  std::vector<uint64_t> unit_ids;  // [⌈input_tokens / kTraceUnitTokens⌉]
};

class RequestRecorder {
 public:
  struct Limits {
    uint64_t max_file_bytes;
    uint64_t max_held_bytes;  // of requests that have not been written
  };

  // `start` is time 0.
  RequestRecorder(std::unique_ptr<TraceSink> sink,
                  const Limits& limits,
                  const Digest& secret,
                  TimePoint start);

  // The ids of a prompt. `root`: key before the first stripe; `keys`: of its full stripes; `tail`:
  // the tokens behind them.
  [[nodiscard]] std::vector<uint64_t> UnitIds(const Digest& root,
                                              std::span<const Digest> keys,
                                              std::span<const TokenId> tail) const;

  // Returns the number to end the request with. Times that descend count as equal: callers'
  // threads stamp them, and only the order of calls is certain.
  [[nodiscard]] uint64_t Begin(ArrivedRequest request);

  // Once per request. `output_tokens`: of all its choices.
  void End(uint64_t number, uint64_t output_tokens);

  // Writes what has ended, and a last line that says so if requests were dropped. Call once.
  void Finish();

  [[nodiscard]] uint64_t num_kept_requests() const { return num_kept_; }

  [[nodiscard]] uint64_t num_dropped_requests() const { return num_dropped_; }

 private:
  struct Held {
    uint64_t timestamp_ms = 0;
    uint32_t input_tokens = 0;
    int32_t priority = 0;
    std::string tenant;
    std::vector<uint64_t> unit_ids;
    uint64_t output_tokens = 0;
    bool has_ended = false;
  };

  [[nodiscard]] static uint64_t BytesOf(const Held& held);
  [[nodiscard]] std::string TenantName(std::string_view tenant) const;
  void WriteEnded();
  // False when the line could not be taken.
  [[nodiscard]] bool Write(const Held& held);

  const std::unique_ptr<TraceSink> sink_;
  const Limits limits_;
  const Digest secret_;
  const TimePoint start_;
  std::deque<Held> held_;  // by arrival
  uint64_t first_number_ = 0;
  uint64_t held_bytes_ = 0;
  uint64_t file_bytes_ = 0;
  uint64_t last_timestamp_ms_ = 0;
  uint64_t num_kept_ = 0;
  uint64_t num_dropped_ = 0;
  bool is_cut_ = false;  // a line could not be written
  std::string line_;
};

}  // namespace spindle::kv
