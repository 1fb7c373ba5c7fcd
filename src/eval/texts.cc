#include "eval/texts.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/status_macros.h"

namespace spindle::eval {
namespace {

constexpr uint64_t kApartTokens = 10'000;
// More than English text needs (about 4.3), so that a window nearly always has its tokens.
constexpr uint64_t kBytesPerToken = 7;

constexpr std::array<std::string_view, 16> kOnsets = {
    "b", "br", "d", "dr", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z"};
constexpr std::array<std::string_view, 8> kVowels = {"a", "e", "i", "o", "u", "ae", "ia", "ou"};
constexpr std::array<std::string_view, 8> kEnds = {"", "n", "l", "r", "s", "th", "m", "sk"};
constexpr std::array<std::string_view, 20> kThings = {
    "copper kettle", "blue lantern", "silver whistle", "wooden chest", "torn map",
    "glass marble",  "iron key",     "woollen scarf",  "clay pipe",    "leather book",
    "brass compass", "stone figure", "paper kite",     "green bottle", "small mirror",
    "old violin",    "tin soldier",  "straw basket",   "bronze bell",  "velvet purse"};
constexpr std::array<std::string_view, 16> kPlaces = {"the mill",
                                                      "the harbour",
                                                      "the attic",
                                                      "the orchard",
                                                      "the chapel",
                                                      "the north gate",
                                                      "the bakery",
                                                      "the old bridge",
                                                      "the cellar",
                                                      "the market square",
                                                      "the lighthouse",
                                                      "the boathouse",
                                                      "the school",
                                                      "the stable",
                                                      "the watch tower",
                                                      "the library"};
constexpr std::array<std::string_view, 8> kMoods = {
    "tired", "cheerful", "worried", "proud", "curious", "silent", "restless", "relieved"};

size_t NextSentence(const std::string& content, size_t from) {
  for (size_t i = from; i + 2 < content.size(); ++i) {
    const char c = content[i];
    const bool is_end = c == '.' || c == '!' || c == '?';
    if (is_end && std::isspace(static_cast<unsigned char>(content[i + 1])) != 0) {
      const size_t next = content.find_first_not_of(" \t\r\n", i + 1);
      return next == std::string::npos ? content.size() : next;
    }
  }
  return content.size();
}

// Cuts back to where a character begins.
size_t CharacterBegin(const std::string& content, size_t at) {
  while (at > 0 && at < content.size() &&
         (static_cast<unsigned char>(content[at]) & 0xC0U) == 0x80U) {
    --at;
  }
  return at;
}

struct Piece {
  const Text* text;
  size_t begin;
  size_t end;
};

std::vector<Piece> CutPieces(const Text& text, uint64_t piece_bytes) {
  std::vector<Piece> pieces;
  for (size_t begin = 0; begin + piece_bytes <= text.content.size();) {
    const size_t end = CharacterBegin(text.content, begin + piece_bytes);
    pieces.push_back({&text, begin, end});
    begin = NextSentence(text.content, end);
  }
  return pieces;
}

// How many pieces to take of each text: in turn, as long as a text has any left.
std::vector<size_t> Shares(const std::vector<std::vector<Piece>>& pieces, size_t count) {
  std::vector<size_t> shares(pieces.size(), 0);
  while (count > 0) {
    for (size_t i = 0; i < pieces.size() && count > 0; ++i) {
      if (shares[i] < pieces[i].size()) {
        ++shares[i];
        --count;
      }
    }
  }
  return shares;
}

absl::StatusOr<TextWindow> ReadWindow(const Piece& piece,
                                      const text::Tokenizer& tokenizer,
                                      uint32_t num_tokens) {
  const std::string_view content =
      std::string_view(piece.text->content).substr(piece.begin, piece.end - piece.begin);
  SPINDLE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                           tokenizer.Encode(content, {.parse_special = false}));
  if (tokens.size() < std::max<uint64_t>(kApartTokens, num_tokens)) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} bytes from byte {} on are only {} tokens; is that text?",
                    piece.text->name,
                    content.size(),
                    piece.begin,
                    tokens.size()));
  }
  tokens.resize(num_tokens);
  return TextWindow{piece.text->name, piece.begin, std::move(tokens)};
}

}  // namespace

uint64_t BytesPerWindow(uint32_t num_tokens) {
  return kBytesPerToken * std::max<uint64_t>(kApartTokens, num_tokens);
}

absl::StatusOr<std::vector<TextWindow>> CutWindows(std::span<const Text> texts,
                                                   const text::Tokenizer& tokenizer,
                                                   uint32_t count,
                                                   uint32_t num_tokens) {
  std::vector<std::vector<Piece>> pieces;
  size_t available = 0;
  for (const Text& text : texts) {
    pieces.push_back(CutPieces(text, BytesPerWindow(num_tokens)));
    available += pieces.back().size();
  }
  if (available < count) {
    return absl::InvalidArgumentError(fmt::format(
        "--windows {}: the texts are long enough for {} windows of {} tokens that begin {} tokens "
        "apart; give more with --text",
        count,
        available,
        num_tokens,
        std::max<uint64_t>(kApartTokens, num_tokens)));
  }
  const std::vector<size_t> shares = Shares(pieces, count);
  std::vector<TextWindow> windows;
  for (size_t t = 0; t < pieces.size(); ++t) {
    for (size_t i = 0; i < shares[t]; ++i) {
      const Piece& piece = pieces[t][i * pieces[t].size() / shares[t]];
      SPINDLE_ASSIGN_OR_RETURN(TextWindow window, ReadWindow(piece, tokenizer, num_tokens));
      windows.push_back(std::move(window));
    }
  }
  return windows;
}

uint32_t StoryTeller::Draw(size_t count) {
  return static_cast<uint32_t>(random_() % count);
}

std::string StoryTeller::Name() {
  std::string name;
  const uint32_t syllables = 2 + Draw(2);
  for (uint32_t i = 0; i < syllables; ++i) {
    name += kOnsets[Draw(kOnsets.size())];
    name += kVowels[Draw(kVowels.size())];
  }
  name += kEnds[Draw(kEnds.size())];
  name.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(name.front())));
  return name;
}

std::string StoryTeller::Paragraph() {
  const std::string hero = Name();
  const std::string friend_name = Name();
  const std::string_view thing = kThings[Draw(kThings.size())];
  const std::string_view other_thing = kThings[Draw(kThings.size())];
  const std::string_view first = kPlaces[Draw(kPlaces.size())];
  const std::string_view second = kPlaces[Draw(kPlaces.size())];
  const std::string_view mood = kMoods[Draw(kMoods.size())];
  const uint32_t day = 1 + Draw(30);
  const uint32_t steps = 12 + Draw(400);
  std::vector<std::string> middle = {
      fmt::format("On the way {} counted {} steps and grew {}.", hero, steps, mood),
      fmt::format("Nobody at {} had seen {} before.", second, friend_name),
      fmt::format("It rained, and the {} got wet, but {} did not mind.", thing, hero),
      fmt::format("\"I would rather have the {},\" said {}.", other_thing, friend_name),
      fmt::format("The people of {} talked about the {} for {} days.", first, thing, day),
      fmt::format("{} wrote a letter to {} and never sent it.", friend_name, Name()),
      fmt::format("A dog followed {} from {} to {}.", hero, first, second)};
  for (size_t i = middle.size() - 1; i > 0; --i) {
    std::swap(middle[i], middle[Draw(i + 1)]);
  }
  std::string story = fmt::format("On day {} {} found a {} near {}. ", day, hero, thing, first);
  story += fmt::format("{} took it to {}, where {} was waiting. ", hero, second, friend_name);
  for (size_t i = 0; i < 5; ++i) {
    story += middle[i] + " ";
  }
  story += fmt::format("In the end {} gave the {} to {}, who put it beside the {}. ",
                       hero,
                       thing,
                       friend_name,
                       other_thing);
  story += fmt::format(
      "Since then the {} has been at {}, and {} has been {}.\n", thing, second, hero, mood);
  return story;
}

Text MakeStories(uint64_t seed, uint64_t num_bytes) {
  StoryTeller teller(seed);
  Text text{.name = "stories", .content = {}};
  while (text.content.size() < num_bytes) {
    text.content += teller.Paragraph();
  }
  return text;
}

}  // namespace spindle::eval
