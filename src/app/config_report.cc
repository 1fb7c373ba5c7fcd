#include "app/config_report.h"

#include <algorithm>
#include <type_traits>
#include <variant>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/status_macros.h"

namespace spindle::app {
namespace {

using nlohmann::ordered_json;

ordered_json ToJson(const config::OptionValue& value) {
  return std::visit(
      [](const auto& held) -> ordered_json {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::monostate>) {
          return nullptr;
        } else {
          return held;
        }
      },
      value);
}

void AddValue(const std::string& name, const config::OptionValue& value, ordered_json* json) {
  if (!std::holds_alternative<std::monostate>(value)) {
    (*json)[name] = ToJson(value);
  }
}

}  // namespace

void ConfigReport::Resolve(const ResolvedOptions& resolved) {
  MutexLock lock(mutex_);
  for (const auto& [name, value] : resolved) {
    const auto option = std::ranges::find(options_, name, &config::EffectiveOption::name);
    SPINDLE_CHECK(option != options_.end());
    option->value = value;
  }
}

std::string ConfigReport::Json() const {
  MutexLock lock(mutex_);
  ordered_json json = ordered_json::object();
  for (const config::EffectiveOption& option : options_) {
    ordered_json& shown = json[option.name];
    shown["value"] = ToJson(option.value);
    shown["given"] = option.given.has_value() ? ordered_json(*option.given) : ordered_json();
    shown["source"] = option.source;
  }
  return DumpJson(json);
}

std::string ValuesJson(const std::vector<config::EffectiveOption>& options) {
  ordered_json json = ordered_json::object();
  for (const config::EffectiveOption& option : options) {
    AddValue(option.name, option.value, &json);
  }
  return DumpJson(json);
}

std::string ValuesJson(const ResolvedOptions& options) {
  ordered_json json = ordered_json::object();
  for (const auto& [name, value] : options) {
    AddValue(name, value, &json);
  }
  return DumpJson(json);
}

}  // namespace spindle::app
