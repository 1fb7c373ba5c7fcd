// Named settings that a command takes from flags, SPINDLE_* variables and a YAML file, in this
// order of precedence. Each option knows its names, help, range and where its value goes; parsing
// refuses what is unknown or out of range. Thread-safety: thread-compatible. Borrows the fields
// that options write to.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace spindle::config {

// What an option stands at: nothing (unset, or chosen later), a switch, a number (bytes and counts
// whole, times in seconds), a text, several texts.
using OptionValue =
    std::variant<std::monostate, bool, uint64_t, double, std::string, std::vector<std::string>>;

// An option as /admin/config shows it.
struct EffectiveOption {
  std::string name;
  std::optional<std::string> given;  // as written; unset: by default
  std::string source;                // "flag", "argument", "environment", "file" or "default"
  OptionValue value;
};

struct Option {
  std::string name = {};                  // long name without dashes, for example "max-num-seqs"
  std::vector<std::string> aliases = {};  // as typed, with dashes: "--parallel", "-np"
  std::string value_name = {};            // "N", "PATH" …; empty = boolean switch
  std::string help = {};
  std::string shown_default = {};  // for --help; empty = none
  bool repeatable = false;         // several values
  bool secret = false;             // masked in listings
  bool foreign = false;            // of other servers, without effect here: in no help or listing
  // Parses and stores the values; exactly one unless repeatable. The error text names no option
  // (the caller does).
  std::function<absl::Status(const std::vector<std::string>&)> apply = {};
  // The field's value now; empty: `given` is all there is to say.
  std::function<OptionValue()> show = {};
};

class OptionTable {
 public:
  // Adds an option; the returned reference is valid until the next Add.
  Option& Add(Option option);

  Option& Text(std::string name, std::string value_name, std::string* field, std::string help);
  Option& TextList(std::string name,
                   std::string value_name,
                   std::vector<std::string>* field,
                   std::string help);
  Option& Switch(std::string name, bool* field, std::string help);
  Option& Uint32(std::string name, uint32_t* field, uint32_t min, uint32_t max, std::string help);
  Option& Uint64(std::string name, uint64_t* field, uint64_t min, uint64_t max, std::string help);
  Option& OptionalUint32(std::string name,
                         std::optional<uint32_t>* field,
                         uint32_t min,
                         uint32_t max,
                         std::string help);
  // Seconds, or with a suffix ms, s, m, h.
  Option& Seconds(std::string name,
                  std::chrono::nanoseconds* field,
                  std::string help,
                  std::chrono::nanoseconds min = {});
  // Bytes with suffixes KiB … TiB, KB … TB, or plain; shown without a default of 0.
  Option& Bytes(std::string name, uint64_t* field, uint64_t min, uint64_t max, std::string help);
  Option& Float(std::string name, float* field, float min, float max, std::string help);
  Option& OptionalFloat(
      std::string name, std::optional<float>* field, float min, float max, std::string help);

  // One of a list of words, stored as the paired value.
  template <typename T>
  Option& Choice(std::string name,
                 T* field,
                 std::vector<std::pair<std::string, T>> words,
                 std::string help) {
    std::string list;
    std::string shown;
    for (const auto& [word, value] : words) {
      list += (list.empty() ? "" : "|") + word;
      if (value == *field) {
        shown = word;
      }
    }
    auto apply = [field, words, list](const std::vector<std::string>& values) -> absl::Status {
      for (const auto& [word, value] : words) {
        if (word == values.front()) {
          *field = value;
          return absl::OkStatus();
        }
      }
      return absl::InvalidArgumentError("must be one of " + list + ", got '" + values.front() +
                                        "'");
    };
    auto show = [field, words]() -> OptionValue {
      for (const auto& [word, value] : words) {
        if (value == *field) {
          return word;
        }
      }
      return {};
    };
    return Add({.name = std::move(name),
                .value_name = list,
                .help = std::move(help),
                .shown_default = shown,
                .apply = apply,
                .show = show});
  }

  // A setting of other servers that cannot be changed here: the values in `accepted` say what
  // happens anyway and are taken without effect, all others are refused with `reason`.
  // `value_name` empty: a switch, `accepted` holds "true" or "false".
  Option& Fixed(std::string name,
                std::string value_name,
                std::vector<std::string> accepted,
                std::string reason);

  // A spelling of another program that means nothing here: accepted with one warning line.
  // `takes_value` as there.
  // `short_form`: another spelling with one dash, or empty.
  void Ignore(std::string flag, std::string short_form, bool takes_value);

  // How --help calls the non-option argument. Default: MODEL, another way to give --model.
  void NamePositional(std::string name, std::string help);

  // Applies flags over environment over file. `positional` receives the non-option argument, if the
  // command takes one. `environment` holds NAME → value of SPINDLE_* variables. Warnings are
  // appended. ERRORS: kInvalidArgument with a message that names the option (and "did you mean" for
  // unknown ones);
  //         kCancelled when --help was printed.
  absl::Status Parse(const std::string& command,
                     const std::string& summary,
                     const std::vector<std::string>& arguments,
                     const std::map<std::string, std::string>& environment,
                     std::string* positional,
                     std::vector<std::string>* warnings);

  // All options in order of addition, secrets masked, with the values that their fields have now.
  // REQUIRES: parsed; the fields still exist.
  [[nodiscard]] std::vector<EffectiveOption> Effective() const;

  // The last Parse found the option among the flags, not only in environment or file.
  [[nodiscard]] bool given_as_flag(const std::string& name) const { return flags_.count(name) > 0; }

  // All options that it found there.
  [[nodiscard]] const std::set<std::string>& flags() const { return flags_; }

 private:
  struct Ignored {
    std::string flag;
    std::string short_form;
    bool takes_value;
  };

  [[nodiscard]] const Option* Find(std::string_view name) const;
  [[nodiscard]] std::string Suggest(std::string_view unknown) const;
  absl::Status ReadFile(const std::string& path,
                        std::map<std::string, std::vector<std::string>>* values) const;
  void ReadEnvironment(const std::map<std::string, std::string>& environment,
                       std::map<std::string, std::vector<std::string>>* values,
                       std::vector<std::string>* warnings) const;
  absl::Status ReadFlags(const std::string& command,
                         const std::string& summary,
                         const std::vector<std::string>& arguments,
                         std::map<std::string, std::vector<std::string>>* values,
                         std::string* positional,
                         std::vector<std::string>* warnings) const;
  [[nodiscard]] std::vector<std::string> LongSpellings(
      const std::vector<std::string>& arguments) const;
  [[nodiscard]] std::string Origin(const std::string& option) const;
  absl::Status ApplyAll();

  std::vector<Option> options_;
  std::vector<Ignored> ignored_;
  // Of the last Parse: option names by source.
  std::set<std::string> flags_;
  std::set<std::string> variables_;
  std::string config_path_;
  std::map<std::string, std::vector<std::string>> values_;
  std::string positional_name_ = "MODEL";
  std::string positional_option_ = "model";  // that it stands for; empty: none
  std::string positional_value_;             // of the last Parse
  std::string positional_help_ = "GGUF file, safetensors file or model folder";
};

// The number that was written to give `value`: 0.7, not 0.699999988.
[[nodiscard]] double AsWritten(float value);

// Value parsers, shared with the tables above. Messages do not name the option.
[[nodiscard]] absl::StatusOr<uint64_t> ParseBytes(std::string_view text,
                                                  uint64_t min,
                                                  uint64_t max);
[[nodiscard]] absl::StatusOr<bool> ParseBool(std::string_view text);
[[nodiscard]] absl::StatusOr<std::chrono::nanoseconds> ParseSeconds(
    std::string_view text, std::chrono::nanoseconds min = {});
[[nodiscard]] absl::StatusOr<uint64_t> ParseUint(std::string_view text, uint64_t min, uint64_t max);
[[nodiscard]] absl::StatusOr<double> ParseNumber(std::string_view text, double min, double max);

}  // namespace spindle::config
