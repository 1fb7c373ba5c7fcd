// Fuzzes chat templates and messages. Input: a template, a zero byte, the messages (JSON), and
// optionally another zero byte and the tools. Whatever happens, guards must not reach the plain
// text, and content of the fixed template must come out unchanged.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "text/chat_template.h"

namespace {

using spindle::text::ChatTemplate;

const std::vector<std::string>& Specials() {
  static const auto* const specials = new std::vector<std::string>{"<s>", "</s>", "<|end|>", "|>"};
  return *specials;
}

void Require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<char> copy(data, data + size);
  std::string_view rest(copy.data(), copy.size());
  std::array<std::string_view, 3> parts;
  for (std::string_view& part : parts) {
    part = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  }
  const auto chat_template = ChatTemplate::Compile(parts[0], "<s>", "</s>", Specials());
  if (!chat_template.ok()) {
    return 0;
  }
  const auto rendered =
      (*chat_template)->Render({.messages_json = parts[1], .tools_json = parts[2]});
  if (rendered.ok()) {
    std::string guard;
    spindle::AppendUtf8(rendered->guard, guard);
    Require(rendered->plain.find(guard) == std::string::npos);
    Require(spindle::IsUtf8(rendered->plain));
  }
  return 0;
}
