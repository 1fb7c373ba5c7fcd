#include "cli/eval.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/status_macros.h"
#include "cli/kv_sim_report.h"
#include "cli/model_options.h"
#include "config/memory_plan.h"
#include "eval/eval_model.h"
#include "eval/forced_run.h"
#include "eval/free_run.h"
#include "eval/policies.h"
#include "eval/report.h"
#include "eval/task_run.h"
#include "eval/texts.h"
#include "kernels/registry.h"
#include "kv/kv_store.h"

namespace spindle::cli {
namespace {

constexpr uint32_t kLeastContext = 256;
constexpr uint32_t kExactSteps = 16;
// Room behind the context for questions and answers of tasks.
constexpr uint32_t kTaskTokens = 256;
constexpr const char* kNone = "none";

// The parsed form of the options.
struct Plan {
  std::vector<uint32_t> contexts;
  eval::PolicyOptions policies;
  eval::TaskOptions tasks;
};

absl::StatusOr<Plan> MakePlan(const EvalOptions& options) {
  Plan plan;
  SPINDLE_ASSIGN_OR_RETURN(plan.contexts, ParseContexts(options.contexts, kLeastContext));
  const absl::StatusOr<std::vector<double>> budgets = eval::ParseBudgets(options.budgets);
  if (!budgets.ok()) {
    return absl::InvalidArgumentError("--budgets: " + std::string(budgets.status().message()));
  }
  plan.policies = {.algorithms = SplitList(options.algorithms),
                   .budgets = *budgets,
                   .prefills = SplitList(options.prefills),
                   .sink_tokens = options.sink_tokens,
                   .recent_tokens = options.recent_tokens,
                   .mass_stride = options.mass_stride,
                   .seed = options.seed};
  plan.tasks.num_samples = options.num_samples;
  plan.tasks.seed = options.seed;
  plan.tasks.generated_tokens = options.generated_tokens;
  if (options.tasks != kNone) {
    for (const std::string& name : SplitList(options.tasks)) {
      const absl::StatusOr<const eval::TaskFamily*> family = eval::FindTaskFamily(name);
      if (!family.ok()) {
        return absl::InvalidArgumentError("--tasks: " + std::string(family.status().message()));
      }
      plan.tasks.families.push_back(*family);
    }
  }
  if (plan.contexts.empty() || (options.num_windows == 0 && plan.tasks.families.empty())) {
    return absl::InvalidArgumentError(
        "nothing to do: --context is empty, or --windows is 0 and --tasks is none");
  }
  return plan;
}

absl::Status CheckContexts(const EvalOptions& options, const Plan& plan, uint32_t max_model_len) {
  const uint32_t behind =
      std::max(options.num_windows > 0 ? std::max(options.num_steps, options.num_free_steps) : 0U,
               plan.tasks.families.empty() ? 0U : kTaskTokens);
  for (const uint32_t context : plan.contexts) {
    if (context + behind > max_model_len) {
      return absl::InvalidArgumentError(
          fmt::format("--context must be in [{}, {}]: the model's {} tokens less the {} that are "
                      "decoded, got {}",
                      kLeastContext,
                      max_model_len > behind ? max_model_len - behind : 0,
                      max_model_len,
                      behind,
                      context));
    }
    SPINDLE_RETURN_IF_ERROR(eval::CheckTaskOptions(plan.tasks, context));
  }
  return absl::OkStatus();
}

// KV of the longest context with all forks behind it.
uint64_t KvBytes(const EvalOptions& options,
                 const Plan& plan,
                 size_t num_policies,
                 const kv::KvGeometry& geometry) {
  const uint32_t context = *std::max_element(plan.contexts.begin(), plan.contexts.end());
  const uint64_t behind =
      kv::KvStore::StripesFor(std::max(
          {options.num_steps, options.num_free_steps, options.generated_tokens + kTaskTokens})) +
      2;
  // The context once, and for each sparse prefill; two forks per policy, one to be forced and one
  // to answer.
  const uint64_t stripes = (1 + plan.policies.prefills.size()) * kv::KvStore::StripesFor(context) +
                           2 * (uint64_t{num_policies} + 4) * behind;
  return stripes * geometry.stripe_bytes();
}

class Evaluation {
 public:
  Evaluation(const EvalOptions& options,
             const Plan& plan,
             const text::Tokenizer& tokenizer,
             std::span<const eval::EvalPolicy> policies,
             const MeasureProgress& progress)
      : options_(options),
        plan_(plan),
        tokenizer_(tokenizer),
        policies_(policies),
        progress_(progress) {}

  // Adds to the summary.
  absl::Status Run(eval::EvalModel& model, eval::EvalSummary* summary) {
    if (options_.num_windows > 0) {
      SPINDLE_RETURN_IF_ERROR(RunTexts(model, summary));
    }
    const std::vector<const eval::EvalPolicy*> policies = OfTasks();
    summary->generated_tokens = options_.generated_tokens;
    for (const uint32_t context : plan_.contexts) {
      SPINDLE_ASSIGN_OR_RETURN(const std::vector<eval::TaskCell> cells,
                               eval::RunTasks(model,
                                              tokenizer_,
                                              policies,
                                              plan_.tasks,
                                              context,
                                              Show(fmt::format("tasks at {}", context))));
      for (const eval::TaskCell& cell : cells) {
        summary->tasks.push_back(eval::Summarise(cell, policies));
      }
    }
    return absl::OkStatus();
  }

 private:
  [[nodiscard]] eval::RunProgress Show(const std::string& what) const {
    return [this, what](double fraction) { progress_(what, fraction); };
  }

  // Chance finds no needle.
  [[nodiscard]] std::vector<const eval::EvalPolicy*> OfTasks() const {
    std::vector<const eval::EvalPolicy*> chosen;
    for (const eval::EvalPolicy& policy : policies_) {
      if (policy.role != eval::PolicyRole::kRandom) {
        chosen.push_back(&policy);
      }
    }
    return chosen;
  }

  absl::Status RunTexts(eval::EvalModel& model, eval::EvalSummary* summary) {
    const uint32_t longest = *std::max_element(plan_.contexts.begin(), plan_.contexts.end());
    const uint32_t window_tokens = longest + options_.num_steps;
    SPINDLE_ASSIGN_OR_RETURN(
        const std::vector<eval::Text> texts,
        ReadEvalTexts(options_.texts, options_.seed, options_.num_windows, window_tokens));
    for (const eval::Text& text : texts) {
      summary->texts.push_back(text.name);
    }
    SPINDLE_ASSIGN_OR_RETURN(
        const std::vector<eval::TextWindow> windows,
        eval::CutWindows(texts, tokenizer_, options_.num_windows, window_tokens));
    SPINDLE_ASSIGN_OR_RETURN(summary->exactness,
                             eval::CheckExactness(model,
                                                  policies_,
                                                  windows.front(),
                                                  plan_.contexts.front(),
                                                  std::min(kExactSteps, options_.num_steps)));
    for (const uint32_t context : plan_.contexts) {
      SPINDLE_ASSIGN_OR_RETURN(const eval::ForcedResult result,
                               eval::RunForced(model,
                                               policies_,
                                               windows,
                                               context,
                                               options_.num_steps,
                                               Show(fmt::format("texts at {}", context))));
      summary->forced.push_back(eval::Summarise(result, policies_, windows, options_.seed));
    }
    return options_.num_free_steps > 0 ? RunFreely(model, windows, summary) : absl::OkStatus();
  }

  absl::Status RunFreely(eval::EvalModel& model,
                         std::span<const eval::TextWindow> windows,
                         eval::EvalSummary* summary) {
    const std::vector<const eval::EvalPolicy*> policies = OfTasks();
    for (const uint32_t context : plan_.contexts) {
      SPINDLE_ASSIGN_OR_RETURN(const eval::FreeResult result,
                               eval::RunFree(model,
                                             policies,
                                             windows,
                                             context,
                                             options_.num_free_steps,
                                             Show(fmt::format("free answers at {}", context))));
      summary->free.push_back(eval::Summarise(result, policies));
    }
    return absl::OkStatus();
  }

  const EvalOptions& options_;
  const Plan& plan_;
  const text::Tokenizer& tokenizer_;
  const std::span<const eval::EvalPolicy> policies_;
  const MeasureProgress& progress_;
};

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? absl::UnavailableError("--output " + path + ": " + error.message())
               : absl::OkStatus();
}

}  // namespace

bool EvalOutcome::passed() const {
  return std::all_of(
      gates.begin(), gates.end(), [](const eval::GateResult& gate) { return gate.passed; });
}

void AddEvalOptions(config::OptionTable& table, EvalOptions& options) {
  config::AddModelOptions(table, options.load);
  config::AddComputeOptions(table, options.load);
  config::AddAlgorithmOptions(table, options.load);
  table.TextList("text",
                 "FILE",
                 &options.texts,
                 "text to decode, or the word stories: made-up ones, also the default");
  table.Text("context", "N,…", &options.contexts, "tokens that are there when decoding begins");
  table.Text("algorithms", "NAME,…", &options.algorithms, "what is compared with dense attention");
  table.Text("budgets", "SHARE,…", &options.budgets, "of the context that is selected");
  table.Text("prefill",
             "NAME[:KNOB=VALUE…],…",
             &options.prefills,
             "sparse prefill of the context, compared with dense as well");
  table.Uint32("windows", &options.num_windows, 0, 4096, "pieces of text; 0: none");
  table.Uint32("steps", &options.num_steps, 1, 65536, "tokens decoded per piece");
  table.Text("tasks", "FAMILY,…|none", &options.tasks, "retrieval tasks");
  table.Uint32("samples", &options.num_samples, 1, 4096, "of each task family and context");
  table.Uint32("generated",
               &options.generated_tokens,
               0,
               65536,
               "tokens at the end of a task's context that are decoded, and hold what is asked "
               "for; not cwe");
  table.Uint32("free", &options.num_free_steps, 0, 65536, "tokens decoded greedily per piece");
  table.Uint32("sink", &options.sink_tokens, 0, 65536, "first tokens, always attended");
  table.Uint32("recent", &options.recent_tokens, 1, 65536, "last tokens, always attended");
  table.Uint32("mass-every", &options.mass_stride, 1, 65536, "steps per exact attention mass");
  table.Uint32("seed", &options.seed, 0, UINT32_MAX, "seed").aliases = {"-s"};
  table.Text("output", "FOLDER", &options.output, "folder for report.json and report.md");
  table.Switch("gates", &options.gates, "check the quality gates; exit code 1 when one fails");
}

absl::StatusOr<EvalOutcome> Eval(const EvalOptions& options,
                                 const MeasuredModel& measured,
                                 const MeasureProgress& progress) {
  SPINDLE_ASSIGN_OR_RETURN(const Plan plan, MakePlan(options));
  SPINDLE_RETURN_IF_ERROR(CheckTexts(options.texts));
  SPINDLE_ASSIGN_OR_RETURN(const kernels::KernelTable* const kernels, KernelsOf(options.load));
  SPINDLE_ASSIGN_OR_RETURN(const model::ModelConfig shape, ShapeOf(options.load, *measured.file));
  SPINDLE_RETURN_IF_ERROR(CheckContexts(options, plan, shape.max_model_len));
  const kv::KvGeometry geometry = config::GeometryOf(options.load, shape);
  SPINDLE_ASSIGN_OR_RETURN(const std::vector<eval::EvalPolicy> policies,
                           eval::MakePolicies(plan.policies, geometry, measured.algorithms));
  if (!options.output.empty()) {
    SPINDLE_RETURN_IF_ERROR(MakeFolder(options.output));
  }
  SPINDLE_ASSIGN_OR_RETURN(const std::unique_ptr<eval::EvalModel> model,
                           LoadEvalModel(options.load,
                                         measured,
                                         *kernels,
                                         KvBytes(options, plan, policies.size(), geometry),
                                         static_cast<uint32_t>(policies.size()),
                                         progress));
  EvalOutcome outcome;
  outcome.summary.model = shape.name;
  outcome.summary.kernels = kernels->name;
  outcome.summary.exact_arithmetic = options.load.model.mode == kernels::ComputeMode::kExact;
  outcome.summary.seed = options.seed;
  SPINDLE_RETURN_IF_ERROR(Evaluation(options, plan, measured.tokenizer, policies, progress)
                              .Run(*model, &outcome.summary));
  if (options.gates) {
    outcome.gates = eval::CheckGates(outcome.summary);
  }
  outcome.report = eval::RenderMarkdown(outcome.summary, outcome.gates);
  if (!options.output.empty()) {
    const std::filesystem::path folder = options.output;
    SPINDLE_RETURN_IF_ERROR(WriteTextFile((folder / "report.json").string(),
                                          eval::RenderJson(outcome.summary, outcome.gates)));
    SPINDLE_RETURN_IF_ERROR(WriteTextFile((folder / "report.md").string(), outcome.report));
  }
  return outcome;
}

}  // namespace spindle::cli
