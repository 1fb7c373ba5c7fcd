#include "cli/chat.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include <editline/readline.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_text.h"
#include "base/mutex.h"
#include "base/utf8.h"

namespace spindle::cli {
namespace {

using nlohmann::json;

volatile std::sig_atomic_t g_interrupted = 0;  // NOLINT: set by the signal handler

void OnInterrupt(int /*signal*/) {
  g_interrupted = 1;
}

// SIGINT sets a flag for the life of the object. No SA_RESTART: a blocked read must return.
class InterruptGuard {
 public:
  InterruptGuard() {
    struct sigaction action {};

    action.sa_handler = OnInterrupt;
    sigaction(SIGINT, &action, &previous_);
  }

  ~InterruptGuard() { sigaction(SIGINT, &previous_, nullptr); }

  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction previous_ {};
};

// Turns the engine's ready callback into something the terminal thread can wait for.
class ReadySignal {
 public:
  void Notify() {
    MutexLock lock(mutex_);
    ready_ = true;
    changed_.NotifyOne();
  }

  // Returns after a Notify, or after a short while so that Ctrl-C is noticed.
  void Wait() {
    static constexpr auto kInterruptCheck = std::chrono::milliseconds(100);
    MutexLock lock(mutex_);
    if (!ready_) {
      changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + kInterruptCheck);
    }
    ready_ = false;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool ready_ SPINDLE_GUARDED_BY(mutex_) = false;
};

constexpr std::string_view kHelp =
    "/reset   forget the conversation\n"
    "/stats   numbers of the last answer\n"
    "/system TEXT   set the system message and forget the conversation\n"
    "/exit    leave (also /quit, Ctrl-D); Ctrl-C stops an answer\n";

std::string Shown(const std::optional<float>& value) {
  return value.has_value() ? fmt::format("{:g}", *value) : "of the model";
}

class Conversation {
 public:
  Conversation(serving::CompletionService& service, const ChatOptions& options)
      : service_(service), options_(options) {
    Reset();
  }

  void Reset() {
    messages_ = json::array();
    if (!system_or_option().empty()) {
      messages_.push_back({{"role", "system"}, {"content", system_or_option()}});
    }
  }

  void SetSystem(std::string text) {
    system_ = std::move(text);
    Reset();
  }

  // Streams the answer to standard output and adds both turns to the history.
  absl::Status Ask(const std::string& text) {
    if (!IsUtf8(text) || !IsUtf8(system_or_option())) {
      return absl::InvalidArgumentError("the prompt and the system message must be valid UTF-8");
    }
    messages_.push_back({{"role", "user"}, {"content", text}});
    std::string answer;
    const absl::Status status = Stream(&answer);
    if (!status.ok()) {
      messages_.erase(messages_.size() - 1);
      return status;
    }
    messages_.push_back({{"role", "assistant"}, {"content", answer}});
    return absl::OkStatus();
  }

  void PrintStats() const {
    fmt::print("temperature {}, top-p {}\n", Shown(options_.temperature), Shown(options_.top_p));
    if (!usage_.has_value()) {
      fmt::print("no finished answer yet\n");
      return;
    }
    const engine::RequestStats& stats = usage_->stats;
    const double decode = ToSeconds(stats.decode_time);
    const uint32_t later =
        usage_->usage.completion_tokens > 0 ? usage_->usage.completion_tokens - 1 : 0;
    fmt::print(
        "prompt {} tokens ({} from cache), answer {} tokens\n"
        "first token after {:.0f} ms, then {:.1f} tokens/s\n",
        usage_->usage.prompt_tokens,
        usage_->usage.cached_tokens,
        usage_->usage.completion_tokens,
        1e3 * ToSeconds(stats.time_to_first_token),
        decode > 0 ? later / decode : 0.0);
  }

 private:
  [[nodiscard]] const std::string& system_or_option() const {
    return system_.empty() ? options_.system : system_;
  }

  [[nodiscard]] std::string Body() const {
    json body = {{"messages", messages_}, {"stream", true}};
    if (options_.temperature.has_value()) {
      body["temperature"] = *options_.temperature;
    }
    if (options_.top_p.has_value()) {
      body["top_p"] = *options_.top_p;
    }
    if (options_.seed.has_value()) {
      body["seed"] = *options_.seed;
    }
    if (options_.max_tokens.has_value()) {
      body["max_tokens"] = *options_.max_tokens;
    }
    return DumpJson(body);
  }

  absl::Status Stream(std::string* answer) {
    const serving::Caller caller{.request_id = fmt::format("chat-{}", ++turns_),
                                 .tenant = "",
                                 .key_name = "",
                                 .min_priority = 0,
                                 .fairness_id = "",
                                 .received = SteadyClock().Now(),
                                 .deadline = std::nullopt};
    auto prepared = service_.Prepare(serving::Endpoint::kChat, Body(), caller);
    if (!prepared.ok()) {
      std::string message = prepared.error().message;
      if (messages_.size() > 2) {
        message += " (/reset forgets the conversation)";
      }
      return absl::InvalidArgumentError(message);
    }
    auto started = service_.Start(prepared.value(), caller);
    if (!started.ok()) {
      return absl::ResourceExhaustedError(started.error().message);
    }
    return Follow(*started.value(), answer);
  }

  absl::Status Follow(serving::Generation& generation, std::string* answer) {
    static constexpr size_t kEventsPerPoll = 64;
    ReadySignal ready;
    generation.SetReadyCallback([&ready] { ready.Notify(); });
    absl::Status status;
    std::vector<serving::GenerationEvent> events;
    g_interrupted = 0;
    bool stopped = false;
    while (!generation.Done()) {
      events.clear();
      if (generation.Poll(kEventsPerPoll, &events) == 0 && !generation.Done()) {
        ready.Wait();
      }
      for (const serving::GenerationEvent& event : events) {
        if (const auto* delta = std::get_if<serving::DeltaEvent>(&event)) {
          std::fwrite(delta->text.data(), 1, delta->text.size(), stdout);
          std::fflush(stdout);
          *answer += delta->text;
        } else if (const auto* usage = std::get_if<serving::UsageEvent>(&event)) {
          usage_ = *usage;
        } else if (const auto* error = std::get_if<serving::ErrorEvent>(&event)) {
          status = stopped ? absl::OkStatus() : absl::InternalError(error->error.message);
        }
      }
      if (g_interrupted != 0 && !stopped) {
        stopped = true;
        generation.Cancel(engine::CancelCause::kClientGone);
      }
    }
    generation.SetReadyCallback({});
    fmt::print("{}\n", stopped ? " [stopped]" : "");
    return status;
  }

  serving::CompletionService& service_;
  const ChatOptions& options_;
  std::string system_;
  json messages_;
  std::optional<serving::UsageEvent> usage_;
  uint64_t turns_ = 0;
};

// One line of input; nullopt at the end. Ctrl-C empties the line.
std::optional<std::string> ReadLine(bool color) {
  for (;;) {
    g_interrupted = 0;
    const std::unique_ptr<char, decltype(&std::free)> line(
        readline(color ? "\1\033[1m\1> \1\033[0m\1" : "> "), &std::free);
    if (line != nullptr) {
      return std::string(line.get());
    }
    if (g_interrupted == 0) {
      return std::nullopt;
    }
    fmt::print("\n");
  }
}

// False when the program should end.
bool Command(const std::string& line, Conversation& conversation) {
  static constexpr std::string_view kSystem = "/system ";
  if (line == "/exit" || line == "/quit") {
    return false;
  }
  if (line == "/reset") {
    conversation.Reset();
  } else if (line == "/stats") {
    conversation.PrintStats();
  } else if (line.rfind(kSystem, 0) == 0) {
    conversation.SetSystem(line.substr(kSystem.size()));
  } else {
    fmt::print("{}", kHelp);
  }
  return true;
}

}  // namespace

absl::Status Chat(serving::CompletionService& service, const ChatOptions& options) {
  const InterruptGuard guard;
  Conversation conversation(service, options);
  if (!options.prompt.empty()) {
    return conversation.Ask(options.prompt);
  }
  const bool color = options.color && isatty(STDOUT_FILENO) != 0;
  fmt::print("Type a message, or /help.\n");
  while (const std::optional<std::string> line = ReadLine(color)) {
    if (line->find_first_not_of(" \t") == std::string::npos) {
      continue;
    }
    add_history(line->c_str());
    if (line->front() == '/') {
      if (!Command(*line, conversation)) {
        break;
      }
      continue;
    }
    if (const absl::Status status = conversation.Ask(*line); !status.ok()) {
      fmt::print(stderr, "error: {}\n", std::string(status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace spindle::cli
