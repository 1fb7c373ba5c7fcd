#include "config/sparse_preset.h"

#include <string_view>

#include <nlohmann/json.hpp>
#include <yaml-cpp/yaml.h>

#include "base/read_file.h"
#include "base/status_macros.h"
#include "serving/sparse_fields.h"

namespace spindle::config {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxPresetBytes = uint64_t{1} << 20;
constexpr uint32_t kMaxPresetDepth = 4;

// Plain scalars that are JSON stay what they say; all others are texts.
json ScalarOf(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  constexpr std::string_view kQuoted = "!";
  json value = node.Tag() == kQuoted ? json(json::value_t::discarded)
                                     : json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? json(text) : value;
}

json ToJson(const YAML::Node& node, uint32_t depth) {
  if (node.IsScalar() || depth == 0) {
    return ScalarOf(node);
  }
  json value = node.IsMap() ? json::object() : json::array();
  for (const auto& entry : node) {
    if (node.IsMap()) {
      value[entry.first.as<std::string>()] = ToJson(entry.second, depth - 1);
    } else {
      value.push_back(ToJson(entry, depth - 1));
    }
  }
  return value;
}

absl::Status Wrong(const std::string& path, std::string_view why) {
  return absl::InvalidArgumentError(path + ": " + std::string(why));
}

}  // namespace

absl::StatusOr<engine::SparseRequest> ReadSparsePreset(const std::string& path) {
  SPINDLE_ASSIGN_OR_RETURN(const std::string text, spindle::ReadFile(path, kMaxPresetBytes));
  std::string members;
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) {
      return Wrong(path, "the top level must be a map of members of 'spindle.sparse'");
    }
    members = ToJson(root, kMaxPresetDepth).dump(-1, ' ', true, json::error_handler_t::replace);
  } catch (const YAML::Exception& e) {
    return Wrong(path, e.what());
  }
  serving::Result<engine::SparseRequest> preset = serving::ParseSparse(members);
  if (!preset.ok()) {
    return Wrong(path, preset.error().message);
  }
  return std::move(preset).value();
}

}  // namespace spindle::config
