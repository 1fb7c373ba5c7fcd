// One line per request, at its end (docs/configuration.md). Never holds prompts, outputs or keys.
// Thread-safety: plain value and pure function.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "serving/generation.h"

namespace spindle::server {

struct AccessRecord {
  std::string request_id;
  std::string method;
  std::string path;
  int status = 0;  // 499 = the client went away
  std::string key_name;
  std::string error_code;
  Duration total{0};
  // Generations only.
  std::string model;
  std::optional<serving::Usage> usage;
  Duration queue_time{0};
  std::optional<Duration> time_to_first_token;  // of a stream: until the socket got it
  std::string finish_reasons;                   // one per choice, comma-separated
};

void WriteAccessLog(const AccessRecord& record);

}  // namespace spindle::server
