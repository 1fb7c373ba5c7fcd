#include "serving/request_fields.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

namespace spindle::serving {

FieldIndex::FieldIndex(JsonValue object, std::span<const FieldRule> rules)
    : rules_(rules), values_(rules.size()) {
  constexpr size_t kMaxUnknown = 16;
  std::unordered_map<std::string_view, size_t> positions;
  for (size_t i = 0; i < rules.size(); ++i) {
    positions.emplace(rules[i].name, i);
  }
  for (auto member = object.begin(); member != object.end(); ++member) {
    const std::string name = member.name();
    if (const auto position = positions.find(name); position != positions.end()) {
      values_[position->second] = member.value();
    } else if (unknown_.size() < kMaxUnknown && !member.value().Is(JsonType::kNull) &&
               std::find(unknown_.begin(), unknown_.end(), name) == unknown_.end()) {
      unknown_.push_back(name);
    }
  }
  for (std::optional<JsonValue>& value : values_) {
    if (value.has_value() && value->Is(JsonType::kNull)) {
      value.reset();
    }
  }
}

std::optional<JsonValue> FieldIndex::Find(std::string_view name) const {
  const auto rule = std::find_if(
      rules_.begin(), rules_.end(), [name](const FieldRule& r) { return r.name == name; });
  if (rule == rules_.end()) {
    return std::nullopt;
  }
  return values_[static_cast<size_t>(rule - rules_.begin())];
}

bool IsTrue(const FieldIndex& fields, std::string_view name) {
  const std::optional<JsonValue> value = fields.Find(name);
  return value.has_value() && value->Is(JsonType::kBool) && value->AsBool();
}

ApiError Unsupported(std::string_view param, std::string_view reason) {
  return InvalidRequest("unsupported_parameter",
                        std::string(param),
                        fmt::format("'{}' is not supported: {}.", param, reason));
}

}  // namespace spindle::serving
