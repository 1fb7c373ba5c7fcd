#include "text/template_source.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <vector>

namespace spindle::text {
namespace {

bool IsNameChar(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// A word, a number, a string or a single other character inside a tag; blanks are not tokens.
struct Token {
  size_t begin;
  size_t end;
};

// The code between tag delimiters, [begin, end) of the source.
struct Tag {
  size_t begin;
  size_t end;
};

size_t EndOfString(std::string_view source, size_t at) {
  const char quote = source[at];
  for (++at; at < source.size() && source[at] != quote; ++at) {
    at += source[at] == '\\' ? 1U : 0U;
  }
  return std::min(at + 1, source.size());
}

// True for the code of {% raw %}: what follows up to endraw is text.
bool IsRawTag(std::string_view code) {
  constexpr std::string_view kIgnored = " \t\n\r-+";
  const size_t begin = code.find_first_not_of(kIgnored);
  return begin != std::string_view::npos &&
         code.substr(begin, code.find_last_not_of(kIgnored) + 1 - begin) == "raw";
}

// All {{ … }} and {% … %} of a template; comments and raw parts are skipped.
std::vector<Tag> FindTags(std::string_view source) {
  std::vector<Tag> tags;
  for (size_t at = source.find('{'); at != std::string_view::npos; at = source.find('{', at)) {
    const char kind = at + 1 < source.size() ? source[at + 1] : '\0';
    if (kind == '#') {
      const size_t end = source.find("#}", at + 2);
      at = end == std::string_view::npos ? source.size() : end + 2;
      continue;
    }
    if (kind != '{' && kind != '%') {
      ++at;
      continue;
    }
    const std::string_view close = kind == '{' ? "}}" : "%}";
    const size_t begin = at + 2;
    at = begin;
    // A brace that closes a map literal may stand before the closing delimiter.
    int braces = 0;
    while (at < source.size() && (braces > 0 || source.substr(at, 2) != close)) {
      if (source[at] == '"' || source[at] == '\'') {
        at = EndOfString(source, at);
        continue;
      }
      braces += source[at] == '{' ? 1 : source[at] == '}' ? -1 : 0;
      ++at;
    }
    tags.push_back({begin, std::min(at, source.size())});
    at = std::min(at + 2, source.size());
    if (IsRawTag(source.substr(begin, tags.back().end - begin))) {
      at = std::min(source.find("endraw", at), source.size());
    }
  }
  return tags;
}

std::vector<Token> Tokens(std::string_view source, Tag tag) {
  std::vector<Token> tokens;
  for (size_t at = tag.begin; at < tag.end;) {
    const size_t begin = at;
    if (std::isspace(static_cast<unsigned char>(source[at])) != 0) {
      ++at;
      continue;
    }
    if (source[at] == '"' || source[at] == '\'') {
      at = std::min(EndOfString(source, at), tag.end);
    } else if (IsNameChar(source[at])) {
      while (at < tag.end && IsNameChar(source[at])) {
        ++at;
      }
    } else {
      ++at;
    }
    tokens.push_back({begin, at});
  }
  return tokens;
}

class Rewriter {
 public:
  explicit Rewriter(std::string_view source) : source_(source) {}

  std::string Run() {
    for (const Tag& tag : FindTags(source_)) {
      tokens_ = Tokens(source_, tag);
      RewriteGeneration();
      RewriteFormats();
    }
    std::ranges::stable_sort(edits_, {}, &Edit::begin);
    std::string out;
    size_t from = 0;
    for (const Edit& edit : edits_) {
      out += source_.substr(from, edit.begin - from);
      out += edit.text;
      from = edit.end;
    }
    out += source_.substr(from);
    return out;
  }

 private:
  // Replaces [begin, end) of the source.
  struct Edit {
    size_t begin;
    size_t end;
    std::string_view text;
  };

  [[nodiscard]] std::string_view Text(size_t token) const {
    return token < tokens_.size()
               ? source_.substr(tokens_[token].begin, tokens_[token].end - tokens_[token].begin)
               : std::string_view();
  }

  void RewriteGeneration() {
    // A tag may begin and end with a whitespace control.
    const size_t first = Text(0) == "-" || Text(0) == "+" ? 1 : 0;
    const std::string_view last = Text(tokens_.size() - 1);
    const size_t count = tokens_.size() - first -
                         (tokens_.size() > first + 1 && (last == "-" || last == "+") ? 1 : 0);
    if (tokens_.empty() || count != 1) {
      return;
    }
    if (Text(first) == "generation") {
      edits_.push_back({tokens_[first].begin, tokens_[first].end, "with"});
    } else if (Text(first) == "endgeneration") {
      edits_.push_back({tokens_[first].begin, tokens_[first].end, "endwith"});
    }
  }

  void RewriteFormats() {
    for (size_t i = 1; i + 1 < tokens_.size(); ++i) {
      const std::string_view left = Text(i - 1);
      if (Text(i) != "%" || (left[0] != '\'' && left[0] != '"')) {
        continue;
      }
      // A tuple supplies the arguments of the filter as it stands.
      const size_t end = EndOfOperand(i + 1);
      const bool tuple = Text(i + 1) == "(" && end == MatchingBracket(i + 1) + 1;
      const size_t percent = tokens_[i].begin;
      edits_.push_back({percent, percent + 1, tuple ? "|format" : "|format("});
      if (!tuple) {
        edits_.push_back({tokens_[end - 1].end, tokens_[end - 1].end, ")"});
      }
    }
  }

  // Index of the token that closes the bracket at `token`; the last token when none does.
  [[nodiscard]] size_t MatchingBracket(size_t token) const {
    int depth = 0;
    for (size_t i = token; i < tokens_.size(); ++i) {
      const char c = Text(i)[0];
      depth += c == '(' || c == '[' || c == '{' ? 1 : c == ')' || c == ']' || c == '}' ? -1 : 0;
      if (depth == 0) {
        return i;
      }
    }
    return tokens_.size() - 1;
  }

  // One past the last token of the operand at `token`: a name, literal or bracket with its
  // attributes, subscripts, calls and filters, all of which bind tighter than `%`.
  [[nodiscard]] size_t EndOfOperand(size_t token) const {
    size_t end = MatchingBracket(token) + 1;
    while (end < tokens_.size()) {
      const char c = Text(end)[0];
      if ((c == '.' || c == '|') && end + 1 < tokens_.size()) {
        end += 2;
      } else if (c == '(' || c == '[') {
        end = MatchingBracket(end) + 1;
      } else {
        break;
      }
    }
    return end;
  }

  std::string_view source_;
  std::vector<Token> tokens_;  // of the tag at hand
  std::vector<Edit> edits_;
};

}  // namespace

std::string RewriteTemplate(std::string_view source) {
  return Rewriter(source).Run();
}

bool MentionsTools(std::string_view source) {
  for (const Tag& tag : FindTags(source)) {
    for (const Token& token : Tokens(source, tag)) {
      if (source.substr(token.begin, token.end - token.begin) == "tools") {
        return true;
      }
    }
  }
  return false;
}

}  // namespace spindle::text
