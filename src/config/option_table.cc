#include "config/option_table.h"

#include <algorithm>
#include <cstdio>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/read_file.h"
#include "base/status_macros.h"

namespace spindle::config {
namespace {

constexpr uint64_t kMaxConfigBytes = 1U << 20;
constexpr std::string_view kMask = "********";

// Levenshtein distance, for suggestions.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substitute, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

std::string WithDashes(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

std::string VariableName(const std::string& option) {
  std::string name = "SPINDLE_" + option;
  for (char& c : name) {
    c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

// The bounds are meant as they are written: 0.001F is a little more than 0.001.
absl::StatusOr<float> ParseFloat(std::string_view text, float min, float max) {
  SPINDLE_ASSIGN_OR_RETURN(const double value, ParseNumber(text, AsWritten(min), AsWritten(max)));
  return static_cast<float>(value);
}

std::vector<std::string> SplitCommas(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

Option& OptionTable::Add(Option option) {
  options_.push_back(std::move(option));
  return options_.back();
}

Option& OptionTable::Text(std::string name,
                          std::string value_name,
                          std::string* field,
                          std::string help) {
  return Add({.name = std::move(name),
              .value_name = std::move(value_name),
              .help = std::move(help),
              .shown_default = *field,
              .apply =
                  [field](const std::vector<std::string>& values) {
                    *field = values.front();
                    return absl::OkStatus();
                  },
              .show = [field]() -> OptionValue {
                return field->empty() ? OptionValue() : OptionValue(*field);
              }});
}

Option& OptionTable::TextList(std::string name,
                              std::string value_name,
                              std::vector<std::string>* field,
                              std::string help) {
  return Add({.name = std::move(name),
              .value_name = std::move(value_name),
              .help = std::move(help) + " (repeatable)",
              .repeatable = true,
              .apply =
                  [field](const std::vector<std::string>& values) {
                    *field = values;
                    return absl::OkStatus();
                  },
              .show = [field]() -> OptionValue {
                return field->empty() ? OptionValue() : OptionValue(*field);
              }});
}

Option& OptionTable::Switch(std::string name, bool* field, std::string help) {
  return Add({.name = std::move(name),
              .help = std::move(help),
              .shown_default = *field ? "on" : "off",
              .apply = [field](const std::vector<std::string>& values) -> absl::Status {
                SPINDLE_ASSIGN_OR_RETURN(*field, ParseBool(values.front()));
                return absl::OkStatus();
              },
              .show = [field]() -> OptionValue { return *field; }});
}

Option& OptionTable::Uint32(
    std::string name, uint32_t* field, uint32_t min, uint32_t max, std::string help) {
  return Add({.name = std::move(name),
              .value_name = "N",
              .help = std::move(help),
              .shown_default = std::to_string(*field),
              .apply = [field, min, max](const std::vector<std::string>& values) -> absl::Status {
                SPINDLE_ASSIGN_OR_RETURN(const uint64_t value, ParseUint(values.front(), min, max));
                *field = static_cast<uint32_t>(value);
                return absl::OkStatus();
              },
              .show = [field]() -> OptionValue { return uint64_t{*field}; }});
}

Option& OptionTable::Uint64(
    std::string name, uint64_t* field, uint64_t min, uint64_t max, std::string help) {
  return Add({.name = std::move(name),
              .value_name = "N",
              .help = std::move(help),
              .shown_default = std::to_string(*field),
              .apply = [field, min, max](const std::vector<std::string>& values) -> absl::Status {
                SPINDLE_ASSIGN_OR_RETURN(*field, ParseUint(values.front(), min, max));
                return absl::OkStatus();
              },
              .show = [field]() -> OptionValue { return *field; }});
}

Option& OptionTable::OptionalUint32(std::string name,
                                    std::optional<uint32_t>* field,
                                    uint32_t min,
                                    uint32_t max,
                                    std::string help) {
  return Add({.name = std::move(name),
              .value_name = "N",
              .help = std::move(help),
              .apply = [field, min, max](const std::vector<std::string>& values) -> absl::Status {
                SPINDLE_ASSIGN_OR_RETURN(const uint64_t value, ParseUint(values.front(), min, max));
                *field = static_cast<uint32_t>(value);
                return absl::OkStatus();
              },
              .show = [field]() -> OptionValue {
                return field->has_value() ? OptionValue(uint64_t{**field}) : OptionValue();
              }});
}

Option& OptionTable::Seconds(std::string name,
                             std::chrono::nanoseconds* field,
                             std::string help,
                             std::chrono::nanoseconds min) {
  return Add(
      {.name = std::move(name),
       .value_name = "TIME",
       .help = std::move(help),
       .shown_default = fmt::format("{}s", std::chrono::duration<double>(*field).count()),
       .apply = [field, min](const std::vector<std::string>& values) -> absl::Status {
         SPINDLE_ASSIGN_OR_RETURN(*field, ParseSeconds(values.front(), min));
         return absl::OkStatus();
       },
       .show = [field]() -> OptionValue { return std::chrono::duration<double>(*field).count(); }});
}

Option& OptionTable::Bytes(
    std::string name, uint64_t* field, uint64_t min, uint64_t max, std::string help) {
  return Add({.name = std::move(name),
              .value_name = "SIZE",
              .help = std::move(help),
              .shown_default = *field == 0 ? "" : std::to_string(*field),
              .apply = [field, min, max](const std::vector<std::string>& values) -> absl::Status {
                SPINDLE_ASSIGN_OR_RETURN(*field, ParseBytes(values.front(), min, max));
                return absl::OkStatus();
              },
              .show = [field]() -> OptionValue {
                return *field == 0 ? OptionValue() : OptionValue(*field);
              }});
}

Option& OptionTable::Float(std::string name, float* field, float min, float max, std::string help) {
  return Add({.name = std::move(name),
              .value_name = "X",
              .help = std::move(help),
              .shown_default = fmt::format("{}", AsWritten(*field)),
              .apply = [field, min, max](const std::vector<std::string>& values) -> absl::Status {
                SPINDLE_ASSIGN_OR_RETURN(*field, ParseFloat(values.front(), min, max));
                return absl::OkStatus();
              },
              .show = [field]() -> OptionValue { return AsWritten(*field); }});
}

Option& OptionTable::OptionalFloat(
    std::string name, std::optional<float>* field, float min, float max, std::string help) {
  return Add({.name = std::move(name),
              .value_name = "X",
              .help = std::move(help),
              .apply = [field, min, max](const std::vector<std::string>& values) -> absl::Status {
                SPINDLE_ASSIGN_OR_RETURN(*field, ParseFloat(values.front(), min, max));
                return absl::OkStatus();
              },
              .show = [field]() -> OptionValue {
                return field->has_value() ? OptionValue(AsWritten(**field)) : OptionValue();
              }});
}

Option& OptionTable::Fixed(std::string name,
                           std::string value_name,
                           std::vector<std::string> accepted,
                           std::string reason) {
  const bool is_switch = value_name.empty();
  return Add({.name = std::move(name),
              .value_name = std::move(value_name),
              .foreign = true,
              .apply = [is_switch, accepted = std::move(accepted), reason = std::move(reason)](
                           const std::vector<std::string>& values) -> absl::Status {
                std::string value = values.front();
                if (is_switch) {
                  SPINDLE_ASSIGN_OR_RETURN(const bool on, ParseBool(value));
                  value = on ? "true" : "false";
                }
                if (std::find(accepted.begin(), accepted.end(), value) == accepted.end()) {
                  return absl::InvalidArgumentError(
                      fmt::format("'{}' is not offered: {}; accepted without effect: {}",
                                  value,
                                  reason,
                                  fmt::join(accepted, ", ")));
                }
                return absl::OkStatus();
              }});
}

void OptionTable::NamePositional(std::string name, std::string help) {
  positional_name_ = std::move(name);
  positional_option_.clear();
  positional_help_ = std::move(help);
}

void OptionTable::Ignore(std::string flag, std::string short_form, bool takes_value) {
  ignored_.push_back({std::move(flag), std::move(short_form), takes_value});
}

const Option* OptionTable::Find(std::string_view name) const {
  for (const Option& option : options_) {
    if (option.name == name) {
      return &option;
    }
    for (const std::string& alias : option.aliases) {
      if (alias.size() > 2 && alias.substr(0, 2) == "--" && alias.substr(2) == name) {
        return &option;
      }
    }
  }
  return nullptr;
}

std::string OptionTable::Suggest(std::string_view unknown) const {
  std::string best;
  size_t best_distance = std::max<size_t>(3, unknown.size() / 3 + 1);
  for (const Option& option : options_) {
    const size_t distance = Distance(unknown, option.name);
    if (distance < best_distance && !option.foreign) {
      best_distance = distance;
      best = option.name;
    }
  }
  return best;
}

absl::Status OptionTable::ReadFile(const std::string& path,
                                   std::map<std::string, std::vector<std::string>>* values) const {
  const absl::StatusOr<std::string> text = spindle::ReadFile(path, kMaxConfigBytes);
  if (!text.ok()) {
    return absl::InvalidArgumentError("--config: " + std::string(text.status().message()));
  }
  try {
    const YAML::Node root = YAML::Load(*text);
    if (!root.IsMap() && !root.IsNull()) {
      return absl::InvalidArgumentError(path + ": the top level must be a map of option names");
    }
    for (const auto& entry : root) {
      const auto key = entry.first.as<std::string>();
      const Option* option = Find(WithDashes(key));
      if (option != nullptr && option->name == "config") {
        return absl::InvalidArgumentError(
            fmt::format("{}: '{}' cannot stand in a configuration file", path, key));
      }
      if (option == nullptr) {
        const std::string suggestion = Suggest(WithDashes(key));
        return absl::InvalidArgumentError(
            fmt::format("{}: unknown key '{}'{}",
                        path,
                        key,
                        suggestion.empty() ? "" : fmt::format("; did you mean '{}'?", suggestion)));
      }
      std::vector<std::string> list;
      if (entry.second.IsSequence()) {
        list = entry.second.as<std::vector<std::string>>();
      } else {
        list.push_back(entry.second.as<std::string>());
      }
      if (list.empty() || (list.size() > 1 && !option->repeatable)) {
        return absl::InvalidArgumentError(fmt::format("{}: '{}' takes one value", path, key));
      }
      if (!values->emplace(option->name, std::move(list)).second) {
        return absl::InvalidArgumentError(
            fmt::format("{}: '{}' sets --{} a second time", path, key, option->name));
      }
    }
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(fmt::format("{}: {}", path, e.what()));
  }
  return absl::OkStatus();
}

void OptionTable::ReadEnvironment(const std::map<std::string, std::string>& environment,
                                  std::map<std::string, std::vector<std::string>>* values,
                                  std::vector<std::string>* warnings) const {
  // Kubernetes gives every pod such addresses for a service named "spindle"; they are not options.
  static constexpr std::string_view kServiceAddress = "tcp://";
  std::map<std::string, const Option*> known;
  for (const Option& option : options_) {
    known[VariableName(option.name)] = &option;
  }
  for (const auto& [name, value] : environment) {
    const auto it = known.find(name);
    if (it == known.end() || value.rfind(kServiceAddress, 0) == 0) {
      warnings->push_back("environment variable " + name + " is no option and is ignored");
      continue;
    }
    (*values)[it->second->name] =
        it->second->repeatable ? SplitCommas(value) : std::vector<std::string>{value};
  }
}

// CLI11 knows one-letter short options only; llama.cpp's longer ones ("-np", "-ctk") become the
// long name here.
std::vector<std::string> OptionTable::LongSpellings(
    const std::vector<std::string>& arguments) const {
  std::map<std::string, std::string> spellings;
  for (const Option& option : options_) {
    for (const std::string& alias : option.aliases) {
      if (alias.size() > 2 && alias[1] != '-') {
        spellings[alias] = "--" + option.name;
      }
    }
  }
  for (const Ignored& ignored : ignored_) {
    if (!ignored.short_form.empty()) {
      spellings[ignored.short_form] = ignored.flag;
    }
  }
  std::vector<std::string> result;
  for (const std::string& argument : arguments) {
    const auto it = spellings.find(argument);
    result.push_back(it == spellings.end() ? argument : it->second);
  }
  return result;
}

absl::Status OptionTable::ReadFlags(const std::string& command,
                                    const std::string& summary,
                                    const std::vector<std::string>& arguments,
                                    std::map<std::string, std::vector<std::string>>* values,
                                    std::string* positional,
                                    std::vector<std::string>* warnings) const {
  CLI::App app(summary, command);
  app.get_formatter()->column_width(44);
  std::map<std::string, std::vector<std::string>> given;
  std::map<std::string, std::string> switches;  // as typed: "--name", "--no-name"
  for (const Option& option : options_) {
    std::string names = "--" + option.name;
    for (const std::string& alias : option.aliases) {
      if (alias.size() == 2 || alias[1] == '-') {
        names += "," + alias;
      }
    }
    const std::string help =
        option.help + (option.shown_default.empty() ? "" : " [" + option.shown_default + "]");
    const std::string group = option.foreign ? "" : "Options";
    if (option.value_name.empty()) {
      app.add_flag(names, switches["--" + option.name], help)->group(group);
      app.add_flag("--no-" + option.name, switches["--no-" + option.name])->group("");
    } else {
      CLI::Option* added = app.add_option(names, given[option.name], help)
                               ->type_name(option.value_name)
                               ->group(group);
      added->expected(1)->allow_extra_args(false);  // a value list must not swallow MODEL
      added->multi_option_policy(option.repeatable ? CLI::MultiOptionPolicy::TakeAll
                                                   : CLI::MultiOptionPolicy::TakeLast);
    }
  }
  for (const Ignored& ignored : ignored_) {
    auto warn = [&ignored, warnings] {
      warnings->push_back(ignored.flag + " has no meaning here and is ignored");
    };
    if (ignored.takes_value) {
      app.add_option_function<std::string>(ignored.flag, [warn](const std::string&) { warn(); })
          ->group("");
    } else {
      app.add_flag_callback(ignored.flag, warn)->group("");
    }
  }
  if (positional != nullptr) {
    app.add_option(positional_name_, *positional, positional_help_);
  }
  std::vector<std::string> reversed = LongSpellings(arguments);
  std::reverse(reversed.begin(), reversed.end());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return absl::CancelledError("help");
  } catch (const CLI::ExtrasError& e) {
    const std::string unknown =
        app.remaining().empty() ? std::string(e.what()) : app.remaining().front();
    const std::string suggestion =
        Suggest(unknown.substr(std::min(unknown.find_first_not_of('-'), unknown.size())));
    return absl::InvalidArgumentError(
        fmt::format("unknown argument '{}'{}",
                    unknown,
                    suggestion.empty() ? "" : fmt::format("; did you mean '--{}'?", suggestion)));
  } catch (const CLI::ParseError& e) {
    return absl::InvalidArgumentError(e.what());
  }
  for (const Option& option : options_) {
    if (const std::string& on = switches["--" + option.name]; !on.empty()) {
      given[option.name] = {on};
    }
    if (const std::string& off = switches["--no-" + option.name]; !off.empty()) {
      SPINDLE_ASSIGN_OR_RETURN(const bool negated, ParseBool(off));
      given[option.name] = {negated ? "false" : "true"};
    }
  }
  for (auto& [name, list] : given) {
    if (!list.empty()) {
      (*values)[name] = std::move(list);
    }
  }
  return absl::OkStatus();
}

// Where a value came from when it was not typed.
std::string OptionTable::Origin(const std::string& option) const {
  if (given_as_flag(option)) {
    return "";
  }
  return fmt::format(" (from {})",
                     variables_.count(option) > 0 ? VariableName(option) : config_path_);
}

absl::Status OptionTable::ApplyAll() {
  for (const Option& option : options_) {
    const auto it = values_.find(option.name);
    if (it == values_.end()) {
      continue;
    }
    if (const absl::Status status = option.apply(it->second); !status.ok()) {
      return absl::InvalidArgumentError(fmt::format(
          "--{} {}{}", option.name, std::string(status.message()), Origin(option.name)));
    }
  }
  return absl::OkStatus();
}

std::vector<EffectiveOption> OptionTable::Effective() const {
  std::vector<EffectiveOption> effective;
  for (const Option& option : options_) {
    if (option.foreign) {
      continue;
    }
    EffectiveOption& shown = effective.emplace_back();
    shown.name = option.name;
    shown.source = "default";
    if (const auto it = values_.find(option.name); it != values_.end()) {
      shown.given =
          option.secret ? std::string(kMask) : fmt::format("{}", fmt::join(it->second, ","));
      shown.source = given_as_flag(option.name)          ? "flag"
                     : variables_.count(option.name) > 0 ? "environment"
                                                         : "file";
    }
    if (option.name == positional_option_ && !positional_value_.empty()) {
      shown.given = positional_value_;
      shown.source = "argument";
    }
    if (option.secret) {
      shown.value = shown.given.has_value() ? OptionValue(std::string(kMask)) : OptionValue();
    } else if (option.show) {
      shown.value = option.show();
    } else if (shown.given.has_value()) {
      shown.value = *shown.given;
    }
  }
  return effective;
}

absl::Status OptionTable::Parse(const std::string& command,
                                const std::string& summary,
                                const std::vector<std::string>& arguments,
                                const std::map<std::string, std::string>& environment,
                                std::string* positional,
                                std::vector<std::string>* warnings) {
  std::map<std::string, std::vector<std::string>> flags;
  SPINDLE_RETURN_IF_ERROR(ReadFlags(command, summary, arguments, &flags, positional, warnings));
  std::map<std::string, std::vector<std::string>> variables;
  ReadEnvironment(environment, &variables, warnings);
  values_.clear();
  for (const auto* layer : {&flags, &variables}) {
    if (const auto config = layer->find("config"); config != layer->end()) {
      config_path_ = config->second.front();
      SPINDLE_RETURN_IF_ERROR(ReadFile(config_path_, &values_));
      break;
    }
  }
  positional_value_ = positional != nullptr ? *positional : "";
  flags_.clear();
  variables_.clear();
  for (const auto& [name, list] : flags) {
    flags_.insert(name);
  }
  for (const auto& [name, list] : variables) {
    variables_.insert(name);
  }
  for (auto* layer : {&variables, &flags}) {
    for (auto& [name, list] : *layer) {
      values_[name] = std::move(list);
    }
  }
  return ApplyAll();
}

}  // namespace spindle::config
