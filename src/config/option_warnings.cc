#include "config/option_warnings.h"

#include <algorithm>
#include <string_view>

namespace spindle::config {
namespace {

struct Dependent {
  std::string_view name;
  bool has_effect;
  std::string_view needs;
};

bool IsGiven(const std::vector<EffectiveOption>& options, std::string_view name) {
  const auto found = std::ranges::find(options, name, &EffectiveOption::name);
  return found != options.end() && found->given.has_value();
}

}  // namespace

std::vector<std::string> LoadWarnings(const OptionTable& table, const LoadOptions& options) {
  constexpr std::string_view kFast = "--kv-mode mirror or emulated-link";
  constexpr std::string_view kLink = "--kv-mode emulated-link";
  constexpr std::string_view kDisk = "--kv-disk-path";
  const kv::KvOptions& kv = options.kv;
  const bool has_fast = kv.mode != kv::KvMode::kInPlace;
  const bool has_link = kv.mode == kv::KvMode::kEmulatedLink;
  const bool has_disk = !kv.disk_path.empty();
  const bool is_drawn = !options.selection.profile.empty();
  const std::vector<EffectiveOption> effective = table.Effective();
  std::vector<std::string> warnings;
  for (const Dependent& option :
       {Dependent{"kv-fast-bytes", has_fast, kFast},
        Dependent{"kv-buffer-ratio", has_fast, kFast},
        Dependent{"sim-link-gbps", has_link, kLink},
        Dependent{"sim-link-latency-us", has_link, kLink},
        Dependent{"kv-disk-bytes", has_disk, kDisk},
        Dependent{"kv-disk-min-free", has_disk, kDisk},
        Dependent{"kv-max-sessions", has_disk, kDisk},
        Dependent{"kv-trace-bytes", !kv.trace_path.empty(), "--kv-trace"},
        Dependent{"kv-synthetic-pages", is_drawn, "--kv-synthetic-selection"}}) {
    if (!option.has_effect && IsGiven(effective, option.name)) {
      warnings.push_back("--" + std::string(option.name) + " has no effect without " +
                         std::string(option.needs));
    }
  }
  if (is_drawn) {
    warnings.push_back("--kv-synthetic-selection " + options.selection.profile +
                       " makes answers meaningless: tokens attend to drawn pages");
  }
  return warnings;
}

}  // namespace spindle::config
