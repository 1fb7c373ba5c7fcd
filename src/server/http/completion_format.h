// JSON forms of chat and text completions, streamed and whole (docs/http-api.md). No sockets.
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/logprob_format.h"
#include "server/http/text_blocks.h"
#include "serving/completion_service.h"
#include "serving/generation.h"

namespace spindle::server {

// What is equal on all chunks of a response.
struct CompletionIdentity {
  std::string id;  // with its prefix
  int64_t created_unix_seconds = 0;
  std::string system_fingerprint;
};

// `chatcmpl-` or `cmpl-` and the request id.
[[nodiscard]] std::string CompletionId(serving::Endpoint endpoint, const std::string& request_id);

// {"prompt_tokens":…}; with `stats` also by tier where cached tokens came from.
void AppendUsage(const serving::Usage& usage, const engine::RequestStats* stats, std::string* out);

// Name of a finish reason.
[[nodiscard]] const char* FinishReasonName(engine::FinishReason reason);

// Writes server-sent events. `request` must outlive the writer.
class ChunkWriter {
 public:
  ChunkWriter(const serving::PreparedRequest& request, const CompletionIdentity& identity);

  // Each appends whole events (`data: …\n\n`) to `out`, or nothing. `running`: totals so far.
  void Delta(const serving::DeltaEvent& event, const serving::Usage& running, std::string* out);
  void Finished(const serving::FinishedEvent& event,
                const serving::Usage& running,
                std::string* out);
  void Progress(const serving::ProgressEvent& event,
                const serving::Usage& running,
                std::string* out);
  // The usage chunk and the statistics, when they were asked for, and the end mark.
  void Done(const serving::Usage& usage, const engine::RequestStats& stats, std::string* out);
  // The last event of a stream that failed.
  static void Error(const serving::ApiError& error, std::string* out);

 private:
  void FirstChunk(uint32_t choice, const serving::Usage& running, std::string* out);
  void Begin(std::string* out) const;
  // `extra`: further members of the chunk object, each with its leading comma.
  void End(const serving::Usage& running, std::string_view extra, std::string* out) const;
  void AppendLogprobs(const serving::DeltaEvent& event, std::string* out) const;

  const serving::PreparedRequest& request_;
  const bool chat_;
  std::string head_;           // from `data: {"id"` to `"choices":[`
  std::vector<bool> started_;  // per choice: its first chunk is out
};

// Collects a whole response as text, so that what it holds is little more than what will be sent.
// `request` must outlive the builder.
class ResultBuilder {
 public:
  ResultBuilder(const serving::PreparedRequest& request, const CompletionIdentity& identity);

  void Delta(const serving::DeltaEvent& event);
  void Finished(serving::FinishedEvent event);

  [[nodiscard]] uint64_t held_bytes() const { return held_bytes_; }

  // The response body; afterwards nothing is held.
  [[nodiscard]] TextBlocks Build(const serving::Usage& usage, const engine::RequestStats& stats);
  // Forgets everything.
  void Clear();

 private:
  struct Choice {
    explicit Choice(bool is_chat) : logprobs(is_chat) {}

    [[nodiscard]] uint64_t held_bytes() const;

    TextBlocks text;       // what stands between the quotes
    TextBlocks token_ids;  // … and between the brackets
    LogprobText logprobs;
    serving::FinishedEvent finish;
  };

  Choice& At(uint32_t index);
  void AppendChoice(uint32_t index, Choice* choice, TextBlocks* out) const;

  const serving::PreparedRequest& request_;
  const CompletionIdentity identity_;
  const bool chat_;
  std::map<uint32_t, Choice> choices_;  // ordered by index
  uint64_t held_bytes_ = 0;
  std::string scratch_;
};

}  // namespace spindle::server
