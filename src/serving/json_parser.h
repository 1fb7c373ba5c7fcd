// The reader behind JsonDocument::Parse. Thread-compatible; one use.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "serving/json_document.h"

namespace spindle::serving {

class JsonParser {
 public:
  JsonParser(std::string_view text, uint32_t max_depth, uint64_t max_nodes, JsonDocument* document)
      : text_(text), max_depth_(max_depth), max_nodes_(max_nodes), document_(document) {}

  [[nodiscard]] std::optional<JsonError> Run();

 private:
  enum class Expect : uint8_t { kValue, kValueOrEnd, kName, kNameOrEnd, kCommaOrEnd, kNothing };

  void SkipWhitespace();
  bool Fail(std::string problem);
  // Fails with what is expected instead of the byte at pos_.
  bool Unexpected(std::string_view wanted);
  bool Step();
  bool ReadValue();
  bool ReadName();
  bool ReadCommaOrEnd();
  bool ReadString();
  bool ReadEscape();
  bool ReadHex4();
  bool ReadNumber();
  bool ReadDigits();
  bool ReadLiteral(std::string_view literal);
  bool Open(bool is_object);
  void Close();
  void AddScalar(size_t begin);
  // What follows a complete value.
  void AfterValue();

  [[nodiscard]] bool AtEnd() const { return pos_ >= text_.size(); }

  [[nodiscard]] char Peek() const { return AtEnd() ? '\0' : text_[pos_]; }

  std::string_view text_;
  uint32_t max_depth_;
  uint64_t max_nodes_;
  JsonDocument* document_;
  size_t pos_ = 0;
  Expect expect_ = Expect::kValue;
  uint32_t depth_ = 0;
  std::array<uint32_t, kMaxJsonDepth> open_{};  // opening nodes of the containers around pos_
  std::optional<JsonError> error_;
};

}  // namespace spindle::serving
