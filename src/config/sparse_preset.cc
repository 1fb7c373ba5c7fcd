#include "config/sparse_preset.h"

#include <string_view>
#include <utility>
#include <vector>

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

// Members in order; values are JSON, which YAML is a superset of.
class MemberLines {
 public:
  void Add(std::string_view name, const json& value) {
    text_ += std::string(name) + ": " +
             (value.is_string() ? value.get<std::string>() : value.dump()) + '\n';
  }

  template <typename T>
  void Add(std::string_view name, const std::optional<T>& value) {
    if (value.has_value()) {
      Add(name, json(*value));
    }
  }

  void AddName(std::string_view name, const std::string& value) {
    if (!value.empty()) {
      Add(name, json(value));
    }
  }

  void AddList(std::string_view name, const std::vector<float>& values) {
    if (!values.empty()) {
      Add(name, json(values));
    }
  }

  void AddParams(std::string_view name, const std::vector<std::pair<std::string, double>>& params) {
    json members = json::object();
    for (const auto& [param, value] : params) {
      members[param] = value;
    }
    if (!members.empty()) {
      Add(name, members);
    }
  }

  [[nodiscard]] std::string Take() && { return std::move(text_); }

 private:
  std::string text_;
};

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

std::string SparsePresetText(const engine::SparseRequest& request) {
  MemberLines lines;
  lines.AddName("algorithm", request.algorithm);
  lines.Add("budget_tokens", request.budget_tokens);
  lines.Add("budget_fraction", request.budget_fraction);
  lines.Add("sink_tokens", request.sink_tokens);
  lines.Add("recent_tokens", request.recent_tokens);
  lines.Add("min_context", request.min_context);
  lines.Add("dense_layers", request.dense_layers);
  lines.AddList("layer_multipliers", request.layer_multipliers);
  lines.AddList("head_multipliers", request.head_multipliers);
  lines.Add("top_p_mass", request.top_p_mass);
  if (request.dense_fallback.has_value()) {
    lines.AddName("fallback", *request.dense_fallback ? "dense" : "none");
  }
  lines.Add("min_mass", request.min_mass);
  lines.Add("reselect_interval", request.reselect_interval);
  lines.AddParams("params", request.params);
  lines.AddName("prefill", request.prefill);
  lines.AddParams("prefill_params", request.prefill_params);
  return std::move(lines).Take();
}

}  // namespace spindle::config
