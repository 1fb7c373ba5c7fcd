// Stand-ins for what serving stands on: a byte-level tokenizer, a template, scripted engine
// streams. Also used by the request fuzzer. Thread-safety: one thread.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "serving/completion_service.h"
#include "serving/engine_backend.h"
#include "serving/served_model.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace spindle::serving {

inline constexpr TokenId kBos = 256;
inline constexpr TokenId kEos = 257;
inline constexpr TokenId kTurnBegin = 258;
inline constexpr TokenId kTurnEnd = 259;
inline constexpr TokenId kFirstWord = 260;

// Ids 0-255 are bytes, then four control tokens, then a few words; longest match wins.
class FakeTokenizer final : public text::Tokenizer {
 public:
  explicit FakeTokenizer(bool adds_bos = true) : adds_bos_(adds_bos) {
    for (int byte = 0; byte < 256; ++byte) {
      pieces_.emplace_back(1, static_cast<char>(byte));
    }
    specials_ = {"<s>", "</s>", "<|im_start|>", "<|im_end|>"};
    pieces_.insert(pieces_.end(), specials_.begin(), specials_.end());
    for (const char* word :
         {"hello", " world", "\xE2\x82", "\xAC!", "\xF0\x9F\x98\x80", "STOP", " lo", "n"}) {
      pieces_.emplace_back(word);
    }
  }

  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              text::EncodeOptions options) const override {
    std::vector<TokenId> ids;
    if (options.add_special && adds_bos_) {
      ids.push_back(kBos);
    }
    while (!text.empty()) {
      const TokenId id = Longest(text, options.parse_special);
      ids.push_back(id);
      text.remove_prefix(TokenBytes(id).size());
    }
    return ids;
  }

  absl::StatusOr<std::vector<TokenId>> EncodeRendered(std::string_view text,
                                                      char32_t /*guard*/,
                                                      bool add_special) const override {
    absl::StatusOr<std::vector<TokenId>> ids =
        Encode(text, {.add_special = add_special, .parse_special = true});
    std::erase(*ids, TokenId{1});  // the fake template guards with byte 1
    return ids;
  }

  absl::StatusOr<std::string> Decode(std::span<const TokenId> ids,
                                     bool skip_special) const override {
    std::string bytes;
    for (const TokenId id : ids) {
      if (id < 0 || static_cast<size_t>(id) >= pieces_.size()) {
        return absl::InvalidArgumentError("token id outside the vocabulary");
      }
      if (!skip_special || !IsSpecial(id)) {
        bytes += TokenBytes(id);
      }
    }
    return bytes;
  }

  std::unique_ptr<text::DecodeStream> NewDecodeStream(bool /*skip_special*/) const override {
    return nullptr;
  }

  std::string_view TokenBytes(TokenId id) const override {
    return pieces_[static_cast<size_t>(id)];
  }

  bool IsSpecial(TokenId id) const override { return id >= kBos && id < kFirstWord; }

  uint32_t vocab_size() const override { return static_cast<uint32_t>(pieces_.size()); }

  std::optional<TokenId> bos_id() const override { return kBos; }

  bool adds_bos() const override { return adds_bos_; }

  std::span<const TokenId> end_ids() const override { return end_ids_; }

  std::string_view bos_text() const override { return specials_[0]; }

  std::string_view eos_text() const override { return specials_[1]; }

  std::span<const std::string> special_texts() const override { return specials_; }

  std::string_view kind() const override { return "bytes"; }

  std::string_view definition() const override { return "fake"; }

 private:
  TokenId Longest(std::string_view text, bool parse_special) const {
    TokenId best = static_cast<uint8_t>(text[0]);
    for (size_t i = 256; i < pieces_.size(); ++i) {
      const auto id = static_cast<TokenId>(i);
      if ((parse_special || !IsSpecial(id)) && text.starts_with(pieces_[i]) &&
          pieces_[i].size() > TokenBytes(best).size()) {
        best = id;
      }
    }
    return best;
  }

  bool adds_bos_;
  std::vector<std::string> pieces_;
  std::vector<std::string> specials_;
  std::vector<TokenId> end_ids_ = {kEos, kTurnEnd};
};

// ChatML-like; a message whose content is "RAISE" is refused with "roles must alternate". Keeps the
// last request's JSON.
class FakeTemplate final : public text::ChatTemplate {
 public:
  explicit FakeTemplate(std::string source = "chatml") : source_(std::move(source)) {}

  absl::StatusOr<text::RenderedPrompt> Render(const text::RenderRequest& request) const override {
    const auto messages = nlohmann::json::parse(request.messages_json);
    last_messages_ = messages;
    last_kwargs_ =
        request.kwargs_json.empty() ? nlohmann::json() : nlohmann::json::parse(request.kwargs_json);
    std::string text;
    std::string plain;
    for (size_t i = 0; i < messages.size(); ++i) {
      const auto& content = messages[i]["content"];
      const std::string body = content.is_null() ? "" : content.get<std::string>();
      if (body == "RAISE") {
        return absl::InvalidArgumentError("roles must alternate");
      }
      const std::string head = "<|im_start|>" + messages[i]["role"].get<std::string>() + "\n";
      const bool open = request.continue_final_message && i + 1 == messages.size();
      const std::string tail = open ? "" : "<|im_end|>\n";
      plain += head + body + tail;
      text += head + Guarded(body) + tail;
    }
    if (request.add_generation_prompt) {
      text += "<|im_start|>assistant\n";
      plain += "<|im_start|>assistant\n";
    }
    return text::RenderedPrompt{text, plain, 1};
  }

  std::string_view source() const override { return source_; }

  bool supports_tools() const override { return false; }

  [[nodiscard]] const nlohmann::json& last_messages() const { return last_messages_; }

  [[nodiscard]] const nlohmann::json& last_kwargs() const { return last_kwargs_; }

 private:
  static std::string Guarded(const std::string& body) {
    std::string out;
    for (const char c : body) {
      out += c;
      if (c == '<') {
        out += '\x01';
      }
    }
    return out;
  }

  std::string source_;
  mutable nlohmann::json last_messages_;
  mutable nlohmann::json last_kwargs_;
};

// An engine stream that plays a script.
class FakeStream final : public engine::OutputStream {
 public:
  bool Next(engine::StreamEvent* event) override {
    if (events_.empty()) {
      return false;
    }
    *event = std::move(events_.front());
    events_.pop_front();
    return true;
  }

  void SetReadyCallback(std::function<void()> ready) override { ready_ = std::move(ready); }

  void Cancel(engine::CancelCause cause) override {
    if (!cancelled_.has_value()) {
      cancelled_ = cause;
    }
  }

  void StopChoice(uint32_t choice, uint32_t num_tokens) override {
    stops_.emplace_back(choice, num_tokens);
  }

  void Add(engine::StreamEvent event) {
    events_.push_back(std::move(event));
    if (ready_) {
      ready_();
    }
  }

  void AddStarted(uint32_t prompt_tokens, uint32_t cached_tokens = 0) {
    engine::StreamEvent event;
    event.kind = engine::StreamEvent::Kind::kStarted;
    event.stats.prompt_tokens = prompt_tokens;
    event.stats.cached_tokens = cached_tokens;
    Add(std::move(event));
  }

  void AddToken(TokenId token, uint32_t choice = 0, float logprob = -0.5F) {
    engine::StreamEvent event;
    event.kind = engine::StreamEvent::Kind::kToken;
    event.choice = choice;
    event.token = token;
    event.is_end_token = token == kEos || token == kTurnEnd;
    event.logprob = logprob;
    event.top = {{token, logprob}, {kEos, logprob - 1.0F}};
    Add(std::move(event));
  }

  void AddPromptLogprob(TokenId token, float logprob) {
    engine::StreamEvent event;
    event.kind = engine::StreamEvent::Kind::kPromptLogprob;
    event.token = token;
    event.logprob = logprob;
    event.top = {{token, logprob}};
    Add(std::move(event));
  }

  void AddFinished(engine::FinishReason reason, uint32_t choice = 0, TokenId stop_token = -1) {
    engine::StreamEvent event;
    event.kind = engine::StreamEvent::Kind::kFinished;
    event.choice = choice;
    event.reason = reason;
    event.stop_token = stop_token;
    Add(std::move(event));
  }

  void AddDone(engine::EndCause cause = engine::EndCause::kCompleted,
               absl::Status status = absl::OkStatus()) {
    engine::StreamEvent event;
    event.kind = engine::StreamEvent::Kind::kDone;
    event.cause = cause;
    event.status = std::move(status);
    Add(std::move(event));
  }

  [[nodiscard]] std::optional<engine::CancelCause> cancelled() const { return cancelled_; }

  [[nodiscard]] const std::vector<std::pair<uint32_t, uint32_t>>& stops() const { return stops_; }

  [[nodiscard]] size_t num_waiting() const { return events_.size(); }

 private:
  std::deque<engine::StreamEvent> events_;
  std::function<void()> ready_;
  std::optional<engine::CancelCause> cancelled_;
  std::vector<std::pair<uint32_t, uint32_t>> stops_;
};

// Answers Submit with streams, or with the refusal that is set.
class FakeEngine final : public EngineBackend {
 public:
  FakeEngine() {
    config_.architecture = "llama";
    config_.quantization = "Q4_1";
    config_.num_layers = 2;
    config_.num_q_heads = 4;
    config_.num_kv_heads = 2;
    config_.head_dim = 64;
    config_.vocab_size = 300;
    config_.max_model_len = 256;
    config_.trained_context = 2048;
    geometry_ = {.num_layers = 2, .num_kv_heads = 2, .head_dim = 64};
  }

  const model::ModelConfig& model_config() const override { return config_; }

  const Digest& model_fingerprint() const override { return fingerprint_; }

  const kv::KvGeometry& kv_geometry() const override { return geometry_; }

  bool keeps_sessions() const override { return true; }

  engine::SubmitResult Submit(engine::EngineRequest request) override {
    requests.push_back(std::move(request));
    if (refusal.has_value() && requests.size() > accepted_before_refusal) {
      return *refusal;
    }
    streams.push_back(std::make_shared<FakeStream>());
    return std::shared_ptr<engine::OutputStream>(streams.back());
  }

  engine::EngineLoad Load() const override {
    engine::EngineLoad load{};
    load.waiting = waiting;
    load.kv.capacity_stripes = 10;
    load.kv.stripe_bytes = 1000;
    return load;
  }

  void BeginDrain() override { draining = true; }

  void Shutdown(TimePoint deadline) override { shutdown_deadline = deadline; }

  std::vector<engine::EngineRequest> requests;
  std::vector<std::shared_ptr<FakeStream>> streams;  // shared with the generations
  std::optional<engine::SubmitRefusal> refusal;
  size_t accepted_before_refusal = 0;
  uint32_t waiting = 0;
  bool draining = false;
  std::optional<TimePoint> shutdown_deadline;

 private:
  model::ModelConfig config_;
  Digest fingerprint_{};
  kv::KvGeometry geometry_;
};

// A service over the fakes, with the model `smol` loaded.
struct FakeService {
  explicit FakeService(ServingOptions service_options = {}, bool with_template = true)
      : options(WithName(std::move(service_options))),
        registry(metrics::Labels{{"model_name", "smol"}}),
        api(options, registry, clock, [](std::string_view source, const text::Tokenizer&) {
          if (source == "BAD") {
            return absl::StatusOr<std::unique_ptr<text::ChatTemplate>>(
                absl::InvalidArgumentError("syntax error in line 1"));
          }
          return absl::StatusOr<std::unique_ptr<text::ChatTemplate>>(
              std::make_unique<FakeTemplate>(std::string(source)));
        }) {
    ServedModel model;
    auto fake_engine = std::make_unique<FakeEngine>();
    engine = fake_engine.get();
    model.engine = std::move(fake_engine);
    model.tokenizer = std::make_unique<FakeTokenizer>();
    if (with_template) {
      auto fake_template = std::make_unique<FakeTemplate>();
      chat_template = fake_template.get();
      model.chat_template = std::move(fake_template);
    }
    model.kernel_name = "portable";
    api.SetServedModel(std::move(model));
  }

  static ServingOptions WithName(ServingOptions options) {
    if (options.served_names.empty()) {
      options.served_names = {"smol"};
    }
    return options;
  }

  [[nodiscard]] Result<PreparedRequest> Prepare(Endpoint endpoint, std::string_view body) const {
    return api.Prepare(endpoint, body, caller);
  }

  [[nodiscard]] std::string registry_text() const { return registry.Expose(true); }

  ServingOptions options;
  VirtualClock clock;
  mutable metrics::Registry registry;
  Caller caller{.request_id = "req-1",
                .tenant = {},
                .key_name = {},
                .min_priority = 0,
                .retention = true,
                .fairness_id = {},
                .received = TimePoint(),
                .deadline = {}};
  FakeEngine* engine = nullptr;           // owned by api
  FakeTemplate* chat_template = nullptr;  // owned by api; null without a template
  CompletionService api;
};

}  // namespace spindle::serving
