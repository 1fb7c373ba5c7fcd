#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

#include "app/model_loader.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "config/option_error.h"

namespace spindle::app {
namespace {

using nlohmann::json;

std::optional<TokenId> MetaToken(const formats::ModelFile& file, std::string_view key) {
  const std::optional<uint64_t> id = file.MetaUint(key);
  if (!id.has_value() || *id > static_cast<uint64_t>(std::numeric_limits<TokenId>::max())) {
    return std::nullopt;
  }
  return static_cast<TokenId>(*id);
}

std::optional<bool> MetaBool(const formats::ModelFile& file, std::string_view key) {
  const formats::MetaValue* value = file.Meta(key);
  const bool* flag = value == nullptr ? nullptr : std::get_if<bool>(value);
  return flag == nullptr ? std::nullopt : std::optional<bool>(*flag);
}

template <typename T>
std::vector<T> MetaList(const formats::ModelFile& file, std::string_view key) {
  const formats::MetaValue* value = file.Meta(key);
  const auto* list = value == nullptr ? nullptr : std::get_if<std::vector<T>>(value);
  return list == nullptr ? std::vector<T>() : *list;
}

text::GgufVocabulary ReadGgufVocabulary(const formats::ModelFile& file) {
  text::GgufVocabulary vocabulary;
  vocabulary.model = file.MetaString("tokenizer.ggml.model").value_or("");
  vocabulary.pre = file.MetaString("tokenizer.ggml.pre").value_or("");
  vocabulary.tokens = MetaList<std::string>(file, "tokenizer.ggml.tokens");
  vocabulary.merges = MetaList<std::string>(file, "tokenizer.ggml.merges");
  for (const double score : MetaList<double>(file, "tokenizer.ggml.scores")) {
    vocabulary.scores.push_back(static_cast<float>(score));
  }
  for (const int64_t type : MetaList<int64_t>(file, "tokenizer.ggml.token_type")) {
    vocabulary.token_types.push_back(static_cast<int32_t>(type));
  }
  vocabulary.bos_id = MetaToken(file, "tokenizer.ggml.bos_token_id");
  vocabulary.eos_id = MetaToken(file, "tokenizer.ggml.eos_token_id");
  vocabulary.unknown_id = MetaToken(file, "tokenizer.ggml.unknown_token_id");
  vocabulary.padding_id = MetaToken(file, "tokenizer.ggml.padding_token_id");
  for (const std::string_view key :
       {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (const std::optional<TokenId> id = MetaToken(file, key)) {
      vocabulary.end_ids.push_back(*id);
    }
  }
  vocabulary.add_bos = MetaBool(file, "tokenizer.ggml.add_bos_token");
  vocabulary.add_eos = MetaBool(file, "tokenizer.ggml.add_eos_token");
  vocabulary.add_space_prefix = MetaBool(file, "tokenizer.ggml.add_space_prefix");
  return vocabulary;
}

// tokenizer.json of the largest vocabularies has about 35 MB.
constexpr uint64_t kMaxTokenizerBytes = uint64_t{256} << 20;
constexpr uint64_t kMaxTemplateBytes = uint64_t{16} << 20;

// Empty when there is none; anything else that is wrong is an error.
absl::StatusOr<std::string> ReadIfThere(const std::filesystem::path& path) {
  absl::StatusOr<std::string> text = ReadFile(path.string(), kMaxTokenizerBytes);
  return absl::IsNotFound(text.status()) ? absl::StatusOr<std::string>("") : text;
}

// "chat_template" of tokenizer_config.json: a text, or a list of named ones of which "default" is
// meant.
std::string TemplateFromConfig(const std::string& tokenizer_config) {
  const json config = json::parse(tokenizer_config, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object() || !config.contains("chat_template")) {
    return "";
  }
  const json& value = config["chat_template"];
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_array()) {
    for (const json& entry : value) {
      if (entry.is_object() && entry.value("name", "") == "default") {
        return entry.value("template", "");
      }
    }
  }
  return "";
}

absl::StatusOr<std::unique_ptr<text::Tokenizer>> TokenizerAt(const std::string& path) {
  std::filesystem::path json_path = path;
  std::error_code ignored;  // a path that cannot be looked at fails below, with its reason
  if (std::filesystem::is_directory(json_path, ignored)) {
    json_path /= "tokenizer.json";
  }
  SPINDLE_ASSIGN_OR_RETURN(const std::string definition,
                           ReadFile(json_path.string(), kMaxTokenizerBytes));
  const std::filesystem::path folder = json_path.parent_path();
  SPINDLE_ASSIGN_OR_RETURN(const std::string tokenizer_config,
                           ReadIfThere(folder / "tokenizer_config.json"));
  SPINDLE_ASSIGN_OR_RETURN(const std::string generation_config,
                           ReadIfThere(folder / "generation_config.json"));
  return text::Tokenizer::FromJson(definition, tokenizer_config, generation_config);
}

absl::StatusOr<std::unique_ptr<text::ChatTemplate>> Compile(const std::string& source,
                                                            const text::Tokenizer& tokenizer) {
  return text::ChatTemplate::Compile(
      source, tokenizer.bos_text(), tokenizer.eos_text(), tokenizer.special_texts());
}

// `option`: a path, or the template's text.
absl::StatusOr<std::unique_ptr<text::ChatTemplate>> CompileGiven(const std::string& option,
                                                                 const text::Tokenizer& tokenizer) {
  // A template's text holds braces; anything else is a path.
  if (option.find('{') != std::string::npos) {
    return Compile(option, tokenizer);
  }
  SPINDLE_ASSIGN_OR_RETURN(const std::string source, ReadFile(option, kMaxTemplateBytes));
  if (source.empty()) {
    return nullptr;
  }
  return Compile(source, tokenizer);
}

std::string TemplateFromModel(const formats::ModelFile& file) {
  if (file.kind() == formats::FileKind::kGguf) {
    return std::string(file.MetaString("tokenizer.chat_template").value_or(""));
  }
  if (std::optional<std::string> jinja = file.SideFile("chat_template.jinja")) {
    return *std::move(jinja);
  }
  return TemplateFromConfig(file.SideFile("tokenizer_config.json").value_or(""));
}

}  // namespace

absl::StatusOr<std::unique_ptr<text::Tokenizer>> LoadTokenizer(const formats::ModelFile& file,
                                                               const std::string& path) {
  if (!path.empty()) {
    absl::StatusOr<std::unique_ptr<text::Tokenizer>> given = TokenizerAt(path);
    if (!given.ok()) {
      return config::OptionError("--tokenizer", given.status());
    }
    return given;
  }
  if (file.kind() == formats::FileKind::kGguf) {
    return text::Tokenizer::FromGguf(ReadGgufVocabulary(file));
  }
  const std::optional<std::string> definition = file.SideFile("tokenizer.json");
  if (!definition.has_value()) {
    return absl::InvalidArgumentError(
        "the model folder has no tokenizer.json; give one with --tokenizer");
  }
  return text::Tokenizer::FromJson(*definition,
                                   file.SideFile("tokenizer_config.json").value_or(""),
                                   file.SideFile("generation_config.json").value_or(""));
}

absl::StatusOr<std::unique_ptr<text::ChatTemplate>> LoadChatTemplate(
    const formats::ModelFile& file,
    const text::Tokenizer& tokenizer,
    const std::string& override_template) {
  if (!override_template.empty()) {
    absl::StatusOr<std::unique_ptr<text::ChatTemplate>> given =
        CompileGiven(override_template, tokenizer);
    if (!given.ok()) {
      return config::OptionError("--chat-template", given.status());
    }
    return given;
  }
  const std::string source = TemplateFromModel(file);
  if (source.empty()) {
    return nullptr;
  }
  return Compile(source, tokenizer);
}

}  // namespace spindle::app
