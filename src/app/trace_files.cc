#include "app/trace_files.h"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include <fmt/chrono.h>
#include <unistd.h>

#include "base/log.h"
#include "config/option_error.h"
#include "serving/seed_source.h"

namespace spindle::app {
namespace {

// Of ids of prompts; forgotten with the process, so that nobody can test texts against a trace.
Digest RandomSecret() {
  Digest secret;
  for (size_t i = 0; i < secret.size(); i += sizeof(uint64_t)) {
    const uint64_t part = serving::RandomSeed();
    std::memcpy(secret.data() + i, &part, sizeof(part));
  }
  return secret;
}

// Of requests that name no algorithm.
std::string AlgorithmOf(const config::LoadOptions& options) {
  if (!options.selection.profile.empty()) {
    return "synthetic " + options.selection.profile;
  }
  const std::string algorithm = config::SparseDefaults(options).algorithm;
  return algorithm.empty() || algorithm == "auto" ? "dense" : algorithm;
}

std::string Named(const config::LoadOptions& options) {
  return "--kv-trace " + options.kv.trace_path;
}

kv::AccessTraceHeader HeaderOf(const config::LoadOptions& options, const kv::FastTier& tier) {
  return {.geometry = tier.options().geometry,
          .lru = tier.options().lru,
          .algorithm = AlgorithmOf(options)};
}

}  // namespace

absl::Status PrepareTraceFolder(const config::LoadOptions& options,
                                const kv::KvTiers& tiers,
                                uint32_t max_model_len) {
  const std::filesystem::path folder = options.kv.trace_path;
  if (folder.empty()) {
    return absl::OkStatus();
  }
  if (tiers.fast != nullptr) {
    const uint64_t max_tokens =
        uint64_t{kv::kMaxRecordIds} * tiers.fast->options().geometry.page_tokens();
    if (max_model_len > max_tokens) {
      return config::OptionError(absl::InvalidArgumentError(
          "--kv-trace with --kv-mode mirror or emulated-link needs --max-model-len of at most " +
          std::to_string(max_tokens) + ", got " + std::to_string(max_model_len)));
    }
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return config::OptionError(Named(options), absl::UnavailableError(error.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<kv::KvTrace>> OpenTraceFiles(const config::LoadOptions& options,
                                                            const kv::KvTiers& tiers,
                                                            const Clock& clock) {
  const std::filesystem::path folder = options.kv.trace_path;
  if (folder.empty()) {
    return nullptr;
  }
  kv::KvTraceOptions trace{.max_file_bytes = options.kv.trace_file_bytes,
                           .secret = RandomSecret(),
                           .start = clock.Now()};
  if (tiers.fast != nullptr) {
    trace.pages = HeaderOf(options, *tiers.fast);
    trace.num_workers = tiers.fast->options().num_workers;
  }
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  trace.path = folder / fmt::format("{:%Y%m%dT%H%M%SZ}-{}", fmt::gmtime(now), getpid());
  absl::StatusOr<std::unique_ptr<kv::KvTrace>> made = kv::KvTrace::Create(trace);
  if (!made.ok()) {
    return config::OptionError(Named(options), made.status());
  }
  log::Info("kv_trace",
            {{"files", trace.path},
             {"pages", trace.pages.has_value()},
             {"max_bytes", trace.max_file_bytes}});
  return made;
}

}  // namespace spindle::app
