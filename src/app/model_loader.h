// From a model path to a running engine with its tokenizer: the one place where formats, text,
// model, kv and engine meet. Thread-safety: call from one thread.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "app/config_report.h"
#include "app/tier_setup.h"
#include "config/load_options.h"
#include "config/memory_plan.h"
#include "formats/model_file.h"
#include "metrics/metrics.h"
#include "serving/completion_service.h"
#include "sparse/algorithm_set.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace spindle::app {

// The tokenizer a model file brings, or the one at `path` when that is not empty.
// ERRORS: those of Tokenizer; kInvalidArgument when the file has none; config::OptionError: `path`.
absl::StatusOr<std::unique_ptr<text::Tokenizer>> LoadTokenizer(const formats::ModelFile& file,
                                                               const std::string& path);

// The chat template of the file, or `override` (a path, or the template's text). Null when there is
// none. ERRORS: kInvalidArgument with the template's line; config::OptionError: the override.
absl::StatusOr<std::unique_ptr<text::ChatTemplate>> LoadChatTemplate(
    const formats::ModelFile& file,
    const text::Tokenizer& tokenizer,
    const std::string& override_template);

// The algorithms of the build, and those that have weights for the model: gates that the options
// name or that lie beside it. ERRORS: those of model::LoadSeerGates; config::OptionError: gates
// that the options name.
absl::StatusOr<sparse::AlgorithmSet> LoadAlgorithms(const config::LoadOptions& options,
                                                    const formats::ModelFile& file,
                                                    const model::ModelConfig& shape);

struct LoadResult {
  serving::LoadedModel model;
  ResolvedOptions resolved;  // what options came to that were left to the machine or the model
};

// Loads everything and starts the engine. Logs the model, the kernels and the memory plan.
// `front_ends`: what will be served over; null: nothing.
// ERRORS: config::OptionError: an option (exit code 2); else kNotFound, kInvalidArgument,
//         kUnimplemented, kDataLoss … : the model (exit code 3); kResourceExhausted: the memory
//         plan does not fit (exit code 5), with a table of its parts. Plan and options are checked
//         before the weights are read, but for what names a store or a trace file.
absl::StatusOr<LoadResult> LoadModel(const config::LoadOptions& options,
                                     const config::FrontEndOptions* front_ends,
                                     metrics::Registry& registry,
                                     const Clock& clock,
                                     const model::LoadProgress& progress,
                                     const DiskEnvironment& disk = {});

}  // namespace spindle::app
