// A request body as a read-only JSON tree (RFC 8259) that points into the body. Why not the DOM of
// the JSON library: the contract bounds memory at 8 times the body (the shortest value, two bytes,
// costs 8 here), wants a lone surrogate escape to become U+FFFD, and wants a number that overflows
// to be reported by the field that holds it. Parsing is one pass, linear, without recursion.
// Thread-safety: immutable after Parse. Lifetime: borrows the text; values borrow the document.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace spindle::serving {

inline constexpr uint32_t kMaxJsonDepth = 128;

enum class JsonType : uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };

[[nodiscard]] std::string_view JsonTypeName(JsonType type);

struct JsonError {
  size_t offset;  // bytes from the beginning of the text, byte-order mark included
  std::string problem;
};

class JsonDocument;

// Handle of one value. Cheap to copy.
class JsonValue {
 public:
  JsonValue(const JsonDocument& document, uint32_t node) : document_(&document), node_(node) {}

  [[nodiscard]] JsonType type() const;

  [[nodiscard]] bool Is(JsonType type_wanted) const { return type() == type_wanted; }

  // REQUIRES: kBool.
  [[nodiscard]] bool AsBool() const;
  // Decoded text: valid UTF-8, lone surrogates as U+FFFD. REQUIRES: kString.
  [[nodiscard]] std::string AsString() const;
  // Nearest double; ±infinity when it overflows. REQUIRES: kNumber.
  [[nodiscard]] double AsDouble() const;
  // Exact value when the number is written as an integer that fits. REQUIRES: kNumber.
  [[nodiscard]] std::optional<int64_t> AsExactInteger() const;

  // Source text of the value.
  [[nodiscard]] std::string_view raw() const;
  // Source text that every JSON reader accepts: lone surrogate escapes are written \ufffd.
  [[nodiscard]] std::string Normalized() const;

  // Elements of an array or members of an object; O(count).
  [[nodiscard]] size_t CountChildren() const;
  // The last member called `name`, null values included. REQUIRES: kObject. O(count).
  [[nodiscard]] std::optional<JsonValue> Find(std::string_view name) const;

  // for (auto item = array.begin(); item != array.end(); ++item) item.value() …
  class Iterator {
   public:
    Iterator(const JsonDocument& document, uint32_t node, bool in_object)
        : document_(&document), node_(node), in_object_(in_object) {}

    [[nodiscard]] JsonValue value() const { return {*document_, in_object_ ? node_ + 1 : node_}; }

    // Decoded member name. REQUIRES: iterates over an object.
    [[nodiscard]] std::string name() const { return JsonValue(*document_, node_).AsString(); }

    // name() == text, without a copy where the name has no escapes.
    [[nodiscard]] bool NameIs(std::string_view text) const;

    Iterator& operator++();

    [[nodiscard]] bool operator!=(const Iterator& other) const { return node_ != other.node_; }

   private:
    const JsonDocument* document_;
    uint32_t node_;
    bool in_object_;
  };

  // REQUIRES: kArray or kObject.
  [[nodiscard]] Iterator begin() const;
  [[nodiscard]] Iterator end() const;

 private:
  const JsonDocument* document_;
  uint32_t node_;
};

class JsonDocument {
 public:
  JsonDocument() = default;
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  // Reads `text`, which must outlive the document, or says what is wrong and where. A document is
  // parsed once. Texts of 4 GiB and more are refused, and more than `max_nodes` values and names.
  [[nodiscard]] std::optional<JsonError> Parse(
      std::string_view text,
      uint32_t max_depth = kMaxJsonDepth,
      uint64_t max_nodes = std::numeric_limits<uint64_t>::max());

  // REQUIRES: Parse succeeded.
  [[nodiscard]] JsonValue root() const { return {*this, 0}; }

  // Values and names, containers twice.
  [[nodiscard]] size_t num_nodes() const { return nodes_.size(); }

  // Bytes of memory that the tree takes beside the text.
  [[nodiscard]] size_t tree_bytes() const { return nodes_.size() * sizeof(Node); }

 private:
  friend class JsonValue;
  friend class JsonValue::Iterator;
  friend class JsonParser;

  // A scalar has one node: its source bytes [begin, link). A container has two: one that opens it
  // (link = index of the closing one) and one that closes it, with its children between; in an
  // object, names and values alternate. A deque, since a vector's growth would hold three copies.
  struct Node {
    uint32_t begin;
    uint32_t link;
  };

  [[nodiscard]] bool IsContainer(uint32_t node) const {
    return text_[nodes_[node].begin] == '{' || text_[nodes_[node].begin] == '[';
  }

  [[nodiscard]] uint32_t After(uint32_t node) const {
    return IsContainer(node) ? nodes_[node].link + 1 : node + 1;
  }

  std::string_view text_;
  std::deque<Node> nodes_;
};

// Appends `text` as a JSON string with quotes. REQUIRES: valid UTF-8.
void AppendJsonString(std::string_view text, std::string* out);

}  // namespace spindle::serving
