#include "kv/sim/line_chart.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spindle::kv::sim {
namespace {

using testing::HasSubstr;
using testing::Not;

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST(LineChart, DrawsSeriesInsideItsFrame) {
  const std::string svg = RenderSvg({.title = "title",
                                     .x_label = "pages",
                                     .y_label = "misses",
                                     .series = {{"first", {{0, 100}, {50, 25}, {100, 0}}, true},
                                                {"second", {{0, 50}, {100, 50}}, false}}});
  EXPECT_EQ(svg.rfind("<svg xmlns=\"http://www.w3.org/2000/svg\"", 0), 0U);
  EXPECT_THAT(svg, HasSubstr("</svg>\n"));
  // Left and top of the frame at 70, 44; right and bottom at 680, 424.
  EXPECT_THAT(svg, HasSubstr("points=\"70.0,44.0 375.0,329.0 680.0,424.0 \""));
  EXPECT_THAT(svg, HasSubstr("points=\"70.0,234.0 680.0,234.0 \""));
  EXPECT_EQ(Count(svg, "<circle"), 3U);
  for (const char* text :
       {">title<", ">pages<", ">misses<", ">first<", ">second<", ">100<", ">20<"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  EXPECT_EQ(Count(svg, "<g "), Count(svg, "</g>"));
  EXPECT_EQ(Count(svg, "<text"), Count(svg, "</text>"));
}

TEST(LineChart, EscapesNames) {
  const std::string svg =
      RenderSvg({.title = "a<b>&c", .x_label = "", .y_label = "", .series = {}});
  EXPECT_THAT(svg, HasSubstr("a&lt;b&gt;&amp;c"));
  EXPECT_THAT(svg, Not(HasSubstr("a<b>")));
}

TEST(LineChart, SurvivesFewPoints) {
  for (const ChartSeries& series :
       {ChartSeries{"none", {}, true}, ChartSeries{"one", {{3, 0}}, true}}) {
    const std::string svg =
        RenderSvg({.title = "", .x_label = "", .y_label = "", .series = {series}});
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
  }
}

}  // namespace
}  // namespace spindle::kv::sim
