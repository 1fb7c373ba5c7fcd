#include "serving/json_document.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace spindle::serving {
namespace {

struct BadText {
  const char* name;
  std::string text;
  size_t offset;
};

class JsonDocumentRefusal : public testing::TestWithParam<BadText> {};

TEST_P(JsonDocumentRefusal, NamesTheOffset) {
  JsonDocument document;
  const std::optional<JsonError> error = document.Parse(GetParam().text);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->offset, GetParam().offset) << error->problem;
  EXPECT_FALSE(error->problem.empty());
}

INSTANTIATE_TEST_SUITE_P(Texts,
                         JsonDocumentRefusal,
                         testing::Values(BadText{"Empty", "", 0},
                                         BadText{"BlankOnly", " \n", 2},
                                         BadText{"MarkOnly", "\xEF\xBB\xBF", 3},
                                         BadText{"Cut", R"({"model":"smol",)", 16},
                                         BadText{"CutInString", R"({"a":"b)", 7},
                                         BadText{"CutInEscape", R"({"a":"\)", 7},
                                         BadText{"CutInUnicode", R"({"a":"\u00)", 10},
                                         BadText{"NaN", R"({"a":NaN})", 5},
                                         BadText{"Infinity", R"({"a":Infinity})", 5},
                                         BadText{"MinusInfinity", R"({"a":-Infinity})", 6},
                                         BadText{"Comment", R"({/**/"a":1})", 1},
                                         BadText{"TrailingComma", R"({"a":1,})", 7},
                                         BadText{"TrailingCommaInArray", "[1,]", 3},
                                         BadText{"SingleQuotes", "{'a':1}", 1},
                                         BadText{"TwoValues", "{} {}", 3},
                                         BadText{"LeadingZero", "[01]", 2},
                                         BadText{"Plus", "[+1]", 1},
                                         BadText{"NoFraction", "[1.]", 3},
                                         BadText{"NoExponent", "[1e]", 3},
                                         BadText{"NoColon", R"({"a" 1})", 5},
                                         BadText{"WrongCloser", "[1}", 2},
                                         BadText{"BadEscape", R"(["\x"])", 3},
                                         BadText{"RawNewline", "[\"a\nb\"]", 3},
                                         BadText{"BadUtf8", "[\"a\xFF\"]", 3},
                                         BadText{"OverlongUtf8", "[\"\xC0\xAF\"]", 2},
                                         BadText{"SurrogateUtf8", "[\"\xED\xA0\x80\"]", 2},
                                         BadText{"CutUtf8", "[\"\xE2\x82\"]", 2},
                                         BadText{"Utf8OutsideStrings", "[\xC3\xA9]", 1},
                                         BadText{"Word", "[truth]", 1},
                                         BadText{"Nul", std::string("[1\0]", 4), 2}),
                         [](const auto& row) { return row.param.name; });

TEST(JsonDocument, TakesADepthOf128AndRefuses129) {
  for (const size_t depth : {size_t{128}, size_t{129}, size_t{1000000}}) {
    const std::string text(depth, '[');
    JsonDocument document;
    const std::optional<JsonError> error = document.Parse(text + std::string(depth, ']'));
    ASSERT_EQ(error.has_value(), depth > 128);
    if (error.has_value()) {
      EXPECT_EQ(error->offset, 128U);
      EXPECT_THAT(error->problem, testing::HasSubstr("128"));
    }
  }
}

JsonValue Member(const JsonDocument& document, std::string_view name) {
  return document.root().Find(name).value();
}

TEST(JsonDocument, SkipsAByteOrderMark) {
  JsonDocument document;
  ASSERT_FALSE(document.Parse("\xEF\xBB\xBF{\"a\":7}").has_value());
  EXPECT_EQ(Member(document, "a").AsExactInteger(), 7);
}

TEST(JsonDocument, TheLastOfDuplicateNamesWins) {
  JsonDocument document;
  ASSERT_FALSE(document.Parse(R"({"a":1,"b":2,"\u0061":3})").has_value());
  EXPECT_EQ(Member(document, "a").AsExactInteger(), 3);
  EXPECT_FALSE(document.root().Find("c").has_value());
}

TEST(JsonDocument, FindsNamesWithEscapes) {
  JsonDocument document;
  ASSERT_FALSE(document.Parse(R"({"a\\u0062":1,"\u0063":2,"d":3})").has_value());
  EXPECT_EQ(Member(document, R"(a\u0062)").AsExactInteger(), 1);
  EXPECT_FALSE(document.root().Find(R"(a\\u0062)").has_value()) << "source text is not a name";
  EXPECT_EQ(Member(document, "c").AsExactInteger(), 2);
  EXPECT_EQ(Member(document, "d").AsExactInteger(), 3);
}

TEST(JsonDocument, DecodesStrings) {
  struct Row {
    std::string json;
    std::string text;
  };

  const std::vector<Row> rows = {
      {R"("plain")", "plain"},
      {R"("")", ""},
      {R"("\"\\\/\b\f\n\r\t")", "\"\\/\b\f\n\r\t"},
      {R"("\u0041\u00e9\u20ac")", "A\xC3\xA9\xE2\x82\xAC"},
      {R"("\ud83d\ude00")", "\xF0\x9F\x98\x80"},
      {R"("\uD83Dx")", "\xEF\xBF\xBDx"},
      {R"("\ude00")", "\xEF\xBF\xBD"},
      {R"("\ud83d\ud83d\ude00")", "\xEF\xBF\xBD\xF0\x9F\x98\x80"},
      {R"("\ud83d\n")", "\xEF\xBF\xBD\n"},
      {R"("\u0000")", std::string(1, '\0')},
      {"\"\xF0\x9F\x98\x80\"", "\xF0\x9F\x98\x80"},
  };
  for (const Row& row : rows) {
    const std::string body = "[" + row.json + "]";
    JsonDocument document;
    ASSERT_FALSE(document.Parse(body).has_value()) << row.json;
    const JsonValue value = document.root().begin().value();
    EXPECT_EQ(value.AsString(), row.text) << row.json;
    // Any other reader takes the normalised form and gets the same text.
    EXPECT_EQ(nlohmann::json::parse(value.Normalized()).get<std::string>(), row.text) << row.json;
  }
}

TEST(JsonDocument, ReadsNumbers) {
  JsonDocument document;
  const std::string body =
      "[5,5.0,-0,1e3,9223372036854775807,9223372036854775808,1e999,-1e999,"
      "1e-999," +
      std::string(400, '9') + ",0.1]";
  ASSERT_FALSE(document.Parse(body).has_value());
  std::vector<JsonValue> values;
  for (auto item = document.root().begin(); item != document.root().end(); ++item) {
    values.push_back(item.value());
  }
  EXPECT_EQ(values[0].AsExactInteger(), 5);
  EXPECT_EQ(values[1].AsExactInteger(), std::nullopt);
  EXPECT_EQ(values[1].AsDouble(), 5.0);
  EXPECT_EQ(values[2].AsDouble(), 0.0);
  EXPECT_EQ(values[3].AsDouble(), 1000.0);
  EXPECT_EQ(values[4].AsExactInteger(), INT64_MAX);
  EXPECT_EQ(values[5].AsExactInteger(), std::nullopt);
  EXPECT_EQ(values[6].AsDouble(), HUGE_VAL);
  EXPECT_EQ(values[7].AsDouble(), -HUGE_VAL);
  EXPECT_EQ(values[8].AsDouble(), 0.0);
  EXPECT_EQ(values[9].AsDouble(), HUGE_VAL);
  EXPECT_EQ(values[10].AsDouble(), 0.1);
}

TEST(JsonDocument, RawIsTheSourceOfAValue) {
  JsonDocument document;
  ASSERT_FALSE(document.Parse(R"( {"a": [1, {"b": "}"} ] ,"c":{}} )").has_value());
  EXPECT_EQ(Member(document, "a").raw(), R"([1, {"b": "}"} ])");
  EXPECT_EQ(Member(document, "c").raw(), "{}");
  EXPECT_EQ(document.root().raw(), R"({"a": [1, {"b": "}"} ] ,"c":{}})");
  EXPECT_EQ(document.root().CountChildren(), 2U);
}

nlohmann::json Rebuild(JsonValue value) {
  switch (value.type()) {
    case JsonType::kNull:
      return nullptr;
    case JsonType::kBool:
      return value.AsBool();
    case JsonType::kNumber:
      return value.AsDouble();
    case JsonType::kString:
      return value.AsString();
    case JsonType::kArray: {
      nlohmann::json array = nlohmann::json::array();
      for (auto item = value.begin(); item != value.end(); ++item) {
        array.push_back(Rebuild(item.value()));
      }
      return array;
    }
    case JsonType::kObject:
      break;
  }
  nlohmann::json object = nlohmann::json::object();
  for (auto member = value.begin(); member != value.end(); ++member) {
    object[member.name()] = Rebuild(member.value());
  }
  return object;
}

bool HoldsAnOverflow(JsonValue value) {
  if (value.Is(JsonType::kNumber)) {
    return std::isinf(value.AsDouble());
  }
  if (value.Is(JsonType::kArray) || value.Is(JsonType::kObject)) {
    for (auto item = value.begin(); item != value.end(); ++item) {
      if (HoldsAnOverflow(item.value())) {
        return true;
      }
    }
  }
  return false;
}

// The JSON library is the reference: the same texts are accepted and mean the same. It refuses
// numbers that overflow, which here are the business of the field that holds them.
TEST(JsonDocument, AgreesWithAnotherReaderOnDamagedTexts) {
  constexpr uint32_t kSeed = 20;
  std::mt19937 random(kSeed);
  const std::string good =
      R"({"model":"smol","n":[1,-2.5e3,0,true,false,null],"o":{"k":"v\n\u20ac","":{}},"e":[[],{}]})";
  const std::string bytes = "{}[],:\"\\0123456789.eE+-truefalsn \n\t/u\xC3\xA9";
  int accepted = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string text = good;
    const int edits = static_cast<int>(random() % 3);
    for (int i = 0; i < edits; ++i) {
      const size_t at = random() % text.size();
      const char byte = bytes[random() % bytes.size()];
      switch (random() % 3) {
        case 0:
          text[at] = byte;
          break;
        case 1:
          text.insert(at, 1, byte);
          break;
        default:
          text.erase(at, 1);
      }
    }
    JsonDocument document;
    const bool good_here = !document.Parse(text).has_value();
    const nlohmann::json other = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (good_here && other.is_discarded()) {
      ASSERT_TRUE(HoldsAnOverflow(document.root())) << "seed " << kSeed << ": " << text;
      continue;
    }
    ASSERT_EQ(good_here, !other.is_discarded()) << "seed " << kSeed << ": " << text;
    if (good_here) {
      ++accepted;
      ASSERT_EQ(Rebuild(document.root()), other) << text;
    }
  }
  EXPECT_GT(accepted, 600);
  EXPECT_LT(accepted, 5400);
}

std::string Repeated(std::string_view head,
                     std::string_view unit,
                     std::string_view tail,
                     size_t n) {
  std::string text(head);
  while (text.size() < n) {
    text += unit;
  }
  text += tail;
  return text;
}

std::vector<std::string> HostileTexts(size_t bytes) {
  return {Repeated("[", "0,", "0]", bytes),
          Repeated("[", "[],", "[]]", bytes),
          Repeated("{", "\"\":0,", "\"\":0}", bytes),
          Repeated("[", "{\"\":[]},", "0]", bytes),
          Repeated("[\"", "\\ud800", "\"]", bytes),
          Repeated("[", "1", "]", bytes),
          Repeated("[1e", "9", "]", bytes),
          Repeated("[", " ", "]", bytes)};
}

TEST(JsonDocument, NeedsAtMostEightTimesTheTextInMemory) {
  for (const std::string& text : HostileTexts(256 << 10)) {
    JsonDocument document;
    ASSERT_FALSE(document.Parse(text).has_value()) << text.substr(0, 20);
    EXPECT_LE(document.tree_bytes() + text.size(), 8 * text.size()) << text.substr(0, 20);
  }
}

double CpuSecondsToRead(const std::string& text) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const std::clock_t begin = std::clock();
    JsonDocument document;
    EXPECT_FALSE(document.Parse(text).has_value());
    for (auto item = document.root().begin(); item != document.root().end(); ++item) {
      if (item.value().Is(JsonType::kNumber)) {
        EXPECT_GE(item.value().AsDouble(), 0.0);
      } else if (item.value().Is(JsonType::kString)) {
        EXPECT_FALSE(item.value().AsString().empty());
      }
    }
    best = std::min(best, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  return best;
}

TEST(JsonDocument, TimeGrowsInProportionToTheText) {
  constexpr size_t kSmall = 128 << 10;
  constexpr size_t kFactor = 8;
  const std::vector<std::string> small = HostileTexts(kSmall);
  const std::vector<std::string> large = HostileTexts(kSmall * kFactor);
  for (size_t i = 0; i < small.size(); ++i) {
    // A quadratic path would cost 64 times as much; the constant absorbs the clock's grain.
    const double allowed = 3.0 * kFactor * CpuSecondsToRead(small[i]) + 0.02;
    EXPECT_LT(CpuSecondsToRead(large[i]), allowed) << small[i].substr(0, 20);
  }
}

}  // namespace
}  // namespace spindle::serving
