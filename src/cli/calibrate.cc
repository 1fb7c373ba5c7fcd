#include "cli/calibrate.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/status_macros.h"
#include "cli/kv_sim_report.h"
#include "cli/model_options.h"
#include "config/memory_plan.h"
#include "config/sparse_preset.h"
#include "engine/sparse_request.h"
#include "eval/eval_model.h"
#include "eval/step_times.h"
#include "kv/kv_store.h"

namespace spindle::cli {
namespace {

constexpr uint32_t kLeastTimedContext = 64;
constexpr uint32_t kUsualContexts[] = {
    256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384};
// Made-up stories are the same in every run.
constexpr uint64_t kStorySeed = 1;

// In order, each once.
absl::StatusOr<std::vector<uint32_t>> ContextsOf(const CalibrateOptions& options,
                                                 uint32_t max_model_len) {
  const uint32_t behind = eval::kWarmUpSteps + options.num_steps;
  const uint32_t most = max_model_len > behind ? max_model_len - behind : 0;
  SPINDLE_ASSIGN_OR_RETURN(std::vector<uint32_t> contexts,
                           ParseContexts(options.contexts, kLeastTimedContext));
  for (const uint32_t context : contexts) {
    if (context > most) {
      return absl::InvalidArgumentError(
          fmt::format("--context must be in [{}, {}]: the model's {} tokens less the {} that are "
                      "decoded, got {}",
                      kLeastTimedContext,
                      most,
                      max_model_len,
                      behind,
                      context));
    }
  }
  if (contexts.empty()) {
    for (const uint32_t context : kUsualContexts) {
      contexts.push_back(std::min(context, most));
    }
  }
  std::sort(contexts.begin(), contexts.end());
  contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());
  return contexts;
}

// The settings as the server has them, sparse at any length.
absl::StatusOr<engine::SparseDecode> DecodeOf(const CalibrateOptions& options,
                                              const kv::KvGeometry& geometry,
                                              const sparse::AlgorithmSet& algorithms) {
  engine::SparseRequest defaults = config::SparseDefaults(options.load);
  if (defaults.min_context.has_value() && options.load.sparse.min_context.has_value()) {
    return absl::InvalidArgumentError("--sparse-min-context is what calibrate measures");
  }
  defaults.min_context = 0;
  SPINDLE_ASSIGN_OR_RETURN(engine::SparseDecode decode,
                           engine::ResolveSparse({}, defaults, geometry, algorithms));
  if (decode.policy == nullptr) {
    return absl::InvalidArgumentError(
        "nothing to measure: name an algorithm with --sparse-algorithm or --sparse-preset");
  }
  return decode;
}

absl::StatusOr<std::vector<eval::TextWindow>> WindowsOf(const CalibrateOptions& options,
                                                        const text::Tokenizer& tokenizer,
                                                        uint32_t longest) {
  const uint32_t window_tokens = longest + eval::kWarmUpSteps + options.num_steps;
  SPINDLE_ASSIGN_OR_RETURN(const std::vector<eval::Text> texts,
                           ReadEvalTexts(options.texts, kStorySeed, options.batch, window_tokens));
  return eval::CutWindows(texts, tokenizer, options.batch, window_tokens);
}

// A sequence with its longest context, and a fork of it with the steps.
uint64_t KvBytes(const CalibrateOptions& options,
                 uint32_t longest,
                 const kv::KvGeometry& geometry) {
  const uint32_t behind = kv::KvStore::StripesFor(eval::kWarmUpSteps + options.num_steps) + 2;
  return uint64_t{options.batch} * (kv::KvStore::StripesFor(longest) + behind) *
         geometry.stripe_bytes();
}

// A table that YAML takes for comments.
std::string TimesText(const CalibrateOptions& options,
                      const std::string& algorithm,
                      std::span<const eval::StepTimes> times) {
  std::string text = fmt::format(
      "# Measured by spindle calibrate: milliseconds of a step, sequences decoding together: {}; "
      "median of {} rounds.\n# {:>8} {:>9} {:>11} {:>13}\n",
      options.batch,
      options.num_rounds,
      "context",
      "dense",
      algorithm,
      "times dense");
  for (const eval::StepTimes& at : times) {
    text += fmt::format("# {:>8} {:>9.2f} {:>11.2f} {:>13.2f}\n",
                        at.context_tokens,
                        1e3 * at.dense_seconds,
                        1e3 * at.policy_seconds,
                        at.speedup);
  }
  return text;
}

}  // namespace

void AddCalibrateOptions(config::OptionTable& table, CalibrateOptions& options) {
  config::AddModelOptions(table, options.load);
  config::AddComputeOptions(table, options.load);
  config::AddSparseOptions(table, options.load);
  table.TextList("text",
                 "FILE",
                 &options.texts,
                 "text to decode, or the word stories: made-up ones, also the default");
  table.Text("context", "N,…", &options.contexts, "tokens that are there when steps are timed")
      .shown_default = "256 to 16384, as far as the model goes";
  table.Uint32("batch", &options.batch, 1, 256, "sequences that decode together");
  table.Uint32("steps", &options.num_steps, 1, 4096, "timed steps of a round");
  table.Uint32("rounds", &options.num_rounds, 1, 1000, "rounds, in which dense takes turns");
  table.Text("output", "FILE", &options.output, "the preset, for --sparse-preset");
}

absl::StatusOr<std::string> Calibrate(const CalibrateOptions& options,
                                      const MeasuredModel& measured,
                                      const MeasureProgress& progress) {
  SPINDLE_RETURN_IF_ERROR(CheckTexts(options.texts));
  SPINDLE_ASSIGN_OR_RETURN(const kernels::KernelTable* const kernels, KernelsOf(options.load));
  SPINDLE_ASSIGN_OR_RETURN(const model::ModelConfig shape, ShapeOf(options.load, *measured.file));
  SPINDLE_ASSIGN_OR_RETURN(const std::vector<uint32_t> contexts,
                           ContextsOf(options, shape.max_model_len));
  const kv::KvGeometry geometry = config::GeometryOf(options.load, shape);
  SPINDLE_ASSIGN_OR_RETURN(const engine::SparseDecode decode,
                           DecodeOf(options, geometry, measured.algorithms));
  SPINDLE_ASSIGN_OR_RETURN(const std::vector<eval::TextWindow> windows,
                           WindowsOf(options, measured.tokenizer, contexts.back()));
  SPINDLE_ASSIGN_OR_RETURN(const std::unique_ptr<eval::EvalModel> model,
                           LoadEvalModel(options.load,
                                         measured,
                                         *kernels,
                                         KvBytes(options, contexts.back(), geometry),
                                         options.batch,
                                         progress));
  SPINDLE_ASSIGN_OR_RETURN(
      const std::vector<eval::StepTimes> times,
      eval::TimeSteps(
          *model,
          *decode.policy,
          windows,
          {.contexts = contexts, .num_steps = options.num_steps, .num_rounds = options.num_rounds},
          SteadyClock(),
          [&progress](double fraction) { progress("timing steps", fraction); }));
  engine::SparseRequest preset = config::SparseDefaults(options.load);
  preset.min_context = eval::Crossover(times);
  std::string text = TimesText(options, decode.algorithm, times);
  if (!preset.min_context.has_value()) {
    text += fmt::format("# {} is not quicker at {} tokens.\n", decode.algorithm, contexts.back());
    preset = {.algorithm = "dense"};
  }
  text += config::SparsePresetText(preset);
  if (!options.output.empty()) {
    SPINDLE_RETURN_IF_ERROR(WriteTextFile(options.output, text));
  }
  return text;
}

}  // namespace spindle::cli
