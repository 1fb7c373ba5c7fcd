// Chat templates of real models against transformers' apply_chat_template; see
// tests/golden/text/README.md.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "text/chat_template.h"

namespace spindle::text {
namespace {

using Json = nlohmann::ordered_json;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::filesystem::path GoldenPath(const char* name) {
  return std::filesystem::path(SPINDLE_TEST_GOLDEN_DIR) / "text" / name;
}

std::string Digest(std::string_view text) {
  uint64_t digest = 0xCBF29CE484222325ULL;
  for (const char c : text) {
    digest = (digest ^ static_cast<uint8_t>(c)) * 0x100000001B3ULL;
  }
  std::ostringstream out;
  out << std::hex << std::setw(16) << std::setfill('0') << digest;
  return out.str();
}

// Expected outcome by template and conversation.
std::map<std::string, std::map<std::string, std::string>> ReadRenders() {
  std::map<std::string, std::map<std::string, std::string>> renders;
  std::istringstream lines(ReadFile(GoldenPath("renders.txt")));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::string conversation;
    std::string outcome;
    words >> name >> conversation >> std::ws;
    std::getline(words, outcome);
    renders[name][conversation] = outcome;
  }
  return renders;
}

std::string Outcome(const absl::StatusOr<RenderedPrompt>& rendered) {
  if (rendered.ok()) {
    return Digest(rendered->plain);
  }
  const std::string message(rendered.status().message());
  const bool failed =
      message.starts_with("chat template") || message.starts_with("continue_final_message");
  return failed ? "failed" : "raised " + Digest(message);
}

struct Counts {
  size_t num_templates = 0;
  size_t num_renders = 0;
};

// Renders every conversation with every template of `folder`.
Counts CompareFolder(const std::filesystem::path& folder) {
  const auto renders = ReadRenders();
  const Json conversations = Json::parse(ReadFile(GoldenPath("conversations.json")));
  const std::string tools = ReadFile(GoldenPath("tools.json"));
  Counts counts;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().stem().string();
    const auto expected = renders.find(name);
    if (expected == renders.end()) {
      ADD_FAILURE() << "renders.txt lacks " << name;
      continue;
    }
    ++counts.num_templates;
    const std::vector<std::string> specials = {"<s>", "</s>"};
    const auto chat_template =
        ChatTemplate::Compile(ReadFile(entry.path()), "<s>", "</s>", specials);
    if (!chat_template.ok()) {
      ADD_FAILURE() << name << ": " << chat_template.status();
      continue;
    }
    for (const Json& conversation : conversations) {
      const std::string messages = conversation["messages"].dump();
      const std::string kwargs = conversation.value("kwargs", Json::object()).dump();
      const auto rendered =
          (*chat_template)
              ->Render(
                  {.messages_json = messages,
                   .tools_json = conversation.contains("tools") ? tools : "",
                   .kwargs_json = kwargs,
                   .add_generation_prompt = conversation.value("add_generation_prompt", true),
                   .continue_final_message = conversation.value("continue_final_message", false),
                   .now = std::chrono::sys_days{std::chrono::March / 4 / 2026} +
                          std::chrono::hours(12)});
      const std::string conversation_name = conversation["name"];
      EXPECT_EQ(Outcome(rendered), expected->second.at(conversation_name))
          << name << " " << conversation_name << "\n"
          << (rendered.ok() ? rendered->plain : rendered.status().ToString());
      ++counts.num_renders;
    }
  }
  return counts;
}

TEST(TemplateReferenceTest, CommittedTemplatesRenderAsTransformersRendersThem) {
  const Counts counts = CompareFolder(GoldenPath("templates"));
  EXPECT_GE(counts.num_templates, 10U);
  EXPECT_GE(counts.num_renders, 200U);
}

TEST(TemplateReferenceTest, FetchedTemplatesRenderAsTransformersRendersThem) {
  const char* root = std::getenv("SPINDLE_TEST_TOKENIZERS");
  if (root == nullptr) {
    GTEST_SKIP()
        << "SPINDLE_TEST_TOKENIZERS is not set (tools/golden/text_fetch.py fills a folder)";
  }
  const Counts counts = CompareFolder(std::filesystem::path(root) / "templates");
  EXPECT_GE(counts.num_templates, 90U);
}

}  // namespace
}  // namespace spindle::text
