#include "cli/eval_inputs.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_split.h"
#include "base/read_file.h"
#include "base/status_macros.h"

namespace spindle::cli {
namespace {

constexpr uint64_t kMaxTextBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxContext = uint64_t{1} << 24;

// The file's name; all of the path where files of other folders have the same one.
std::string TextName(const std::string& path, const std::vector<std::string>& paths) {
  const auto name = [](const std::string& of) {
    return std::filesystem::path(of).filename().string();
  };
  const auto same = std::count_if(paths.begin(), paths.end(), [&](const std::string& other) {
    return name(other) == name(path);
  });
  return same > 1 ? path : name(path);
}

}  // namespace

std::vector<std::string> SplitList(const std::string& list) {
  return absl::StrSplit(list, ',', absl::SkipEmpty());
}

absl::StatusOr<std::vector<uint32_t>> ParseContexts(const std::string& list, uint32_t least) {
  std::vector<uint32_t> contexts;
  for (const std::string& text : SplitList(list)) {
    const absl::StatusOr<uint64_t> tokens = config::ParseUint(text, least, kMaxContext);
    if (!tokens.ok()) {
      return absl::InvalidArgumentError("--context: " + std::string(tokens.status().message()));
    }
    contexts.push_back(static_cast<uint32_t>(*tokens));
  }
  return contexts;
}

absl::Status CheckTexts(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (std::count(paths.begin(), paths.end(), path) > 1) {
      return absl::InvalidArgumentError("--text names '" + path + "' twice");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<eval::Text>> ReadEvalTexts(const std::vector<std::string>& paths,
                                                      uint64_t seed,
                                                      uint32_t num_windows,
                                                      uint32_t window_tokens) {
  std::vector<eval::Text> texts;
  const std::vector<std::string> stories = {kStories};
  for (const std::string& path : paths.empty() ? stories : paths) {
    if (path == kStories) {
      // A sentence more per window, because windows begin where sentences do.
      texts.push_back(eval::MakeStories(
          seed, (uint64_t{num_windows} + 1) * (eval::BytesPerWindow(window_tokens) + 1024)));
      continue;
    }
    SPINDLE_ASSIGN_OR_RETURN(std::string content, ReadFile(path, kMaxTextBytes));
    texts.push_back({TextName(path, paths), std::move(content)});
  }
  return texts;
}

absl::StatusOr<std::unique_ptr<eval::EvalModel>> LoadEvalModel(const config::LoadOptions& options,
                                                               const MeasuredModel& measured,
                                                               const kernels::KernelTable& kernels,
                                                               uint64_t kv_bytes,
                                                               uint32_t max_sequences,
                                                               const MeasureProgress& progress) {
  return eval::EvalModel::Load(measured.file,
                               {.model = options.model,
                                .kv_type = config::ResolveKvType(options),
                                .threads = options.threads,
                                .pin_threads = options.pin_threads,
                                .kv_bytes = kv_bytes,
                                .max_sequences = max_sequences},
                               kernels,
                               [&progress](double fraction) { progress("loading", fraction); });
}

}  // namespace spindle::cli
