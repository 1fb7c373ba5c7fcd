#include "cli/kv_sim_report.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "kv/sim/line_chart.h"

namespace spindle::cli {
namespace {

using kv::sim::HitCount;
using nlohmann::ordered_json;

constexpr std::string_view kBelady = "belady";

// Row of Belady, or nothing to compare with.
const std::vector<HitCount>* BestPossible(const KvSimReport& report) {
  const auto found = std::find(report.policies.begin(), report.policies.end(), kBelady);
  return found == report.policies.end()
             ? nullptr
             : &report.counts[static_cast<size_t>(std::distance(report.policies.begin(), found))];
}

// In frames or units; whole where it is not a mean.
ordered_json CapacityOf(const KvSimColumn& column) {
  if (column.x == 0) {
    return column.label;
  }
  return column.ratio.has_value() ? ordered_json(column.x)
                                  : ordered_json(static_cast<uint64_t>(column.x));
}

}  // namespace

std::string RenderTable(const KvSimReport& report) {
  std::string out = report.title + "\n";
  const auto add = std::back_inserter(out);
  std::vector<KvSimFact> facts = report.facts;
  if (report.comparison.has_value()) {
    const auto [pages, differences] = *report.comparison;
    facts.push_back({"hits and misses as recorded",
                     pages == 0 ? "not in the trace"
                                : fmt::format("{} of {} pages", pages - differences, pages)});
  }
  size_t fact_width = 0;
  for (const KvSimFact& fact : facts) {
    fact_width = std::max(fact_width, fact.label.size());
  }
  for (const KvSimFact& fact : facts) {
    fmt::format_to(add, "  {:<{}}  {}\n", fact.label, fact_width, fact.text);
  }
  constexpr std::string_view kHead = "hit ratio, %";
  size_t name_width = kHead.size();
  for (const std::string& policy : report.policies) {
    name_width = std::max(name_width, policy.size());
  }
  fmt::format_to(add, "\n{:<{}}", kHead, name_width);
  for (const KvSimColumn& column : report.columns) {
    fmt::format_to(add, "  {:>{}}", column.label, std::max<size_t>(column.label.size(), 5));
  }
  out += '\n';
  for (size_t row = 0; row < report.policies.size(); ++row) {
    fmt::format_to(add, "{:<{}}", report.policies[row], name_width);
    for (size_t i = 0; i < report.columns.size(); ++i) {
      fmt::format_to(add,
                     "  {:>{}.1f}",
                     100.0 * report.counts[row][i].ratio(),
                     std::max<size_t>(report.columns[i].label.size(), 5));
    }
    out += '\n';
  }
  return out;
}

std::string RenderJson(const KvSimReport& report) {
  ordered_json out;
  out["title"] = report.title;
  for (const KvSimFact& fact : report.facts) {
    for (const auto& [name, value] : fact.values) {
      out["trace"][name] = std::visit([](const auto& held) { return ordered_json(held); }, value);
    }
  }
  const std::vector<HitCount>* best = BestPossible(report);
  for (size_t row = 0; row < report.policies.size(); ++row) {
    for (size_t i = 0; i < report.columns.size(); ++i) {
      const HitCount& count = report.counts[row][i];
      ordered_json result;
      result["policy"] = report.policies[row];
      if (report.columns[i].ratio.has_value()) {
        result["ratio"] = *report.columns[i].ratio;
      }
      result["capacity"] = CapacityOf(report.columns[i]);
      result["accesses"] = count.accesses;
      result["hits"] = count.hits;
      result["hit_ratio"] = count.ratio();
      if (best != nullptr) {
        result["regret"] = (*best)[i].ratio() - count.ratio();
      }
      if (report.page_bytes != 0) {
        result["fetched_bytes"] = (count.accesses - count.hits) * report.page_bytes;
      }
      if (!report.layer_counts.empty() && report.layer_counts[row][i].size() > 1) {
        for (const HitCount& of_layer : report.layer_counts[row][i]) {
          result["layer_hit_ratios"].push_back(
              of_layer.accesses == 0 ? ordered_json() : ordered_json(of_layer.ratio()));
        }
      }
      out["results"].push_back(std::move(result));
    }
  }
  if (report.comparison.has_value()) {
    out["recorded"] = {{"compared_pages", report.comparison->pages},
                       {"differences", report.comparison->differences}};
  }
  for (const auto& [pages, percent] : report.exact_curve) {
    out["exact_lru_curve"].push_back({{"pages", pages}, {"hit_ratio", percent / 100.0}});
  }
  return DumpJson(out, 2) + "\n";
}

std::string RenderPlot(const KvSimReport& report) {
  kv::sim::LineChart chart;
  chart.title = report.title;
  chart.x_label = report.x_label;
  chart.y_label = "miss ratio, %";
  if (!report.exact_curve.empty()) {
    kv::sim::ChartSeries& curve = chart.series.emplace_back();
    curve.name = "lru, one pass";
    curve.has_markers = false;
    for (const auto& [pages, percent] : report.exact_curve) {
      curve.points.emplace_back(pages, 100.0 - percent);
    }
  }
  for (size_t row = 0; row < report.policies.size(); ++row) {
    kv::sim::ChartSeries& series = chart.series.emplace_back();
    series.name = report.policies[row];
    for (size_t i = 0; i < report.columns.size(); ++i) {
      series.points.emplace_back(report.columns[i].x,
                                 100.0 - 100.0 * report.counts[row][i].ratio());
    }
    std::sort(series.points.begin(), series.points.end());
  }
  return RenderSvg(chart);
}

absl::Status WriteTextFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file ? absl::OkStatus()
              : absl::UnavailableError(path + ": " + std::generic_category().message(errno));
}

}  // namespace spindle::cli
