#include "cli/kv_sim_flags.h"

#include <array>
#include <map>
#include <string_view>

#include <fmt/format.h>

namespace spindle::cli {
namespace {

// In the order of KvSimInput.
constexpr std::array<std::string_view, 6> kInputNames = {"--synthetic sticky, medium and loose",
                                                         "--synthetic scan",
                                                         "--synthetic cyclic",
                                                         "page-access traces",
                                                         "request traces",
                                                         "--serve"};

using Inputs = uint32_t;  // a bit each

constexpr Inputs Bit(KvSimInput input) {
  return Inputs{1} << static_cast<uint32_t>(input);
}

constexpr Inputs kDrawn = Bit(KvSimInput::kDrawn);
constexpr Inputs kScan = Bit(KvSimInput::kScan);
constexpr Inputs kCyclic = Bit(KvSimInput::kCyclic);
constexpr Inputs kServing = Bit(KvSimInput::kServing);
constexpr Inputs kSynthetic = kDrawn | kScan | kCyclic;
constexpr Inputs kSelections = kSynthetic | Bit(KvSimInput::kPageTrace);
constexpr Inputs kPolicies = kSelections | Bit(KvSimInput::kRequestTrace);

// Where an option has an effect; those that are not here have one everywhere, or are refused where
// they have none when their values are looked at.
const std::map<std::string_view, Inputs>& Effects() {
  static const std::map<std::string_view, Inputs> effects = {
      {"policy", kPolicies},
      {"capacity", kPolicies},
      {"ratio", kSelections},
      {"seeds", kDrawn},
      {"layers", kDrawn},
      {"heads", kDrawn},
      {"served-prompt", kDrawn},
      {"pages", kDrawn | kCyclic},
      {"selected", kDrawn | kScan},
      {"steps", kDrawn | kScan},
      {"warmup", kDrawn | kScan | Bit(KvSimInput::kPageTrace)},
      {"plot", kPolicies},
      {"save-trace", kSynthetic},
      {"serve-time", kServing},
      {"kv-fast-bytes", kServing},
      {"kv-host-bytes", kServing},
      {"link-gbps", kServing},
      {"prefetch-depth", kServing},
      {"async-copies", kServing},
      {"serve-ratio", kServing},
      {"max-prompt-tokens", kServing},
      {"max-output-tokens", kServing},
  };
  return effects;
}

std::string Describe(Inputs inputs) {
  std::string text;
  for (size_t i = 0; i < kInputNames.size(); ++i) {
    if ((inputs >> i & 1) != 0) {
      text += (text.empty() ? "" : "; ") + std::string(kInputNames[i]);
    }
  }
  return text;
}

}  // namespace

absl::Status CheckFlags(const std::set<std::string>& flags, KvSimInput input) {
  for (const std::string& flag : flags) {
    const auto found = Effects().find(flag);
    if (found != Effects().end() && (found->second & Bit(input)) == 0) {
      return absl::InvalidArgumentError(
          fmt::format("--{} has no effect here; it is for {}", flag, Describe(found->second)));
    }
  }
  return absl::OkStatus();
}

}  // namespace spindle::cli
