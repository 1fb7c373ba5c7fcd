#include "kv/sim/line_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

namespace spindle::kv::sim {
namespace {

constexpr double kWidth = 860;
constexpr double kHeight = 480;
constexpr double kLeft = 70;
constexpr double kRight = 180;  // legend
constexpr double kTop = 44;
constexpr double kBottom = 56;
constexpr int kTicks = 8;  // about

// Told apart by people who do not see all colours (Okabe and Ito), then greys.
constexpr std::array<std::string_view, 10> kColours = {"#0072b2",
                                                       "#d55e00",
                                                       "#009e73",
                                                       "#cc79a7",
                                                       "#e69f00",
                                                       "#56b4e9",
                                                       "#000000",
                                                       "#8c564b",
                                                       "#7f7f7f",
                                                       "#bcbd22"};

std::string Escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// 1, 2 or 5 times a power of ten, so that about kTicks of them cover the range.
double TickStep(double range) {
  const double raw = range / kTicks;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) {
      return factor * power;
    }
  }
  return 10.0 * power;
}

struct Axis {
  double low;
  double high;
  double step;

  // Place of a value between the ends, 0 … 1.
  [[nodiscard]] double At(double value) const { return (value - low) / (high - low); }
};

Axis MakeAxis(double low, double high, bool round_ends) {
  if (!(high > low)) {
    high = low + 1;
  }
  const double step = TickStep(high - low);
  if (round_ends) {
    low = std::floor(low / step) * step;
    high = std::ceil(high / step) * step;
  }
  return {low, high, step};
}

struct Frame {
  Axis x;
  Axis y;

  [[nodiscard]] double X(double value) const {
    return kLeft + x.At(value) * (kWidth - kLeft - kRight);
  }

  [[nodiscard]] double Y(double value) const {
    return kHeight - kBottom - y.At(value) * (kHeight - kTop - kBottom);
  }
};

Frame MakeFrame(const LineChart& chart) {
  double x_low = 0;
  double x_high = 1;
  double y_low = 0;
  double y_high = 0;
  bool is_first = true;
  for (const ChartSeries& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      x_low = is_first ? x : std::min(x_low, x);
      x_high = is_first ? x : std::max(x_high, x);
      y_low = std::min(y_low, y);
      y_high = std::max(y_high, y);
      is_first = false;
    }
  }
  return {MakeAxis(x_low, x_high, /*round_ends=*/false), MakeAxis(y_low, y_high, true)};
}

void DrawAxes(const LineChart& chart, const Frame& frame, std::string* out) {
  const auto add = std::back_inserter(*out);
  const double x_end = kWidth - kRight;
  const double y_end = kHeight - kBottom;
  for (double tick = std::ceil(frame.x.low / frame.x.step) * frame.x.step;
       tick <= frame.x.high + frame.x.step * 1e-9;
       tick += frame.x.step) {
    const double x = frame.X(tick);
    fmt::format_to(add,
                   "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" class=\"grid\"/>"
                   "<text x=\"{0:.1f}\" y=\"{3}\" class=\"mid\">{4:g}</text>\n",
                   x,
                   kTop,
                   y_end,
                   y_end + 18,
                   tick);
  }
  for (int i = 0; frame.y.low + i * frame.y.step <= frame.y.high + frame.y.step * 1e-9; ++i) {
    const double tick = frame.y.low + i * frame.y.step;
    const double y = frame.Y(tick);
    fmt::format_to(add,
                   "<line x1=\"{1}\" y1=\"{0:.1f}\" x2=\"{2}\" y2=\"{0:.1f}\" class=\"grid\"/>"
                   "<text x=\"{3}\" y=\"{4:.1f}\" class=\"end\">{5:g}</text>\n",
                   y,
                   kLeft,
                   x_end,
                   kLeft - 6,
                   y + 4,
                   tick);
  }
  fmt::format_to(add,
                 "<path d=\"M{0} {1}V{2}H{3}\" class=\"axis\"/>\n"
                 "<text x=\"{4}\" y=\"24\" class=\"title\">{5}</text>\n"
                 "<text x=\"{4}\" y=\"{6}\" class=\"mid\">{7}</text>\n"
                 "<text transform=\"translate(20 {8})rotate(-90)\" class=\"mid\">{9}</text>\n",
                 kLeft,
                 kTop,
                 y_end,
                 x_end,
                 (kLeft + x_end) / 2,
                 Escape(chart.title),
                 kHeight - 16,
                 Escape(chart.x_label),
                 (kTop + y_end) / 2,
                 Escape(chart.y_label));
}

void DrawSeries(const ChartSeries& series, size_t number, const Frame& frame, std::string* out) {
  const auto add = std::back_inserter(*out);
  const std::string_view colour = kColours[number % kColours.size()];
  // Dashes tell series apart once the colours are used up.
  const std::string_view dashes = number < kColours.size() ? "" : " stroke-dasharray=\"6 3\"";
  fmt::format_to(
      add, "<g stroke=\"{0}\" fill=\"{0}\"{1}><polyline fill=\"none\" points=\"", colour, dashes);
  for (const auto& [x, y] : series.points) {
    fmt::format_to(add, "{:.1f},{:.1f} ", frame.X(x), frame.Y(y));
  }
  *out += "\"/>";
  if (series.has_markers) {
    for (const auto& [x, y] : series.points) {
      fmt::format_to(add, "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>", frame.X(x), frame.Y(y));
    }
  }
  const double legend_x = kWidth - kRight + 16;
  const double legend_y = kTop + 12 + 20 * static_cast<double>(number);
  fmt::format_to(add,
                 "<line x1=\"{0}\" y1=\"{1}\" x2=\"{2}\" y2=\"{1}\"/></g>"
                 "<text x=\"{3}\" y=\"{4}\">{5}</text>\n",
                 legend_x,
                 legend_y,
                 legend_x + 24,
                 legend_x + 30,
                 legend_y + 4,
                 Escape(series.name));
}

}  // namespace

std::string RenderSvg(const LineChart& chart) {
  const Frame frame = MakeFrame(chart);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\">\n"
      "<style>text{{font:13px sans-serif;fill:#222}}.mid{{text-anchor:middle}}"
      ".end{{text-anchor:end}}.title{{text-anchor:middle;font-weight:bold}}"
      ".grid{{stroke:#ddd}}.axis{{stroke:#222;fill:none}}polyline{{stroke-width:1.8}}</style>\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
      kWidth,
      kHeight);
  DrawAxes(chart, frame, &out);
  for (size_t i = 0; i < chart.series.size(); ++i) {
    DrawSeries(chart.series[i], i, frame, &out);
  }
  out += "</svg>\n";
  return out;
}

}  // namespace spindle::kv::sim
