#include "server/http/logprob_format.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string_view>

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

// `[` item, item … `]`
template <typename Append>
void AppendList(std::span<const serving::TokenLogprob> tokens, Append append, std::string* out) {
  out->push_back('[');
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) {
      out->push_back(',');
    }
    append(tokens[i]);
  }
  out->push_back(']');
}

}  // namespace

void AppendChatLogprobs(std::span<const serving::TokenLogprob> tokens, std::string* out) {
  out->append(R"({"content":)");
  AppendList(
      tokens,
      [out](const serving::TokenLogprob& token) {
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
      },
      out);
  out->append(R"(,"refusal":null})");
}

void AppendCompletionLogprobs(std::span<const serving::TokenLogprob> tokens, std::string* out) {
  out->append(R"({"tokens":)");
  AppendList(
      tokens,
      [out](const serving::TokenLogprob& token) { AppendJsonString(TokenText(token.bytes), out); },
      out);
  out->append(R"(,"token_logprobs":)");
  AppendList(
      tokens,
      [out](const serving::TokenLogprob& token) {
        if (token.logprob.has_value()) {
          AppendLogprob(*token.logprob, out);
        } else {
          out->append("null");
        }
      },
      out);
  out->append(R"(,"top_logprobs":)");
  AppendList(
      tokens, [out](const serving::TokenLogprob& token) { AppendTopMap(token, out); }, out);
  out->append(R"(,"text_offset":)");
  AppendList(
      tokens,
      [out](const serving::TokenLogprob& token) { AppendJsonNumber(token.text_offset, out); },
      out);
  out->push_back('}');
}

}  // namespace spindle::server
