// What the commands that measure a model without its engine are given: lists, texts, the model.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/load_options.h"
#include "eval/eval_model.h"
#include "eval/texts.h"
#include "formats/model_file.h"
#include "kernels/registry.h"
#include "sparse/algorithm_set.h"
#include "text/tokenizer.h"

namespace spindle::cli {

// Made-up stories, as the name of a text.
inline constexpr const char* kStories = "stories";

// Of a model that is about to be measured; owned by the caller.
struct MeasuredModel {
  std::shared_ptr<const formats::ModelFile> file;
  const text::Tokenizer& tokenizer;
  const sparse::AlgorithmSet& algorithms;  // those that serve the model
};

// What is being done, and the fraction of it in [0, 1].
using MeasureProgress = std::function<void(const std::string&, double)>;

// Words between commas.
[[nodiscard]] std::vector<std::string> SplitList(const std::string& list);

// --context: numbers of tokens with commas. ERRORS: kInvalidArgument naming the range.
[[nodiscard]] absl::StatusOr<std::vector<uint32_t>> ParseContexts(const std::string& list,
                                                                  uint32_t least);

// --text: each file once. ERRORS: kInvalidArgument.
[[nodiscard]] absl::Status CheckTexts(const std::vector<std::string>& paths);

// Files, or kStories, which nothing means too: enough of them for so many windows. ERRORS: those
// of reading.
[[nodiscard]] absl::StatusOr<std::vector<eval::Text>> ReadEvalTexts(
    const std::vector<std::string>& paths,
    uint64_t seed,
    uint32_t num_windows,
    uint32_t window_tokens);

// The model without its engine, on the options' threads. ERRORS: those of eval::EvalModel::Load.
[[nodiscard]] absl::StatusOr<std::unique_ptr<eval::EvalModel>> LoadEvalModel(
    const config::LoadOptions& options,
    const MeasuredModel& measured,
    const kernels::KernelTable& kernels,
    uint64_t kv_bytes,
    uint32_t max_sequences,
    const MeasureProgress& progress);

}  // namespace spindle::cli
