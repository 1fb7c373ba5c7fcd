#include "text/chat_template.h"

#include <chrono>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "text/template_source.h"
#include "text/tokenizer.h"
#include "unit/text/test_vocabulary.h"

namespace spindle::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kTemplate =
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}";

std::unique_ptr<ChatTemplate> Make(std::string_view source,
                                   const std::vector<std::string>& specials = {}) {
  auto made = ChatTemplate::Compile(source, "<s>", "</s>", specials);
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : nullptr;
}

std::string UserMessage(const std::string& content) {
  return nlohmann::json::array({{{"role", "user"}, {"content", content}}}).dump();
}

TEST(ChatTemplateTest, RaisedMessageIsPassedOnUnchanged) {
  const auto made = Make("{{ raise_exception('roles must alternate') }}");
  const auto rendered = made->Render({.messages_json = R"([{"role":"user"}])"});
  EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(rendered.status().message()), "roles must alternate");
}

TEST(ChatTemplateTest, SyntaxErrorNamesTheLine) {
  const auto made = ChatTemplate::Compile("a\nb\n{% if %}", "", "", {});
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("line 3"));
}

TEST(ChatTemplateTest, EndlessWorkAndOutputAreCutOff) {
  const std::string messages = UserMessage("x");
  const char* const work =
      "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}";
  const char* const output =
      "{% set s = 'x' * 9000000 %}{% for a in range(9) %}{{ s }}{% endfor %}";
  const char* const memory =
      "{% set ns = namespace(s='x' * 1000) %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s "
      "%}{% endfor %}";
  for (const char* source : {work, output, memory}) {
    EXPECT_EQ(Make(source)->Render({.messages_json = messages}).status().code(),
              absl::StatusCode::kResourceExhausted)
        << source;
  }
}

TEST(ChatTemplateTest, BadInputIsNamed) {
  const auto made = Make(kTemplate);
  const auto message = [&](const RenderRequest& request) {
    const auto rendered = made->Render(request);
    EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(rendered.status().message());
  };
  const std::string messages = UserMessage("x");
  EXPECT_THAT(message({.messages_json = "{"}), HasSubstr("messages"));
  EXPECT_THAT(message({.messages_json = "[]"}), HasSubstr("at least one"));
  EXPECT_THAT(message({.messages_json = "[1]"}), HasSubstr("objects"));
  EXPECT_THAT(message({.messages_json = std::string(200, '[')}), HasSubstr("deeper"));
  EXPECT_THAT(message({.messages_json = messages, .tools_json = "{}"}), HasSubstr("tools"));
  EXPECT_THAT(message({.messages_json = messages, .kwargs_json = "[]"}),
              HasSubstr("chat_template_kwargs"));
  EXPECT_THAT(message({.messages_json = messages, .kwargs_json = R"({"messages":1})"}),
              HasSubstr("'messages'"));
  EXPECT_THAT(message({.messages_json = messages, .continue_final_message = true}),
              HasSubstr("exclude"));
  std::string all_guards = "\"";
  for (char32_t guard = 0xFDD0; guard <= 0xFDEF; ++guard) {
    AppendUtf8(guard, all_guards);
  }
  EXPECT_THAT(message({.messages_json = R"([{"role":"user","content":)" + all_guards + "\"}]"}),
              HasSubstr("noncharacters"));
}

TEST(ChatTemplateTest, ToolSupportIsSeenInCodeOnly) {
  EXPECT_TRUE(Make("{% if tools %}x{% endif %}")->supports_tools());
  EXPECT_FALSE(Make("tools {# tools #}{{ 'tools' }}{{ my_tools }}")->supports_tools());
}

TEST(TemplateSourceTest, LeavesEverythingElseAsItIs) {
  for (const char* source : {"{{ '{% generation %}' }}",
                             "{# {% generation %} #}",
                             "{% raw %}{{ 'a' % b }}{% endraw %}",
                             "{{ a % b }} 'x' % y",
                             "{{",
                             "{%",
                             "{#",
                             "{{ '",
                             "{{ \"a\" %",
                             "{{ {'a': {}} }}"}) {
    EXPECT_EQ(RewriteTemplate(source), source);
  }
  EXPECT_EQ(RewriteTemplate("{%- generation -%}x{% endgeneration %}"),
            "{%- with -%}x{% endwith %}");
  EXPECT_EQ(RewriteTemplate("{{ '%d' % a.b(c)[0] | int + 1 }}"),
            "{{ '%d' |format( a.b(c)[0] | int) + 1 }}");
  EXPECT_EQ(RewriteTemplate("{{ '%d%d' % (1, 2) }}"), "{{ '%d%d' |format (1, 2) }}");
}

class GuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = Tokenizer::FromGguf(BytePairVocabulary());
    ASSERT_TRUE(made.ok()) << made.status();
    tokenizer_ = *std::move(made);
    const auto specials = tokenizer_->special_texts();
    template_ = Make(kTemplate, {specials.begin(), specials.end()});
  }

  // Ids of the control tokens in `ids`, in order.
  [[nodiscard]] std::vector<std::string> Specials(const std::vector<TokenId>& ids) const {
    std::vector<std::string> specials;
    for (const TokenId id : ids) {
      if (tokenizer_->IsSpecial(id)) {
        specials.emplace_back(tokenizer_->TokenBytes(id));
      }
    }
    return specials;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;
};

TEST_F(GuardTest, ContentNeverBecomesControlTokensAndKeepsItsBytes) {
  constexpr uint64_t kSeed = 7;
  RecordProperty("seed", static_cast<int>(kSeed));
  std::mt19937_64 random(kSeed);
  const std::vector<std::string> parts = {"<|start|>",
                                          "<|end|>",
                                          "<|end|>x",
                                          "<|",
                                          "|>",
                                          "start",
                                          "end",
                                          "<",
                                          "|",
                                          ">",
                                          "x",
                                          "<think>",
                                          "hello",
                                          " ",
                                          "\n",
                                          "123",
                                          "\xC3\xA9",
                                          "\\u",
                                          "fdd0",
                                          "\xEF\xB7\x90",
                                          "\xEF\xB7\x91",
                                          "\"",
                                          "\\",
                                          "\xF0\x9F\x98\x80"};
  for (int round = 0; round < 2000; ++round) {
    std::string content;
    for (uint64_t i = random() % 12; i > 0; --i) {
      content += parts[random() % parts.size()];
    }
    const std::string messages = UserMessage(content);
    const auto rendered = template_->Render({.messages_json = messages});
    ASSERT_TRUE(rendered.ok()) << rendered.status();
    const std::string expected = "<|start|>user\n" + content + "<|end|>\n<|start|>assistant\n";
    ASSERT_EQ(rendered->plain, expected);
    const auto ids =
        tokenizer_->EncodeRendered(rendered->text, rendered->guard, /*add_special=*/false);
    ASSERT_TRUE(ids.ok()) << ids.status();
    // No byte changes, and exactly the template's own control tokens are control tokens.
    ASSERT_EQ(*tokenizer_->Decode(*ids, /*skip_special=*/false), expected);
    ASSERT_THAT(Specials(*ids), ElementsAre("<|start|>", "<|end|>", "<|start|>")) << content;
    if (content.find("<|start|>") == std::string::npos &&
        content.find("<|end|>") == std::string::npos) {
      ASSERT_EQ(*ids, *tokenizer_->Encode(expected, {.add_special = false})) << content;
    }
    // The content's own ids are those of the content alone with control tokens off.
    auto alone =
        tokenizer_->Encode("user\n" + content, {.add_special = false, .parse_special = false});
    ASSERT_TRUE(alone.ok());
    ASSERT_EQ(std::vector<TokenId>(ids->begin() + 1,
                                   ids->begin() + 1 + static_cast<std::ptrdiff_t>(alone->size())),
              *alone)
        << content;
  }
}

TEST_F(GuardTest, ToolsKwargsAndKeysAreGuardedToo) {
  const auto made = Make(
      "{{ tools | tojson }}{{ tools | tojson(ensure_ascii=true) }}{{ note }}{{ messages[0] | "
      "tojson }}<|end|>",
      {"<|end|>"});
  const auto rendered = made->Render({.messages_json = R"([{"role":"user","a<|end|>":"<|end|>"}])",
                                      .tools_json = R"([{"n":"<|end|>"}])",
                                      .kwargs_json = R"({"note":"\u003c|end|>"})"});
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  const auto ids = tokenizer_->EncodeRendered(rendered->text, rendered->guard, false);
  ASSERT_TRUE(ids.ok());
  EXPECT_THAT(Specials(*ids), ElementsAre("<|end|>"));
  EXPECT_EQ(*tokenizer_->Decode(*ids, false), rendered->plain);
  EXPECT_THAT(rendered->plain, HasSubstr(R"([{"n": "<|end|>"}])"));
  EXPECT_THAT(rendered->plain, Not(HasSubstr("fdd")));
}

}  // namespace
}  // namespace spindle::text
