#include <gtest/gtest.h>

#include "config/option_table.h"

namespace spindle::config {
namespace {

constexpr uint64_t kMost = uint64_t{1} << 60;

TEST(ParseBytesTest, KnowsBinaryAndDecimalUnits) {
  EXPECT_EQ(*ParseBytes("512", 0, kMost), 512U);
  EXPECT_EQ(*ParseBytes("1KiB", 0, kMost), 1024U);
  EXPECT_EQ(*ParseBytes("1.5MiB", 0, kMost), 1572864U);
  EXPECT_EQ(*ParseBytes("2GB", 0, kMost), 2000000000U);
}

TEST(ParseBytesTest, RefusesWhatIsNoSize) {
  for (const char* text : {"", "x", "-1", "1XiB", "1 MiB", "nan", "inf", "1e300GiB"}) {
    EXPECT_FALSE(ParseBytes(text, 0, kMost).ok()) << text;
  }
}

TEST(ParseBytesTest, NamesTheRangeWhateverIsWrong) {
  for (const char* text :
       {"x", "4095", "4097", "99999999999TiB", "18446744073709551615", "1e999"}) {
    EXPECT_NE(ParseBytes(text, 4096, 4096).status().message().find("4096..4096 bytes"),
              std::string::npos)
        << text;
  }
  EXPECT_EQ(*ParseBytes("4KiB", 4096, 4096), 4096U);
}

TEST(ParseSecondsTest, PlainNumbersAreSeconds) {
  EXPECT_EQ(*ParseSeconds("2"), std::chrono::seconds(2));
  EXPECT_EQ(*ParseSeconds("1.5"), std::chrono::milliseconds(1500));
  EXPECT_EQ(*ParseSeconds("250ms"), std::chrono::milliseconds(250));
  EXPECT_EQ(*ParseSeconds("2m"), std::chrono::minutes(2));
  EXPECT_EQ(*ParseSeconds("1h"), std::chrono::hours(1));
  EXPECT_FALSE(ParseSeconds("soon").ok());
}

TEST(ParseSecondsTest, NamesTheRangeWhateverIsWrong) {
  EXPECT_EQ(*ParseSeconds("2500000h"), std::chrono::hours(2'500'000));
  for (const char* text : {"soon", "-1", "2500001h", "1e300", "0"}) {
    const auto status = ParseSeconds(text, std::chrono::milliseconds(1)).status();
    EXPECT_NE(status.message().find("0.001s..2500000h"), std::string::npos) << text;
  }
}

TEST(ParseBoolTest, KnowsThreeSpellings) {
  for (const char* text : {"true", "1", "on"}) {
    EXPECT_TRUE(*ParseBool(text)) << text;
  }
  for (const char* text : {"false", "0", "off"}) {
    EXPECT_FALSE(*ParseBool(text)) << text;
  }
  EXPECT_FALSE(ParseBool("yes").ok());
}

TEST(AsWrittenTest, IsTheShortestNumberThatGivesTheFloat) {
  EXPECT_EQ(AsWritten(0.7F), 0.7);
  EXPECT_EQ(AsWritten(1.0F), 1.0);
  EXPECT_EQ(AsWritten(1e-3F), 1e-3);
  EXPECT_EQ(AsWritten(0.0F), 0.0);
}

TEST(ParseUintTest, NamesTheRange) {
  EXPECT_EQ(*ParseUint("7", 1, 10), 7U);
  const auto status = ParseUint("11", 1, 10).status();
  EXPECT_NE(status.message().find("1..10"), std::string::npos);
  EXPECT_FALSE(ParseUint("5x", 1, 10).ok());
  EXPECT_FALSE(ParseUint("-5", 0, 10).ok());
}

}  // namespace
}  // namespace spindle::config
