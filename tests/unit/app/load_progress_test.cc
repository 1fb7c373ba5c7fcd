#include "app/load_progress.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spindle::app {
namespace {

std::string Shown(bool terminal, const std::vector<double>& fractions) {
  ::testing::internal::CaptureStderr();
  {
    LoadProgressBar bar("loading", terminal);
    for (const double fraction : fractions) {
      bar.Show(fraction);
    }
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST(LoadProgressBar, ATerminalSeesABarThatGoesAway) {
  const std::string shown = Shown(true, {0.0, 0.5, 1.0});
  EXPECT_NE(shown.find("loading [" + std::string(40, '.') + "]   0 %"), std::string::npos);
  EXPECT_NE(shown.find("[" + std::string(20, '#') + std::string(20, '.') + "]  50 %"),
            std::string::npos);
  EXPECT_NE(shown.find("[" + std::string(40, '#') + "] 100 %"), std::string::npos);
  EXPECT_EQ(shown.substr(shown.size() - 4), "\r\033[K");
}

TEST(LoadProgressBar, ItIsDrawnOncePerPerCent) {
  EXPECT_EQ(Shown(true, {0.501, 0.502, 0.503}), Shown(true, {0.5}));
}

TEST(LoadProgressBar, NobodyElseSeesAnything) {
  EXPECT_EQ(Shown(false, {0.0, 0.5, 1.0}), "");
  EXPECT_EQ(Shown(true, {}), "");
}

}  // namespace
}  // namespace spindle::app
