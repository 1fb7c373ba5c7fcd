// From the cause of an end to what clients and metrics see; the table stands in output_stream.h.
// Thread-safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "engine/output_stream.h"

namespace spindle::engine {

[[nodiscard]] EndCause EndCauseOf(CancelCause cause);

// The status of the kDone event.
[[nodiscard]] absl::Status EndStatusOf(EndCause cause);

}  // namespace spindle::engine
