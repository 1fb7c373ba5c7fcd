// What the commands that measure a model without its engine are given: lists, texts, kernels.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/load_options.h"
#include "eval/texts.h"
#include "formats/model_file.h"
#include "kernels/registry.h"
#include "model/model_config.h"
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

// --isa. ERRORS: kInvalidArgument.
[[nodiscard]] absl::StatusOr<const kernels::KernelTable*> KernelsOf(
    const config::LoadOptions& options);

// The model's shape under the options. ERRORS: those of model::ReadConfig.
[[nodiscard]] absl::StatusOr<model::ModelConfig> ShapeOf(const config::LoadOptions& options,
                                                         const formats::ModelFile& file);

}  // namespace spindle::cli
