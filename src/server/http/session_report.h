// Sessions of the engine as the administration shows them. Thread-safety: as engine::Engine.
#pragma once

#include <string>

#include "engine/engine.h"
#include "server/http/backend.h"

namespace spindle::server {

// JSON: a list, one session, or what became of it.
[[nodiscard]] serving::Result<std::string> RunSessionCall(engine::Engine& engine,
                                                          const SessionCall& call);

}  // namespace spindle::server
