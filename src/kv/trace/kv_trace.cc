#include "kv/trace/kv_trace.h"

#include <utility>

#include "base/log.h"
#include "base/status_macros.h"

namespace spindle::kv {

absl::StatusOr<std::unique_ptr<KvTrace>> KvTrace::Create(const KvTraceOptions& options) {
  if (options.max_file_bytes < kMinAccessTraceBytes ||
      options.max_file_bytes > kMaxAccessTraceBytes) {
    return absl::InvalidArgumentError("max_file_bytes must be in 65536..1073741824, got " +
                                      std::to_string(options.max_file_bytes));
  }
  std::unique_ptr<KvTrace> trace(new KvTrace());
  if (options.pages.has_value()) {
    SPINDLE_ASSIGN_OR_RETURN(std::unique_ptr<TraceSink> file,
                             TraceFile::Create(options.path + "-pages.trace"));
    SPINDLE_ASSIGN_OR_RETURN(
        std::unique_ptr<AccessTraceWriter> writer,
        AccessTraceWriter::Create(
            trace->queue_.Add(std::move(file)), *options.pages, options.max_file_bytes));
    trace->pages_ =
        std::make_unique<AccessRecorder>(std::move(writer), options.num_workers, kTraceWorkerBytes);
  }
  SPINDLE_ASSIGN_OR_RETURN(std::unique_ptr<TraceSink> file,
                           TraceFile::Create(options.path + "-requests.jsonl"));
  trace->requests_ = std::make_unique<RequestRecorder>(
      trace->queue_.Add(std::move(file)),
      RequestRecorder::Limits{options.max_file_bytes, kTraceHeldBytes},
      options.secret,
      options.start);
  return trace;
}

KvTraceStats KvTrace::Stats() const {
  KvTraceStats stats{.kept_requests = requests_->num_kept_requests(),
                     .dropped_requests = requests_->num_dropped_requests()};
  if (pages_ != nullptr) {
    stats.kept_page_records = pages_->num_kept_records();
    stats.dropped_page_records = pages_->num_dropped_records();
  }
  return stats;
}

void KvTrace::Finish() {
  queue_.Drain();  // room for the last blocks
  if (pages_ != nullptr) {
    pages_->Finish();
  }
  requests_->Finish();
  queue_.Close();
  const KvTraceStats stats = Stats();
  log::Write(stats.dropped_page_records + stats.dropped_requests > 0 ? log::Level::kWarn
                                                                     : log::Level::kInfo,
             "kv_trace_end",
             {{"page_records", stats.kept_page_records},
              {"dropped_page_records", stats.dropped_page_records},
              {"requests", stats.kept_requests},
              {"dropped_requests", stats.dropped_requests}});
}

}  // namespace spindle::kv
