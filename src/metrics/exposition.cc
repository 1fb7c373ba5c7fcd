#include "metrics/exposition.h"

#include <cmath>
#include <iterator>

#include <fmt/format.h>

namespace spindle::metrics {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr std::string_view kTotal = "_total";

std::string Escape(std::string_view text, bool quotes) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\n') {
      escaped += "\\n";
      continue;
    }
    if (c == '\\' || (c == '"' && quotes)) {
      escaped += '\\';
    }
    escaped += c;
  }
  return escaped;
}

// The shortest decimal that reads back as `value`.
std::string Number(double value) {
  if (std::isinf(value)) {
    return value > 0 ? "+Inf" : "-Inf";
  }
  return std::isnan(value) ? "NaN" : fmt::format("{}", value);
}

void AppendSample(const std::string& name,
                  const ClientMetric& metric,
                  const std::string& extra_label,
                  double value,
                  std::string* out) {
  *out += name;
  std::string labels;
  for (const auto& label : metric.label) {
    fmt::format_to(std::back_inserter(labels),
                   "{}{}=\"{}\"",
                   labels.empty() ? "" : ",",
                   label.name,
                   Escape(label.value, /*quotes=*/true));
  }
  if (!extra_label.empty()) {
    labels += (labels.empty() ? "" : ",") + extra_label;
  }
  if (!labels.empty()) {
    *out += "{" + labels + "}";
  }
  *out += " " + Number(value) + "\n";
}

void AppendHistogram(const std::string& name, const ClientMetric& metric, std::string* out) {
  for (const auto& bucket : metric.histogram.bucket) {
    AppendSample(name + "_bucket",
                 metric,
                 "le=\"" + Number(bucket.upper_bound) + "\"",
                 static_cast<double>(bucket.cumulative_count),
                 out);
  }
  AppendSample(
      name + "_count", metric, "", static_cast<double>(metric.histogram.sample_count), out);
  AppendSample(name + "_sum", metric, "", metric.histogram.sample_sum, out);
}

// A family's text. `family_name` is what HELP and TYPE call it; samples of a counter always end in
// _total.
void AppendFamily(const MetricFamily& family,
                  const std::string& family_name,
                  bool escape_help_quotes,
                  std::string* out) {
  const bool counter = family.type == MetricType::Counter;
  const bool histogram = family.type == MetricType::Histogram;
  fmt::format_to(std::back_inserter(*out),
                 "# HELP {} {}\n# TYPE {} {}\n",
                 family_name,
                 Escape(family.help, escape_help_quotes),
                 family_name,
                 counter ? "counter" : (histogram ? "histogram" : "gauge"));
  for (const ClientMetric& metric : family.metric) {
    if (histogram) {
      AppendHistogram(family.name, metric, out);
    } else {
      AppendSample(
          family.name, metric, "", counter ? metric.counter.value : metric.gauge.value, out);
    }
  }
}

}  // namespace

std::string PrometheusText(const std::vector<MetricFamily>& families) {
  std::string out;
  for (const MetricFamily& family : families) {
    AppendFamily(family, family.name, /*escape_help_quotes=*/false, &out);
  }
  return out;
}

std::string OpenMetricsText(const std::vector<MetricFamily>& families) {
  std::string out;
  for (const MetricFamily& family : families) {
    std::string name = family.name;
    if (family.type == MetricType::Counter && name.ends_with(kTotal)) {
      name.resize(name.size() - kTotal.size());
    }
    AppendFamily(family, name, /*escape_help_quotes=*/true, &out);
  }
  return out + "# EOF\n";
}

}  // namespace spindle::metrics
