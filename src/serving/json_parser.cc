#include "serving/json_parser.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/utf8.h"

namespace spindle::serving {
namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

bool IsHexDigit(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

}  // namespace

std::optional<JsonError> JsonParser::Run() {
  max_depth_ = std::min(max_depth_, kMaxJsonDepth);
  document_->text_ = text_;
  if (text_.size() >= std::numeric_limits<uint32_t>::max()) {
    return JsonError{0, "the text is too long"};
  }
  if (text_.starts_with("\xEF\xBB\xBF")) {
    pos_ = 3;
  }
  while (Step()) {
  }
  return std::move(error_);
}

void JsonParser::SkipWhitespace() {
  while (!AtEnd() && (text_[pos_] == ' ' || text_[pos_] == '\n' || text_[pos_] == '\r' ||
                      text_[pos_] == '\t')) {
    ++pos_;
  }
}

bool JsonParser::Fail(std::string problem) {
  error_ = JsonError{pos_, std::move(problem)};
  return false;
}

bool JsonParser::Unexpected(std::string_view wanted) {
  return Fail(AtEnd() ? fmt::format("the text ends where {} is expected", wanted)
                      : fmt::format("{} is expected", wanted));
}

// One lexical element; false at the end or after an error.
bool JsonParser::Step() {
  SkipWhitespace();
  switch (expect_) {
    case Expect::kValueOrEnd:
      if (Peek() == ']') {
        Close();
        return true;
      }
      return ReadValue();
    case Expect::kValue:
      return ReadValue();
    case Expect::kNameOrEnd:
      if (Peek() == '}') {
        Close();
        return true;
      }
      return ReadName();
    case Expect::kName:
      return ReadName();
    case Expect::kCommaOrEnd:
      return ReadCommaOrEnd();
    case Expect::kNothing:
      break;
  }
  return AtEnd() ? false : Unexpected("the end of the text");
}

bool JsonParser::ReadValue() {
  if (document_->nodes_.size() >= max_nodes_) {
    return Fail(fmt::format("there are more than {} values and names", max_nodes_));
  }
  const size_t begin = pos_;
  bool good = false;
  switch (Peek()) {
    case '{':
      return Open(/*is_object=*/true);
    case '[':
      return Open(/*is_object=*/false);
    case '"':
      good = ReadString();
      break;
    case 't':
      good = ReadLiteral("true");
      break;
    case 'f':
      good = ReadLiteral("false");
      break;
    case 'n':
      good = ReadLiteral("null");
      break;
    default:
      if (Peek() != '-' && !IsDigit(Peek())) {
        return Unexpected("a value");
      }
      good = ReadNumber();
  }
  if (good) {
    AddScalar(begin);
    AfterValue();
  }
  return good;
}

bool JsonParser::ReadName() {
  const size_t begin = pos_;
  if (Peek() != '"') {
    return Unexpected("a member name in double quotes");
  }
  if (!ReadString()) {
    return false;
  }
  AddScalar(begin);
  SkipWhitespace();
  if (Peek() != ':') {
    return Unexpected("':'");
  }
  ++pos_;
  expect_ = Expect::kValue;
  return true;
}

bool JsonParser::ReadCommaOrEnd() {
  const bool in_object = text_[document_->nodes_[open_[depth_ - 1]].begin] == '{';
  if (Peek() == ',') {
    ++pos_;
    expect_ = in_object ? Expect::kName : Expect::kValue;
    return true;
  }
  if (Peek() != (in_object ? '}' : ']')) {
    return Unexpected(in_object ? "',' or '}'" : "',' or ']'");
  }
  Close();
  return true;
}

bool JsonParser::ReadString() {
  ++pos_;
  while (!AtEnd()) {
    const auto byte = static_cast<uint8_t>(text_[pos_]);
    if (byte == '"') {
      ++pos_;
      return true;
    }
    if (byte == '\\') {
      if (!ReadEscape()) {
        return false;
      }
    } else if (byte < 0x20) {
      return Fail("a control character inside a string must be escaped");
    } else if (byte < 0x80) {
      ++pos_;
    } else {
      const Utf8Unit unit = NextUtf8Unit(text_.substr(pos_, 4));
      if (unit.kind != Utf8Unit::Kind::kValid) {
        return Fail("the text is not valid UTF-8");
      }
      pos_ += unit.length;
    }
  }
  return Fail("the text ends inside a string");
}

bool JsonParser::ReadEscape() {
  ++pos_;
  if (Peek() == 'u') {
    ++pos_;
    return ReadHex4();
  }
  if (AtEnd() || std::string_view("\"\\/bfnrt").find(text_[pos_]) == std::string_view::npos) {
    return Unexpected("a known escape sequence");
  }
  ++pos_;
  return true;
}

bool JsonParser::ReadHex4() {
  for (int i = 0; i < 4; ++i) {
    if (!IsHexDigit(Peek())) {
      return Unexpected("a hexadecimal digit");
    }
    ++pos_;
  }
  return true;
}

bool JsonParser::ReadNumber() {
  if (Peek() == '-') {
    ++pos_;
  }
  if (Peek() == '0') {
    ++pos_;
  } else if (!ReadDigits()) {
    return false;
  }
  if (Peek() == '.') {
    ++pos_;
    if (!ReadDigits()) {
      return false;
    }
  }
  if (Peek() == 'e' || Peek() == 'E') {
    ++pos_;
    if (Peek() == '+' || Peek() == '-') {
      ++pos_;
    }
    return ReadDigits();
  }
  return true;
}

bool JsonParser::ReadDigits() {
  if (!IsDigit(Peek())) {
    return Unexpected("a digit");
  }
  while (IsDigit(Peek())) {
    ++pos_;
  }
  return true;
}

bool JsonParser::ReadLiteral(std::string_view literal) {
  if (text_.substr(pos_, literal.size()) != literal) {
    return Unexpected("a value");
  }
  pos_ += literal.size();
  return true;
}

bool JsonParser::Open(bool is_object) {
  if (depth_ == max_depth_) {
    return Fail(fmt::format("the nesting is deeper than {}", max_depth_));
  }
  open_[depth_++] = static_cast<uint32_t>(document_->nodes_.size());
  document_->nodes_.push_back({static_cast<uint32_t>(pos_), 0});
  ++pos_;
  expect_ = is_object ? Expect::kNameOrEnd : Expect::kValueOrEnd;
  return true;
}

void JsonParser::Close() {
  document_->nodes_[open_[--depth_]].link = static_cast<uint32_t>(document_->nodes_.size());
  document_->nodes_.push_back({static_cast<uint32_t>(pos_), static_cast<uint32_t>(pos_ + 1)});
  ++pos_;
  AfterValue();
}

void JsonParser::AddScalar(size_t begin) {
  document_->nodes_.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(pos_)});
}

void JsonParser::AfterValue() {
  expect_ = depth_ == 0 ? Expect::kNothing : Expect::kCommaOrEnd;
}

}  // namespace spindle::serving
