// Sessions of the engine as the administration asks for and sees them. Thread-safety: as
// engine::Engine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/engine.h"
#include "serving/api_error.h"

namespace spindle::serving {

// What can be asked about sessions.
struct SessionCall {
  enum class Action : uint8_t { kList, kGet, kRestore, kPin, kUnpin, kDelete };

  Action action = Action::kList;
  std::optional<std::string> tenant;  // nothing: of all (kList only)
  std::string id;                     // unless kList
};

// JSON: a list, one session, or what became of it.
[[nodiscard]] Result<std::string> RunSessionCall(engine::Engine& engine, const SessionCall& call);

}  // namespace spindle::serving
