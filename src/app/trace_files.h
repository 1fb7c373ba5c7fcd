// The files that a server records what it does to. Thread-safety: call from one thread.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "config/load_options.h"
#include "kv/kv_tiers.h"
#include "kv/trace/kv_trace.h"

namespace spindle::app {

// Opens new files in the folder of --kv-trace, named by date, time and process; pages are recorded
// where `tiers` have a fast tier. Null when no folder was given. Logs the files.
// ERRORS: kInvalidArgument (contexts of more pages than a trace can name), kUnavailable,
// kAlreadyExists, naming the option or the file.
absl::StatusOr<std::unique_ptr<kv::KvTrace>> OpenTraceFiles(const config::LoadOptions& options,
                                                            const kv::KvTiers& tiers,
                                                            uint32_t max_model_len,
                                                            const Clock& clock);

}  // namespace spindle::app
