#include "eval/task_families.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <random>
#include <set>

#include <fmt/format.h>

#include "eval/texts.h"

namespace spindle::eval {
namespace {

constexpr std::array<std::string_view, 64> kWords = {
    "apple",  "river",  "stone",  "paper",   "green",   "table",    "horse",  "night",
    "winter", "garden", "music",  "bread",   "silver",  "bridge",   "cloud",  "dream",
    "forest", "island", "letter", "market",  "mirror",  "mountain", "ocean",  "orange",
    "pencil", "planet", "pocket", "prince",  "queen",   "rabbit",   "school", "shadow",
    "sister", "spring", "street", "summer",  "teacher", "thunder",  "ticket", "tiger",
    "tower",  "train",  "valley", "village", "violin",  "water",    "window", "yellow",
    "bottle", "button", "candle", "castle",  "circle",  "coffee",   "copper", "corner",
    "cotton", "doctor", "engine", "farmer",  "finger",  "flower",   "guitar", "hammer"};
constexpr std::array<std::string_view, 16> kAdjectives = {"brave",
                                                          "quiet",
                                                          "sunny",
                                                          "heavy",
                                                          "clever",
                                                          "frozen",
                                                          "hollow",
                                                          "gentle",
                                                          "rapid",
                                                          "golden",
                                                          "bitter",
                                                          "humble",
                                                          "narrow",
                                                          "proud",
                                                          "rusty",
                                                          "wild"};
constexpr uint32_t kDecoyNeedles = 3;

class Dice {
 public:
  Dice(const TaskRequest& request, std::string_view family) {
    std::vector<uint32_t> numbers(family.begin(), family.end());
    numbers.push_back(static_cast<uint32_t>(request.seed));
    numbers.push_back(static_cast<uint32_t>(request.seed >> 32U));
    numbers.push_back(request.sample);
    std::seed_seq seed(numbers.begin(), numbers.end());
    random_.seed(seed);
  }

  uint64_t Next() { return random_(); }

  uint32_t Below(size_t count) { return static_cast<uint32_t>(random_() % count); }

  template <typename Table>
  std::string One(const Table& table) {
    return std::string(table[Below(table.size())]);
  }

  // Without leading zeros.
  std::string Number(uint32_t digits) {
    std::string number(1, static_cast<char>('1' + Below(9)));
    while (number.size() < digits) {
      number += static_cast<char>('0' + Below(10));
    }
    return number;
  }

  std::string Capitals(uint32_t length) {
    std::string word;
    while (word.size() < length) {
      word += static_cast<char>('A' + Below(26));
    }
    return word;
  }

 private:
  std::mt19937_64 random_;
};

// Draws until it finds something that is not in `used`.
template <typename Draw>
std::string Unused(std::set<std::string>& used, const Draw& draw) {
  for (;;) {
    std::string drawn = draw();
    if (used.insert(drawn).second) {
      return drawn;
    }
  }
}

std::string DrawKey(Dice& dice) {
  return dice.One(kAdjectives) + "-" + dice.One(kWords);
}

// Sentences of filler up to a number of tokens.
std::vector<std::string> Fill(uint32_t num_tokens,
                              const TokenCounter& count,
                              const std::function<std::string()>& next) {
  std::vector<std::string> parts;
  uint32_t used = 0;
  for (;;) {
    std::string part = next();
    used += count(part);
    if (used > num_tokens) {
      return parts;
    }
    parts.push_back(std::move(part));
  }
}

std::function<std::string()> Stories(Dice& dice) {
  return [teller = StoryTeller(dice.Next())]() mutable { return teller.Paragraph(); };
}

// The part that sample i of n puts its needle before: depths spread evenly over the context, or
// between a fifth and a twentieth of the tail, as far as whole parts come to that.
size_t PlaceOf(const TaskRequest& request,
               const TokenCounter& count,
               std::span<const std::string> parts,
               const std::string& needle) {
  const double share = (2.0 * request.sample + 1) / (2.0 * request.num_samples);
  if (request.tail_tokens == 0) {
    return static_cast<size_t>(share * static_cast<double>(parts.size()));
  }
  const auto limit = static_cast<uint32_t>((0.95 - 0.15 * share) * request.tail_tokens);
  uint32_t tail = count(needle);
  size_t at = parts.size();
  while (at > 0) {
    tail += count(parts[at - 1]);
    if (tail > limit) {
      break;
    }
    --at;
  }
  return at;
}

std::string Join(std::span<const std::string> parts) {
  std::string text;
  for (const std::string& part : parts) {
    text += part;
  }
  return text;
}

// The needle at the sample's place, in the control its replacement.
void Hide(const TaskRequest& request,
          const TokenCounter& count,
          std::vector<std::string> parts,
          const std::string& needle,
          const std::string& replacement,
          TaskSample* sample) {
  const auto at = static_cast<ptrdiff_t>(PlaceOf(request, count, parts, needle));
  parts.insert(parts.begin() + at, needle);
  sample->context += Join(parts);
  parts[static_cast<size_t>(at)] = replacement;
  sample->control += Join(parts);
}

uint32_t Left(const TaskRequest& request,
              const TokenCounter& count,
              std::span<const std::string> fixed) {
  uint32_t used = 0;
  for (const std::string& text : fixed) {
    used += count(text);
  }
  return request.num_tokens > used ? request.num_tokens - used : 0;
}

// All words, each once, in random order.
std::vector<std::string> ShuffledWords(Dice& dice) {
  std::vector<std::string> words;
  for (const std::string_view word : kWords) {
    words.insert(words.begin() + dice.Below(words.size() + 1), " " + std::string(word));
  }
  return words;
}

// Words in random order, once; their first quarter comes again and is to be continued. Needs only
// that a model looks for what followed last time.
TaskSample MakeCopy(const TaskRequest& request, const TokenCounter& count) {
  constexpr uint32_t kCue = 16;
  constexpr size_t kRun = 8;
  Dice dice(request, "copy");
  const std::vector<std::string> words = ShuffledWords(dice);
  const std::vector<std::string> others = ShuffledWords(dice);
  TaskSample sample;
  const std::string needle = "List:" + Join(words) + ".\n";
  sample.question = "List:" + Join(std::span(words).first(kCue));
  sample.answer = Join(std::span(words).subspan(kCue));
  // Right in parts is worth something: runs of eight words.
  for (size_t i = kCue; i < words.size(); i += kRun) {
    sample.references.push_back(Join(std::span(words).subspan(i, kRun)));
  }
  const uint32_t left = Left(request, count, std::array{needle, sample.question});
  Hide(request,
       count,
       Fill(left, count, Stories(dice)),
       needle,
       "List:" + Join(others) + ".\n",
       &sample);
  return sample;
}

// Lines "name = number", one of which is asked for.
TaskSample MakeKvRetrieve(const TaskRequest& request, const TokenCounter& count) {
  constexpr uint32_t kDigits = 4;
  constexpr size_t kMostLines = 512;
  Dice dice(request, "kv-retrieve");
  std::set<std::string> keys;
  const auto line = [&] {
    return Unused(keys, [&] { return DrawKey(dice); }) + " = " + dice.Number(kDigits) + "\n";
  };
  const std::string key = Unused(keys, [&] { return DrawKey(dice); });
  const std::string value = dice.Number(kDigits);
  TaskSample sample;
  const std::string needle = key + " = " + value + "\n";
  const std::array<std::string, 2> examples = {line(), line()};
  sample.question = "\nLook up:\n" + examples[0] + examples[1] + key + " =";
  sample.answer = " " + value;
  sample.references = {value};
  uint32_t left =
      Left(request, count, std::array{needle, examples[0], examples[1], sample.question});
  std::vector<std::string> lines;
  while (lines.size() < kMostLines - 3) {
    std::string next = line();
    const uint32_t tokens = count(next);
    if (tokens > left) {
      break;
    }
    left -= tokens;
    lines.push_back(std::move(next));
  }
  lines.insert(lines.begin() + dice.Below(lines.size() + 1), examples[0]);
  lines.insert(lines.begin() + dice.Below(lines.size() + 1), examples[1]);
  sample.context = Join(Fill(left, count, Stories(dice)));
  sample.control = sample.context;
  Hide(request, count, lines, needle, line(), &sample);
  return sample;
}

// A number between repetitions of the same sentences.
TaskSample MakePasskey(const TaskRequest& request, const TokenCounter& count) {
  constexpr std::array<std::string_view, 4> kFiller = {
      "The meadow is wide. ", "The air is warm. ", "Bees fly by. ", "On and on it goes.\n"};
  Dice dice(request, "passkey");
  const std::string value = dice.Number(5);
  TaskSample sample;
  const std::string needle =
      fmt::format("The pass key is {0}. Remember it: {0} is the pass key.\n", value);
  sample.question = "What is the pass key? The pass key is";
  sample.answer = " " + value;
  sample.references = {value};
  const std::vector<std::string> parts =
      Fill(Left(request, count, std::array{needle, sample.question}),
           count,
           [&, i = size_t{0}]() mutable { return std::string(kFiller[i++ % kFiller.size()]); });
  Hide(request, count, parts, needle, "", &sample);
  return sample;
}

std::string Needle(const std::string& key, const std::string& value) {
  return fmt::format("The secret number of {} is {}.\n", key, value);
}

TaskSample MakeNeedles(const TaskRequest& request,
                       const TokenCounter& count,
                       std::string_view family,
                       uint32_t num_decoys) {
  constexpr uint32_t kDigits = 7;
  Dice dice(request, family);
  std::set<std::string> keys;
  const auto draw = [&] { return Unused(keys, [&] { return DrawKey(dice); }); };
  const std::string key = draw();
  const std::string value = dice.Number(kDigits);
  TaskSample sample;
  const std::string needle = Needle(key, value);
  sample.question =
      fmt::format("What is the secret number of {0}? The secret number of {0} is", key);
  sample.answer = " " + value;
  sample.references = {value};
  std::vector<std::string> fixed = {needle, sample.question};
  for (uint32_t i = 0; i < num_decoys; ++i) {
    fixed.push_back(Needle(draw(), dice.Number(kDigits)));
  }
  std::vector<std::string> parts = Fill(Left(request, count, fixed), count, Stories(dice));
  for (uint32_t i = 0; i < num_decoys; ++i) {
    parts.insert(parts.begin() + dice.Below(parts.size() + 1), fixed[2 + i]);
  }
  Hide(request, count, parts, needle, "", &sample);
  return sample;
}

TaskSample MakeSingleNeedle(const TaskRequest& request, const TokenCounter& count) {
  return MakeNeedles(request, count, "niah-single", 0);
}

TaskSample MakeMultiKey(const TaskRequest& request, const TokenCounter& count) {
  return MakeNeedles(request, count, "niah-multikey", kDecoyNeedles);
}

// Variable tracking: a value goes through assignments; who has it? One worked example first.
TaskSample MakeTracking(const TaskRequest& request, const TokenCounter& count) {
  constexpr uint32_t kLetters = 5;
  constexpr uint32_t kHops = 2;
  Dice dice(request, "vt");
  std::set<std::string> used;
  const auto variable = [&] { return Unused(used, [&] { return dice.Capitals(kLetters); }); };
  const auto number = [&] { return Unused(used, [&] { return dice.Number(5); }); };
  const auto chain = [](const std::string& value, std::span<const std::string> names) {
    std::vector<std::string> lines = {fmt::format("VAR {} = {}\n", names[0], value)};
    for (size_t i = 1; i < names.size(); ++i) {
      lines.push_back(fmt::format("VAR {} = VAR {}\n", names[i], names[i - 1]));
    }
    return lines;
  };
  const auto ask = [](const std::string& value) {
    return fmt::format("Variables that hold {}:", value);
  };
  const auto list = [](std::span<const std::string> names) {
    std::string text;
    for (const std::string& name : names) {
      text += (text.empty() ? " " : ", ") + name;
    }
    return text;
  };
  std::vector<std::string> names;
  std::vector<std::string> example_names;
  for (uint32_t i = 0; i <= kHops; ++i) {
    names.push_back(variable());
    example_names.push_back(variable());
  }
  const std::string value = number();
  const std::string example_value = number();
  const std::string example =
      Join(chain(example_value, example_names)) + ask(example_value) + list(example_names) + "\n\n";
  TaskSample sample;
  sample.question = ask(value);
  sample.answer = list(names);
  sample.references = names;
  const std::vector<std::string> lines = chain(value, names);
  const std::string needle = Join(lines);
  std::vector<std::string> parts = Fill(
      Left(request, count, std::array{needle, sample.question, example}), count, Stories(dice));
  // One assignment after the other, from the sample's place on.
  const size_t first = PlaceOf(request, count, parts, needle);
  sample.control = example + Join(parts);
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t at = first + i * (parts.size() - i - first) / lines.size() + i;
    parts.insert(parts.begin() + static_cast<ptrdiff_t>(std::min(at, parts.size())), lines[i]);
  }
  sample.context = example + Join(parts);
  return sample;
}

// Common words: a list in which three words come often and all others once.
TaskSample MakeCommonWords(const TaskRequest& request, const TokenCounter& count) {
  constexpr uint32_t kCommon = 3;
  constexpr uint32_t kTimes = 12;
  Dice dice(request, "cwe");
  std::set<std::string> used;
  std::vector<std::string> common;
  for (uint32_t i = 0; i < kCommon; ++i) {
    common.push_back(Unused(used, [&] { return dice.One(kWords); }));
  }
  TaskSample sample;
  sample.question = "\nThe three words that come most often are";
  sample.answer = " " + common[0] + ", " + common[1] + ", " + common[2];
  sample.references = common;
  std::vector<std::string> repeated;
  for (uint32_t i = 0; i < kCommon * kTimes; ++i) {
    repeated.push_back(" " + common[i % kCommon]);
  }
  std::vector<std::string> fixed = repeated;
  fixed.push_back(sample.question);
  // No other word may have a common one in it.
  const auto other = [&]() -> std::string {
    for (;;) {
      std::string word = Unused(used, [&] { return DrawKey(dice) + "-" + dice.Number(2); });
      if (StringScore(word, common) == 0) {
        return " " + word;
      }
    }
  };
  std::vector<std::string> parts = Fill(Left(request, count, fixed), count, other);
  sample.control = "Words:" + Join(parts);
  for (const std::string& word : repeated) {
    parts.insert(parts.begin() + dice.Below(parts.size() + 1), word);
  }
  sample.context = "Words:" + Join(parts);
  return sample;
}

constexpr std::array<TaskFamily, 7> kFamilies = {{
    {"copy", 512, 256, MakeCopy},
    {"kv-retrieve", 256, 64, MakeKvRetrieve},
    {"passkey", 256, 64, MakePasskey},
    {"niah-single", 512, 64, MakeSingleNeedle},
    {"niah-multikey", 512, 64, MakeMultiKey},
    {"vt", 512, 128, MakeTracking},
    {"cwe", 512, 0, MakeCommonWords},
}};

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return lower;
}

}  // namespace

std::span<const TaskFamily> TaskFamilies() {
  return kFamilies;
}

absl::StatusOr<const TaskFamily*> FindTaskFamily(std::string_view name) {
  std::string known;
  for (const TaskFamily& family : kFamilies) {
    if (family.name == name) {
      return &family;
    }
    known += known.empty() ? "" : ", ";
    known += family.name;
  }
  return absl::InvalidArgumentError("no task family has the name '" + std::string(name) +
                                    "'; there are " + known);
}

double StringScore(std::string_view answer, std::span<const std::string> references) {
  const std::string lower = Lower(answer);
  double found = 0;
  for (const std::string& reference : references) {
    found += lower.find(Lower(reference)) != std::string::npos ? 1.0 : 0.0;
  }
  return references.empty() ? 0.0 : found / static_cast<double>(references.size());
}

}  // namespace spindle::eval
