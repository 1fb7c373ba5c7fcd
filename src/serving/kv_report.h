// What GET /admin/kv shows: capacity and use of every KV tier, what was found where, and how the
// disk does. Thread-safety: pure function.
#pragma once

#include <string>

#include "engine/engine.h"

namespace spindle::serving {

// {"tiers": [{"name": "host", …}, {"name": "disk", …}], …}, fastest first; a tier that is not there
// has no entry.
[[nodiscard]] std::string KvReportJson(const engine::EngineLoad& load,
                                       const kv::KvGeometry& geometry);

}  // namespace spindle::serving
