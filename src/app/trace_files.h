// The files that a server records what it does to. Thread-safety: call from one thread.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "config/load_options.h"
#include "kv/kv_tiers.h"
#include "kv/trace/kv_trace.h"

namespace spindle::app {

// Makes the folder of --kv-trace, if one was given.
// ERRORS: config::OptionError (also contexts of more pages than a trace can name).
[[nodiscard]] absl::Status PrepareTraceFolder(const config::LoadOptions& options,
                                              const kv::KvTiers& tiers,
                                              uint32_t max_model_len);

// Opens new files in that folder, named by date, time and process; pages are recorded where `tiers`
// have a fast tier. Null when no folder was given. Logs the files. ERRORS: config::OptionError.
[[nodiscard]] absl::StatusOr<std::unique_ptr<kv::KvTrace>> OpenTraceFiles(
    const config::LoadOptions& options, const kv::KvTiers& tiers, const Clock& clock);

}  // namespace spindle::app
