#include "base/log.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "base/mutex.h"
#include "base/status_macros.h"

namespace spindle::log {
namespace {

struct State {
  Mutex mutex;
  std::shared_ptr<spdlog::logger> logger SPINDLE_GUARDED_BY(mutex);  // spdlog's own handle type
  std::atomic<bool> json{false};
  std::atomic<Level> level{Level::kInfo};
};

State& GetState() {
  static State* const state = [] {
    auto* s = new State;  // never destroyed: threads may log during exit
    MutexLock lock(s->mutex);
    s->logger = std::make_shared<spdlog::logger>("spindle",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    s->logger->set_level(spdlog::level::trace);
    s->logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %L %v");
    return s;
  }();
  return *state;
}

spdlog::level::level_enum ToSpdlog(Level level) {
  switch (level) {
    case Level::kTrace:
      return spdlog::level::trace;
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

const char* Name(Level level) {
  static constexpr const char* kNames[] = {"trace", "debug", "info", "warn", "error"};
  return kNames[static_cast<int>(level)];
}

// JSON string escaping; also used for the text form, so that no value can start a new line.
void AppendEscaped(std::string_view text, fmt::memory_buffer* out) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '"':
        fmt::format_to(std::back_inserter(*out), "\\\"");
        break;
      case '\\':
        fmt::format_to(std::back_inserter(*out), "\\\\");
        break;
      case '\n':
        fmt::format_to(std::back_inserter(*out), "\\n");
        break;
      default:
        if (byte < 0x20) {
          fmt::format_to(std::back_inserter(*out), "\\u{:04x}", byte);
        } else {
          out->push_back(c);
        }
    }
  }
}

bool NeedsQuotes(std::string_view value) {
  return value.empty() || value.find_first_of(" \"\n\r\t=\\") != std::string_view::npos;
}

void AppendText(std::string_view event, const std::vector<Field>& fields, fmt::memory_buffer* out) {
  out->append(event);
  for (const Field& field : fields) {
    out->push_back(' ');
    out->append(field.key);
    out->push_back('=');
    if (field.quoted && NeedsQuotes(field.value)) {
      out->push_back('"');
      AppendEscaped(field.value, out);
      out->push_back('"');
    } else {
      out->append(std::string_view(field.value));
    }
  }
}

void AppendJson(Level level,
                std::string_view event,
                const std::vector<Field>& fields,
                fmt::memory_buffer* out) {
  fmt::format_to(std::back_inserter(*out), "\"level\":\"{}\",\"event\":\"", Name(level));
  AppendEscaped(event, out);
  out->push_back('"');
  for (const Field& field : fields) {
    fmt::format_to(std::back_inserter(*out), ",\"{}\":", field.key);
    if (field.quoted) {
      out->push_back('"');
      AppendEscaped(field.value, out);
      out->push_back('"');
    } else {
      out->append(std::string_view(field.value));
    }
  }
  out->push_back('}');
}

}  // namespace

absl::Status Configure(const Options& options) {
  State& state = GetState();
  std::shared_ptr<spdlog::logger> logger;
  try {
    spdlog::sink_ptr sink;
    if (options.file.empty()) {
      sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    } else {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file);
    }
    logger = std::make_shared<spdlog::logger>("spindle", std::move(sink));
    logger->set_level(spdlog::level::trace);
    logger->flush_on(spdlog::level::info);
    logger->set_pattern(options.json ? "{\"time\":\"%Y-%m-%dT%H:%M:%S.%e%z\",%v"
                                     : "%Y-%m-%dT%H:%M:%S.%e%z %L %v");
  } catch (const spdlog::spdlog_ex& e) {
    return absl::UnavailableError(fmt::format("log file '{}': {}", options.file, e.what()));
  }
  state.json = options.json;
  state.level = options.level;
  MutexLock lock(state.mutex);
  state.logger = std::move(logger);
  return absl::OkStatus();
}

void SetLevel(Level level) {
  GetState().level = level;
}

bool Enabled(Level level) {
  return level >= GetState().level.load(std::memory_order_relaxed);
}

void Write(Level level, std::string_view event, const std::vector<Field>& fields) {
  if (!Enabled(level)) {
    return;
  }
  State& state = GetState();
  fmt::memory_buffer line;
  if (state.json) {
    AppendJson(level, event, fields, &line);
  } else {
    AppendText(event, fields, &line);
  }
  std::shared_ptr<spdlog::logger> logger;
  {
    MutexLock lock(state.mutex);
    logger = state.logger;
  }
  logger->log(ToSpdlog(level), std::string_view(line.data(), line.size()));
}

}  // namespace spindle::log

namespace spindle::base_internal {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "fatal: %s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace spindle::base_internal
