// Line charts as SVG text: axes with round numbers, a grid, lines with markers, a legend. No
// script, no font file, no reference to anything outside. Thread-safety: pure function.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace spindle::kv::sim {

struct ChartSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // ascending x, finite
  bool has_markers = true;                        // false for dense curves
};

struct LineChart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<ChartSeries> series;
};

// Both axes are linear, x from the smallest to the largest value, y from 0 or below.
[[nodiscard]] std::string RenderSvg(const LineChart& chart);

}  // namespace spindle::kv::sim
