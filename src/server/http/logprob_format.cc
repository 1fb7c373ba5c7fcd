#include "server/http/logprob_format.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>

#include "base/utf8.h"
#include "server/http/json_writer.h"

namespace spindle::server {
namespace {

// JSON has no infinity; clients know this value from other servers.
constexpr float kLowest = -9999.0F;

float Bounded(float logprob) {
  return std::isfinite(logprob) ? std::max(logprob, kLowest) : kLowest;
}

void AppendLogprob(float logprob, std::string* out) {
  const float value = Bounded(logprob);
  if (value <= kLowest) {
    out->append("-9999.0");
    return;
  }
  AppendJsonNumber(value, out);
}

void AppendBytes(std::string_view bytes, std::string* out) {
  out->push_back('[');
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) {
      out->push_back(',');
    }
    AppendJsonNumber(static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])), out);
  }
  out->push_back(']');
}

void AppendEntryHead(std::string_view bytes, float logprob, std::string* out) {
  out->append(R"({"token":)");
  AppendJsonString(bytes, out);
  out->append(R"(,"logprob":)");
  AppendLogprob(logprob, out);
  out->append(R"(,"bytes":)");
  AppendBytes(bytes, out);
}

// A key that stays distinct for tokens that are not UTF-8 on their own.
std::string TokenText(std::string_view bytes) {
  if (IsUtf8(bytes)) {
    return std::string(bytes);
  }
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += "\\x";
    text += kHex[byte >> 4U];
    text += kHex[byte & 0xFU];
  }
  return text;
}

void AppendTopMap(const serving::TokenLogprob& token, std::string* out) {
  if (!token.logprob.has_value()) {
    out->append("null");
    return;
  }
  // The k best and the sampled token; the larger value stays when two ids share a text.
  std::map<std::string, float> values;
  const auto add = [&values](std::string_view bytes, float logprob) {
    const auto [it, inserted] = values.try_emplace(TokenText(bytes), logprob);
    it->second = std::max(it->second, logprob);
  };
  for (const serving::AlternativeLogprob& alternative : token.top) {
    add(alternative.bytes, Bounded(alternative.logprob));
  }
  add(token.bytes, Bounded(*token.logprob));
  out->push_back('{');
  for (auto it = values.begin(); it != values.end(); ++it) {
    if (it != values.begin()) {
      out->push_back(',');
    }
    AppendJsonString(it->first, out);
    out->push_back(':');
    AppendLogprob(it->second, out);
  }
  out->push_back('}');
}

// Items of the lists of LogprobText, in their order.
void AppendChatItem(const serving::TokenLogprob& token, std::string* out) {
  AppendEntryHead(token.bytes, token.logprob.value_or(kLowest), out);
  out->append(R"(,"top_logprobs":[)");
  for (size_t i = 0; i < token.top.size(); ++i) {
    if (i > 0) {
      out->push_back(',');
    }
    AppendEntryHead(token.top[i].bytes, token.top[i].logprob, out);
    out->push_back('}');
  }
  out->append("]}");
}

void AppendTokenItem(const serving::TokenLogprob& token, std::string* out) {
  AppendJsonString(TokenText(token.bytes), out);
}

void AppendLogprobItem(const serving::TokenLogprob& token, std::string* out) {
  if (token.logprob.has_value()) {
    AppendLogprob(*token.logprob, out);
  } else {
    out->append("null");
  }
}

void AppendOffsetItem(const serving::TokenLogprob& token, std::string* out) {
  AppendJsonNumber(token.text_offset, out);
}

struct ListForm {
  std::string_view open;  // what stands before the list, its bracket included
  void (*append)(const serving::TokenLogprob& token, std::string* out);
};

constexpr std::array<ListForm, 1> kChatLists = {{{R"({"content":[)", AppendChatItem}}};
constexpr std::array<ListForm, 4> kCompletionLists = {
    {{R"({"tokens":[)", AppendTokenItem},
     {R"(],"token_logprobs":[)", AppendLogprobItem},
     {R"(],"top_logprobs":[)", AppendTopMap},
     {R"(],"text_offset":[)", AppendOffsetItem}}};

std::span<const ListForm> ListsOf(bool is_chat) {
  return is_chat ? std::span<const ListForm>(kChatLists)
                 : std::span<const ListForm>(kCompletionLists);
}

std::string_view EndOf(bool is_chat) {
  return is_chat ? R"(],"refusal":null})" : "]}";
}

}  // namespace

void LogprobText::Add(std::span<const serving::TokenLogprob> tokens) {
  const std::span<const ListForm> forms = ListsOf(is_chat_);
  for (const serving::TokenLogprob& token : tokens) {
    for (size_t i = 0; i < forms.size(); ++i) {
      scratch_.assign(lists_[i].empty() ? "" : ",");
      forms[i].append(token, &scratch_);
      lists_[i].Append(scratch_);
    }
  }
}

uint64_t LogprobText::held_bytes() const {
  uint64_t bytes = scratch_.capacity();
  for (const TextBlocks& list : lists_) {
    bytes += list.held_bytes();
  }
  return bytes;
}

void LogprobText::MoveTo(TextBlocks* out) {
  const std::span<const ListForm> forms = ListsOf(is_chat_);
  for (size_t i = 0; i < forms.size(); ++i) {
    out->Append(forms[i].open);
    out->Append(std::move(lists_[i]));
  }
  out->Append(EndOf(is_chat_));
}

void AppendLogprobs(bool is_chat, std::span<const serving::TokenLogprob> tokens, std::string* out) {
  for (const ListForm& form : ListsOf(is_chat)) {
    out->append(form.open);
    for (size_t i = 0; i < tokens.size(); ++i) {
      out->append(i > 0 ? "," : "");
      form.append(tokens[i], out);
    }
  }
  out->append(EndOf(is_chat));
}

}  // namespace spindle::server
