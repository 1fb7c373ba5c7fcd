// What a server records with --kv-trace: a page-access trace, where there is a fast tier, and a
// request trace, each in a file of its own, written by one thread beside the engine's. Bounded in
// memory and on disk; whatever goes wrong with the files ends the traces and nothing else.
// Thread-safety: as its parts; Create and Finish on one thread each. Owns all of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/hash.h"
#include "kv/trace/access_recorder.h"
#include "kv/trace/access_trace.h"
#include "kv/trace/request_recorder.h"
#include "kv/trace/trace_queue.h"

namespace spindle::kv {

// Memory that recording takes at most: blocks that wait for the disk, records that workers gather
// in a step, requests that wait for those before them.
inline constexpr uint64_t kTraceQueueBytes = uint64_t{32} << 20;
inline constexpr uint64_t kTraceWorkerBytes = uint64_t{24} << 20;
inline constexpr uint64_t kTraceHeldBytes = uint64_t{8} << 20;
inline constexpr uint64_t kTraceMemoryBytes =
    kTraceQueueBytes + kTraceWorkerBytes + kTraceHeldBytes;

struct KvTraceOptions {
  std::string path = {};        // of the files, without "-pages.trace" and "-requests.jsonl"
  uint64_t max_file_bytes = 0;  // each; 64 KiB … 1 GiB
  std::optional<AccessTraceHeader> pages = {};  // unset: no fast tier, no page-access trace
  uint32_t num_workers = 1;
  Digest secret{};    // of ids of prompts; random
  TimePoint start{};  // time 0 of the request trace
};

// Since the start.
struct KvTraceStats {
  uint64_t kept_page_records = 0;
  uint64_t dropped_page_records = 0;
  uint64_t kept_requests = 0;
  uint64_t dropped_requests = 0;
};

class KvTrace {
 public:
  // Creates the files. ERRORS: kInvalidArgument naming the field and its range; kAlreadyExists,
  // kUnavailable (the file system failed), naming the file.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<KvTrace>> Create(
      const KvTraceOptions& options);

  // Null: not recorded.
  [[nodiscard]] AccessRecorder* pages() { return pages_.get(); }

  [[nodiscard]] RequestRecorder& requests() { return *requests_; }

  // On the engine thread.
  [[nodiscard]] KvTraceStats Stats() const;

  // Ends the files and logs what they hold; blocks until it is written. On the engine thread, once
  // nothing runs any more.
  void Finish();

 private:
  KvTrace() : queue_(kTraceQueueBytes) {}

  TraceQueue queue_;  // outlives what writes to it
  std::unique_ptr<AccessRecorder> pages_;
  std::unique_ptr<RequestRecorder> requests_;
};

}  // namespace spindle::kv
