#include "server/http/access_log.h"

#include <chrono>
#include <vector>

#include "base/log.h"

namespace spindle::server {
namespace {

double Milliseconds(Duration time) {
  return static_cast<double>(std::chrono::duration_cast<std::chrono::microseconds>(time).count()) /
         1000.0;
}

}  // namespace

void WriteAccessLog(const AccessRecord& record) {
  if (!log::Enabled(log::Level::kInfo)) {
    return;
  }
  std::vector<log::Field> fields = {{"req", record.request_id},
                                    {"method", record.method},
                                    {"path", record.path},
                                    {"status", record.status},
                                    {"total_ms", Milliseconds(record.total)}};
  if (!record.key_name.empty()) {
    fields.emplace_back("key", record.key_name);
  }
  if (!record.error_code.empty()) {
    fields.emplace_back("error", record.error_code);
  }
  if (!record.model.empty()) {
    fields.emplace_back("model", record.model);
  }
  if (record.usage.has_value()) {
    fields.emplace_back("prompt_tokens", record.usage->prompt_tokens);
    fields.emplace_back("cached_tokens", record.usage->cached_tokens);
    fields.emplace_back("completion_tokens", record.usage->completion_tokens);
    fields.emplace_back("queue_ms", Milliseconds(record.queue_time));
  }
  if (record.time_to_first_token.has_value()) {
    fields.emplace_back("ttft_ms", Milliseconds(*record.time_to_first_token));
  }
  if (!record.finish_reasons.empty()) {
    fields.emplace_back("finish", record.finish_reasons);
  }
  log::Write(log::Level::kInfo, "request", fields);
}

}  // namespace spindle::server
