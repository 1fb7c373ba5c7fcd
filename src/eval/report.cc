#include "eval/report.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace spindle::eval {
namespace {

using nlohmann::ordered_json;

constexpr size_t kWorstHeads = 5;

ordered_json ToJson(const Interval& interval) {
  return {interval.low, interval.high};
}

ordered_json ToJson(const PolicySummary& policy) {
  return {{"policy", policy.name},
          {"role", NameOf(policy.role)},
          {"algorithm", policy.algorithm},
          {"budget", policy.budget},
          {"kl_mean", policy.kl},
          {"kl_interval", ToJson(policy.kl_interval)},
          {"kl_median", policy.kl_median},
          {"kl_p99", policy.kl_p99},
          {"kl_max", policy.kl_max},
          {"top1", policy.top1},
          {"top1_interval", ToJson(policy.top1_interval)},
          {"top5_overlap", policy.top5_overlap},
          {"nll", policy.nll},
          {"ppl_change", policy.ppl_change},
          {"ppl_interval", ToJson(policy.ppl_interval)},
          {"rms_probability_change", policy.rms_probability_change},
          {"attended_share", policy.attended_share},
          {"attended_tokens", policy.attended_tokens},
          {"mass_median", policy.mass_median},
          {"mass_p5", policy.mass_p5},
          {"selected_mass_median", policy.selected_mass_median},
          {"mass_overestimate",
           policy.overestimate.has_value() ? ordered_json(*policy.overestimate)
                                           : ordered_json(nullptr)},
          {"overlap", policy.overlap},
          {"window_kl", policy.window_kl},
          {"block_kl", policy.block_kl},
          {"head_mass", policy.head_mass}};
}

ordered_json ToJson(const ForcedSummary& run) {
  ordered_json policies = ordered_json::array();
  for (const PolicySummary& policy : run.policies) {
    policies.push_back(ToJson(policy));
  }
  return {{"context_tokens", run.context_tokens},
          {"windows", run.num_windows},
          {"steps", run.num_steps},
          {"dense_nll", run.dense_nll},
          {"window_texts", run.window_texts},
          {"policies", std::move(policies)}};
}

ordered_json ToJson(const TaskSummary& task) {
  ordered_json rows = ordered_json::array();
  for (const TaskRow& row : task.rows) {
    rows.push_back({{"policy", row.policy},
                    {"role", NameOf(row.role)},
                    {"algorithm", row.algorithm},
                    {"budget", row.budget},
                    {"nll", row.nll},
                    {"token_accuracy", row.token_accuracy},
                    {"string_score", row.string_score},
                    {"retention", row.retention},
                    {"mcnemar_p", row.mcnemar_p}});
  }
  return {{"family", task.family},
          {"context_tokens", task.context_tokens},
          {"samples", task.num_samples},
          {"control_nll", task.control_nll},
          {"admissible", task.is_admissible},
          {"policies", std::move(rows)}};
}

ordered_json ToJson(const FreeSummary& run) {
  ordered_json rows = ordered_json::array();
  for (const FreeRow& row : run.rows) {
    rows.push_back({{"policy", row.policy},
                    {"role", NameOf(row.role)},
                    {"divergence_median", row.divergence_median},
                    {"distinct_3grams", row.distinct_3grams},
                    {"longest_repeat", row.longest_repeat}});
  }
  return {{"context_tokens", run.context_tokens},
          {"windows", run.num_windows},
          {"steps", run.num_steps},
          {"policies", std::move(rows)}};
}

std::string MassText(const PolicySummary& policy, double mass) {
  return policy.mass_median > 0 ? fmt::format("{:.3f}", mass) : "–";
}

void AddForced(const ForcedSummary& run, std::string* out) {
  const auto add = std::back_inserter(*out);
  fmt::format_to(add,
                 "## Forced decoding at {} tokens\n\n{} windows × {} steps = {} positions; dense "
                 "NLL {:.4f}. Intervals: 95 %, over windows.\n\n",
                 run.context_tokens,
                 run.num_windows,
                 run.num_steps,
                 uint64_t{run.num_windows} * run.num_steps,
                 run.dense_nll);
  *out +=
      "| policy | attended | KL mean | interval | median | p99 | top-1 | top-5 | ΔPPL | RMS Δp | "
      "mass "
      "median | mass p5 | selected mass | estimate − mass | overlap |\n"
      "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
  for (const PolicySummary& policy : run.policies) {
    if (policy.role == PolicyRole::kDense) {
      continue;
    }
    fmt::format_to(
        add,
        "| {} | {:.1f} % | {:.4f} | {:.4f} … {:.4f} | {:.4f} | {:.3f} | {:.1f} % | "
        "{:.1f} % | {:+.2f} % | {:.2f} % | {} | {} | {} | {} | {:.2f} |\n",
        policy.name,
        100 * policy.attended_share,
        policy.kl,
        policy.kl_interval.low,
        policy.kl_interval.high,
        policy.kl_median,
        policy.kl_p99,
        100 * policy.top1,
        100 * policy.top5_overlap,
        100 * policy.ppl_change,
        100 * policy.rms_probability_change,
        MassText(policy, policy.mass_median),
        MassText(policy, policy.mass_p5),
        MassText(policy, policy.selected_mass_median),
        policy.overestimate.has_value() ? fmt::format("{:+.3f}", *policy.overestimate) : "–",
        policy.overlap);
  }
  *out += '\n';
}

void AddTexts(const EvalSummary& summary, const ForcedSummary& run, std::string* out) {
  if (summary.texts.size() < 2) {
    return;
  }
  *out += "| mean KL by text |";
  for (const std::string& text : summary.texts) {
    *out += " " + text + " |";
  }
  *out += "\n|---|";
  for (size_t i = 0; i < summary.texts.size(); ++i) {
    *out += "---:|";
  }
  *out += '\n';
  for (const PolicySummary& policy : run.policies) {
    if (policy.role == PolicyRole::kAlgorithm || policy.role == PolicyRole::kOracle) {
      *out += "| " + policy.name + " |";
      for (const std::string& text : summary.texts) {
        const std::optional<double> kl = run.KlOfText(policy, text);
        *out += kl ? fmt::format(" {:.4f} |", *kl) : " – |";
      }
      *out += '\n';
    }
  }
  *out += '\n';
}

// The heads of which an algorithm covers least, at its smallest budget.
void AddWorstHeads(const ForcedSummary& run, std::string* out) {
  for (const PolicySummary& policy : run.policies) {
    const bool is_smallest = std::none_of(
        run.policies.begin(), run.policies.end(), [&policy](const PolicySummary& other) {
          return other.role == policy.role && other.algorithm == policy.algorithm &&
                 other.budget < policy.budget;
        });
    if (policy.role != PolicyRole::kAlgorithm || !is_smallest || policy.mass_median <= 0) {
      continue;
    }
    std::vector<std::tuple<double, size_t, size_t>> heads;
    for (size_t layer = 0; layer < policy.head_mass.size(); ++layer) {
      for (size_t head = 0; head < policy.head_mass[layer].size(); ++head) {
        if (policy.head_mass[layer][head] >= 0) {
          heads.emplace_back(policy.head_mass[layer][head], layer, head);
        }
      }
    }
    std::sort(heads.begin(), heads.end());
    heads.resize(std::min(heads.size(), kWorstHeads));
    std::string list;
    for (const auto& [mass, layer, head] : heads) {
      list += fmt::format("{}{}.{} ({:.3f})", list.empty() ? "" : ", ", layer, head, mass);
    }
    fmt::format_to(
        std::back_inserter(*out), "Least mass under {}, as layer.head: {}.\n\n", policy.name, list);
  }
}

void AddTasks(const EvalSummary& summary, std::string* out) {
  if (summary.tasks.empty()) {
    return;
  }
  *out += "## Tasks\n\n";
  if (summary.generated_tokens > 0) {
    *out += fmt::format(
        "What is asked for lies among the last {} tokens of the context, which were decoded "
        "too.\n\n",
        summary.generated_tokens);
  }
  *out +=
      "Retention: (control - policy) ÷ (control - dense) in nats per token of the "
      "right "
      "answer. A family that the model cannot do densely is marked, and proves nothing.\n\n"
      "| family | context | policy | string | tokens right | NLL | retention | McNemar p |\n"
      "|---|---:|---|---:|---:|---:|---:|---:|\n";
  for (const TaskSummary& task : summary.tasks) {
    for (const TaskRow& row : task.rows) {
      fmt::format_to(std::back_inserter(*out),
                     "| {}{} | {} | {} | {:.0f} % | {:.0f} % | {:.3f} | {:.3f} | {:.3f} |\n",
                     task.family,
                     task.is_admissible ? "" : " (not solved)",
                     task.context_tokens,
                     row.policy,
                     100 * row.string_score,
                     100 * row.token_accuracy,
                     row.nll,
                     row.retention,
                     row.mcnemar_p);
    }
    fmt::format_to(std::back_inserter(*out),
                   "| {} | {} | no needle, dense; {} samples | | | {:.3f} | | |\n",
                   task.family,
                   task.context_tokens,
                   task.num_samples,
                   task.control_nll);
  }
  *out += '\n';
}

void AddFree(const FreeSummary& run, std::string* out) {
  fmt::format_to(
      std::back_inserter(*out),
      "## Free decoding at {} tokens\n\n{} windows, {} greedy steps each.\n\n"
      "| policy | parts from dense at step, median | distinct 3-grams | longest repeat |\n"
      "|---|---:|---:|---:|\n",
      run.context_tokens,
      run.num_windows,
      run.num_steps);
  for (const FreeRow& row : run.rows) {
    fmt::format_to(std::back_inserter(*out),
                   "| {} | {:.0f} | {:.3f} | {:.1f} |\n",
                   row.policy,
                   row.divergence_median,
                   row.distinct_3grams,
                   row.longest_repeat);
  }
  *out += '\n';
}

void AddGates(std::span<const GateResult> gates, std::string* out) {
  if (gates.empty()) {
    return;
  }
  *out += "## Gates\n\n| | gate | what | measured | bound |\n|---|---|---|---:|---:|\n";
  for (const GateResult& gate : gates) {
    fmt::format_to(std::back_inserter(*out),
                   "| {} | {} | {} | {} | {} |\n",
                   gate.passed ? "pass" : "FAIL",
                   gate.gate,
                   gate.what,
                   gate.value,
                   gate.bound);
  }
  *out += '\n';
}

}  // namespace

std::string RenderJson(const EvalSummary& summary, std::span<const GateResult> gates) {
  ordered_json report = {{"model", summary.model},
                         {"kernels", summary.kernels},
                         {"seed", summary.seed},
                         {"texts", summary.texts},
                         {"forced", ordered_json::array()},
                         {"exactness", ordered_json::array()},
                         {"generated_tokens", summary.generated_tokens},
                         {"tasks", ordered_json::array()},
                         {"free", ordered_json::array()},
                         {"gates", ordered_json::array()}};
  for (const ForcedSummary& run : summary.forced) {
    report["forced"].push_back(ToJson(run));
  }
  for (const ExactnessResult& result : summary.exactness) {
    report["exactness"].push_back({{"algorithm", result.algorithm},
                                   {"steps", result.num_steps},
                                   {"full_budget_equals_dense", result.full_budget_equals_dense},
                                   {"full_budget_error", result.full_budget_error},
                                   {"alone_equals_batched", result.alone_equals_batched}});
  }
  for (const TaskSummary& task : summary.tasks) {
    report["tasks"].push_back(ToJson(task));
  }
  for (const FreeSummary& run : summary.free) {
    report["free"].push_back(ToJson(run));
  }
  for (const GateResult& gate : gates) {
    report["gates"].push_back({{"gate", gate.gate},
                               {"what", gate.what},
                               {"value", gate.value},
                               {"bound", gate.bound},
                               {"passed", gate.passed}});
  }
  return report.dump(1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace) + "\n";
}

std::string RenderMarkdown(const EvalSummary& summary, std::span<const GateResult> gates) {
  std::string out = fmt::format("# Sparse attention on {}\n\nKernels {}, seed {}.{}{}\n\n",
                                summary.model,
                                summary.kernels,
                                summary.seed,
                                summary.texts.empty() ? "" : " Texts: ",
                                fmt::join(summary.texts, ", "));
  for (const ForcedSummary& run : summary.forced) {
    AddForced(run, &out);
    AddTexts(summary, run, &out);
    AddWorstHeads(run, &out);
  }
  for (const FreeSummary& run : summary.free) {
    AddFree(run, &out);
  }
  AddTasks(summary, &out);
  AddGates(gates, &out);
  return out;
}

}  // namespace spindle::eval
