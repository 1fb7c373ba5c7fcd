// What tasks consist of: the answer follows from the context and from nothing in the control.
#include "eval/task_families.h"

#include <algorithm>
#include <cctype>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spindle::eval {
namespace {

using testing::HasSubstr;
using testing::Not;

// Words and marks.
uint32_t CountWords(const std::string& text) {
  uint32_t count = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_letter = [&](size_t at) {
      return std::isalnum(static_cast<unsigned char>(text[at])) != 0;
    };
    if (std::isspace(static_cast<unsigned char>(text[i])) == 0 &&
        !(is_letter(i) && i > 0 && is_letter(i - 1))) {
      ++count;
    }
  }
  return count;
}

class Tasks : public testing::TestWithParam<std::string_view> {
 protected:
  [[nodiscard]] TaskSample Make(const TaskRequest& request) const {
    return (*FindTaskFamily(GetParam()))->generate(request, CountWords);
  }
};

TEST_P(Tasks, FillTheirLengthAndNoMore) {
  for (const uint32_t tokens : {512U, 2000U, 6000U}) {
    const TaskSample sample = Make({.num_tokens = tokens, .sample = 1, .num_samples = 3});
    const uint32_t used = CountWords(sample.context) + CountWords(sample.question);
    EXPECT_LE(used, tokens + 8);  // words that lie between parts
    EXPECT_GE(used, tokens - 250) << "a paragraph of filler";
  }
}

TEST_P(Tasks, TheSeedAndTheSampleDecide) {
  const TaskRequest request{.num_tokens = 800, .sample = 2, .num_samples = 5, .seed = 9};
  EXPECT_EQ(Make(request).context, Make(request).context);
  TaskRequest other = request;
  other.seed = 10;
  EXPECT_NE(Make(request).answer, Make(other).answer);
  other = request;
  other.sample = 3;
  EXPECT_NE(Make(request).answer, Make(other).answer);
}

TEST_P(Tasks, TheAnswerHasAllReferencesAndTheControlHasNot) {
  for (uint32_t i = 0; i < 8; ++i) {
    const TaskSample sample = Make({.num_tokens = 700, .sample = i, .num_samples = 8});
    EXPECT_EQ(StringScore(sample.answer, sample.references), 1);
    EXPECT_EQ(StringScore(sample.question, sample.references), 0);
    EXPECT_EQ(StringScore(sample.context, sample.references), 1);
    EXPECT_EQ(StringScore(sample.control, sample.references), 0) << sample.control;
  }
}

TEST_P(Tasks, WhatIsAskedForIsInTheTail) {
  const uint32_t least = (*FindTaskFamily(GetParam()))->min_tail_tokens;
  if (least == 0) {
    return;  // has no place
  }
  for (const uint32_t tail : {least, 257U, 800U}) {
    for (uint32_t i = 0; i < 4; ++i) {
      const TaskSample sample =
          Make({.num_tokens = 1500, .sample = i, .num_samples = 4, .tail_tokens = tail});
      const size_t found = sample.context.find(sample.references.front());
      const size_t sentence = sample.context.find_last_of(".\n", found) + 1;
      const uint32_t behind = CountWords(sample.context.substr(sentence));
      EXPECT_LE(behind, tail) << GetParam() << ' ' << i;
      if (tail == 800) {
        EXPECT_GE(behind, tail / 2) << GetParam() << ' ' << i;
      }
      EXPECT_EQ(StringScore(sample.control, sample.references), 0);
    }
  }
}

std::vector<std::string_view> Names() {
  std::vector<std::string_view> names;
  for (const TaskFamily& family : TaskFamilies()) {
    names.push_back(family.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Families, Tasks, testing::ValuesIn(Names()), [](const auto& tested) {
  std::string name(tested.param);
  std::erase(name, '-');
  return name;
});

TEST(TaskFamilies, NeedlesAreSpreadOverTheContext) {
  const TaskFamily* family = *FindTaskFamily("passkey");
  std::vector<double> depths;
  for (uint32_t i = 0; i < 4; ++i) {
    const TaskSample sample =
        family->generate({.num_tokens = 2000, .sample = i, .num_samples = 4}, CountWords);
    depths.push_back(static_cast<double>(sample.context.find("pass key")) /
                     static_cast<double>(sample.context.size()));
    EXPECT_NEAR(depths.back(), (i + 0.5) / 4, 0.05);
  }
}

TEST(TaskFamilies, KvRetrieveAsksForOneOfItsLines) {
  const TaskSample sample =
      (*FindTaskFamily("kv-retrieve"))->generate({.num_tokens = 900, .num_samples = 1}, CountWords);
  const size_t last = sample.question.rfind('\n') + 1;
  const std::string line = sample.question.substr(last) + sample.answer + "\n";
  EXPECT_THAT(sample.context, HasSubstr(line));
  EXPECT_THAT(sample.control, Not(HasSubstr(sample.question.substr(last))));
  EXPECT_GE(std::count(sample.context.begin(), sample.context.end(), '='), 100);
}

TEST(TaskFamilies, UnknownNamesAreRefused) {
  EXPECT_THAT(FindTaskFamily("pass-key").status().message(), HasSubstr("passkey"));
}

TEST(TaskFamilies, StringScoreIgnoresCase) {
  EXPECT_DOUBLE_EQ(StringScore("It is ABCDE, I think", std::vector<std::string>{"abcde", "xyz"}),
                   0.5);
  EXPECT_EQ(StringScore("", std::vector<std::string>{"a"}), 0);
}

}  // namespace
}  // namespace spindle::eval
