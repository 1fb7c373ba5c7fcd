// Generation over one engine stream per prompt. Choice index = prompt × choices + j. Events are
// made as they are asked for; what must be kept for a ranking (best_of) is covered by a lease.
// Thread-safety: one consumer thread at a time; Cancel is thread-safe. Lifetime: borrows tokenizer,
// metrics, answer memory and clock.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/byte_quota.h"
#include "base/clock.h"
#include "serving/choice_text.h"
#include "serving/completion_service.h"
#include "serving/generation.h"
#include "serving/prompt_echo.h"
#include "serving/serving_metrics.h"
#include "text/tokenizer.h"

namespace spindle::serving {

struct GenerationDeps {
  const text::Tokenizer& tokenizer;
  const ServingMetrics& metrics;
  ByteQuota& answer_memory;
  const Clock& clock;
};

class StreamGeneration final : public Generation {
 public:
  // `streams`: one per prompt of `request`, each with EngineChoices(request) choices. `lease`
  // covers ParameterBytes(request), and then what is kept for a ranking too.
  StreamGeneration(const PreparedRequest& request,
                   std::string request_id,
                   TimePoint received,
                   std::vector<std::shared_ptr<engine::OutputStream>> streams,
                   ByteQuota::Lease lease,
                   const GenerationDeps& deps);
  ~StreamGeneration() override;
  StreamGeneration(const StreamGeneration&) = delete;
  StreamGeneration& operator=(const StreamGeneration&) = delete;

  // Choices that the engine generates per prompt: n, or best_of when that is more.
  [[nodiscard]] static uint32_t EngineChoices(const PreparedRequest& request);

  // The request waits behind others: reported first when the client asked for progress. Before the
  // first Poll.
  void ReportQueued(uint32_t queue_position);

  size_t Poll(size_t max_events, std::vector<GenerationEvent>* events) override;

  [[nodiscard]] bool Done() const override { return done_ && ready_.empty(); }

  void SetReadyCallback(std::function<void()> ready) override;
  void Cancel(engine::CancelCause cause) override;
  void Fail(const ApiError& error) override;

  [[nodiscard]] const std::string& request_id() const override { return request_id_; }

  [[nodiscard]] Usage usage() const override { return usage_; }

 private:
  struct Choice {
    explicit Choice(ChoiceText choice_text) : text(std::move(choice_text)) {}

    ChoiceText text;
    bool finished = false;
    uint32_t num_tokens = 0;
    double logprob_sum = 0;
    TimePoint first_token;
    TimePoint last_token;
    // best_of: delivered when the choice is among the best.
    std::vector<DeltaEvent> kept;
    FinishedEvent kept_end;
  };

  struct Stream {
    std::shared_ptr<engine::OutputStream> events;  // shared with the engine
    bool done = false;
    engine::RequestStats stats;
    std::optional<PromptEcho> echo;
    std::vector<DeltaEvent> kept_echo;  // best_of: for the choices that are delivered
  };

  // A part of a prompt's echo on its way to all choices of the prompt.
  struct EchoPart {
    size_t stream;
    uint32_t next_choice;  // of the prompt
    DeltaEvent delta;
  };

  // A choice that is among the best of its prompt.
  struct Ranked {
    size_t stream;
    uint32_t choice;  // in choices_
    uint32_t index;   // that the client sees
  };

  // Makes the next event out of what is there; false when there is nothing.
  bool Advance();

  // Takes one event from some stream; false when there is none.
  bool PullOne();
  void Handle(size_t stream, engine::StreamEvent event);
  void OnStarted(size_t stream, const engine::StreamEvent& event);
  void OnProgress(const engine::StreamEvent& event);
  void OnPromptLogprob(size_t stream, const engine::StreamEvent& event);
  void OnToken(size_t stream, const engine::StreamEvent& event);
  void OnFinished(size_t stream, const engine::StreamEvent& event);
  void OnDone(size_t stream, engine::StreamEvent event);

  void Echo(size_t stream, DeltaEvent delta);
  void DeliverEcho();
  void ReleaseDelta(uint32_t choice, bool final);
  void FinishChoice(uint32_t choice, FinishedEvent finished);
  void RankChoices();
  void DeliverRanked();
  void Complete();
  void End(ApiError error);
  // best_of: `delta` is kept, `copies` times at most at once.
  void Keep(std::vector<DeltaEvent>* kept, DeltaEvent delta, uint64_t copies);
  void CountToken(Choice& choice, const engine::StreamEvent& event);

  [[nodiscard]] TokenLogprob MakeToken(const engine::StreamEvent& event) const;
  [[nodiscard]] bool IsText(TokenId token) const;

  [[nodiscard]] uint32_t ChoiceIndex(size_t stream, uint32_t choice) const {
    return static_cast<uint32_t>(stream) * choices_per_prompt_ + choice;
  }

  [[nodiscard]] bool keeps_best() const { return choices_per_prompt_ > num_returned_; }

  // What the request asked for.
  const std::string request_id_;
  const TimePoint received_;
  const GenerationDeps deps_;
  const StopSet stops_;
  const std::vector<std::string> prompt_texts_;
  std::vector<uint32_t> prompt_sizes_;
  std::vector<TokenId> stop_token_ids_;
  const bool echo_;
  const bool skip_special_;
  const bool wants_logprobs_;
  const bool wants_prompt_logprobs_;
  const bool wants_progress_;
  const bool is_chat_;
  const uint32_t num_returned_;        // choices per prompt that the client gets
  const uint32_t choices_per_prompt_;  // that the engine generates

  ByteQuota::Lease lease_;
  uint64_t held_bytes_;  // that it covers
  std::vector<Stream> streams_;
  std::vector<Choice> choices_;
  std::deque<GenerationEvent> ready_;
  std::optional<EchoPart> echo_part_;
  std::deque<Ranked> ranked_;
  std::optional<UsageEvent> usage_event_;  // comes when everything else is delivered
  size_t next_stream_ = 0;
  bool started_ = false;
  bool first_token_seen_ = false;
  bool done_ = false;  // the last event is in ready_ or was delivered
  std::optional<TimePoint> last_progress_;
  Usage usage_;
};

}  // namespace spindle::serving
