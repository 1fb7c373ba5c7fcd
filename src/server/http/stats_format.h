// The `spindle` object with the statistics of a finished request (docs/http-api.md), as far as they
// are measured. Thread-safety: pure functions.
#pragma once

#include <string>

#include "serving/completion_service.h"
#include "serving/generation.h"

namespace spindle::server {

// {"sparse":{…},"kv":{…},"timing":{…},"seed":…}
void AppendStats(const serving::PreparedRequest& request,
                 const engine::RequestStats& stats,
                 std::string* out);

}  // namespace spindle::server
