#include "server/http/completion_format.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "server/http/json_writer.h"
#include "server/http/response.h"
#include "server/http/stats_format.h"

namespace spindle::server {
namespace {

void AppendNumber(uint64_t value, std::string* out) {
  AppendJsonNumber(value, out);
}

// Digits of an id, a comma.
constexpr uint64_t kIdTextBytes = 8;

// `follows`: others stand before the first.
void AppendTokenIdItems(std::span<const TokenId> ids, bool follows, std::string* out) {
  for (const TokenId id : ids) {
    if (std::exchange(follows, true)) {
      out->push_back(',');
    }
    AppendJsonNumber(static_cast<int64_t>(id), out);
  }
}

void AppendTokenIds(std::span<const TokenId> ids, std::string* out) {
  out->push_back('[');
  AppendTokenIdItems(ids, /*follows=*/false, out);
  out->push_back(']');
}

// Key and value of the stop that ended a choice.
void AppendStopReason(const serving::FinishedEvent& event, std::string* out) {
  if (event.stop_string.has_value()) {
    AppendJsonString(*event.stop_string, out);
  } else if (event.stop_token.has_value()) {
    AppendJsonNumber(static_cast<int64_t>(*event.stop_token), out);
  } else {
    out->append("null");
  }
}

std::span<const TokenId> PromptOf(const serving::PreparedRequest& request, uint32_t choice) {
  const uint32_t prompt = choice / std::max(1U, request.sampling.num_choices);
  return prompt < request.prompts.size() ? std::span<const TokenId>(request.prompts[prompt])
                                         : std::span<const TokenId>();
}

// id, object, created, model and fingerprint, up to and including `"choices":[`.
std::string ResponseHead(const serving::PreparedRequest& request,
                         const CompletionIdentity& identity,
                         std::string_view object) {
  std::string head = R"({"id":)";
  AppendJsonString(identity.id, &head);
  head.append(R"(,"object":")").append(object).append(R"(","created":)");
  AppendJsonNumber(identity.created_unix_seconds, &head);
  head += R"(,"model":)";
  AppendJsonString(request.model, &head);
  head += R"(,"system_fingerprint":)";
  AppendJsonString(identity.system_fingerprint, &head);
  head += R"(,"choices":[)";
  return head;
}

bool WantsLogprobs(const serving::PreparedRequest& request) {
  return request.sampling.logprobs.has_value();
}

}  // namespace

std::string CompletionId(serving::Endpoint endpoint, const std::string& request_id) {
  return (endpoint == serving::Endpoint::kChat ? "chatcmpl-" : "cmpl-") + request_id;
}

void AppendUsage(const serving::Usage& usage, const engine::RequestStats* stats, std::string* out) {
  out->append(R"({"prompt_tokens":)");
  AppendNumber(usage.prompt_tokens, out);
  out->append(R"(,"completion_tokens":)");
  AppendNumber(usage.completion_tokens, out);
  out->append(R"(,"total_tokens":)");
  AppendNumber(uint64_t{usage.prompt_tokens} + usage.completion_tokens, out);
  out->append(R"(,"prompt_tokens_details":{"cached_tokens":)");
  AppendNumber(usage.cached_tokens, out);
  if (stats != nullptr) {
    out->append(R"(,"spindle_cached":{"host":)");
    AppendNumber(usage.cached_tokens - std::min(stats->disk_tokens, usage.cached_tokens), out);
    out->append(R"(,"disk":)");
    AppendNumber(stats->disk_tokens, out);
    out->push_back('}');
  }
  out->append(
      R"(,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0,)"
      R"("accepted_prediction_tokens":0,"rejected_prediction_tokens":0}})");
}

const char* FinishReasonName(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return "stop";
    case engine::FinishReason::kLength:
      return "length";
    case engine::FinishReason::kAborted:
      return "abort";
    case engine::FinishReason::kError:
      return "error";
  }
  return "error";
}

ChunkWriter::ChunkWriter(const serving::PreparedRequest& request,
                         const CompletionIdentity& identity)
    : request_(request), chat_(request.endpoint == serving::Endpoint::kChat) {
  head_ = "data: ";
  head_ += ResponseHead(request, identity, chat_ ? "chat.completion.chunk" : "text_completion");
}

void ChunkWriter::Begin(std::string* out) const {
  out->append(head_);
}

void ChunkWriter::End(const serving::Usage& running,
                      std::string_view extra,
                      std::string* out) const {
  out->push_back(']');
  out->append(extra);
  if (request_.continuous_usage) {
    out->append(R"(,"usage":)");
    AppendUsage(running, nullptr, out);
  } else if (request_.include_usage) {
    out->append(R"(,"usage":null)");
  }
  out->append("}\n\n");
}

void ChunkWriter::FirstChunk(uint32_t choice, const serving::Usage& running, std::string* out) {
  if (choice >= started_.size()) {
    started_.resize(choice + 1, false);
  }
  if (started_[choice]) {
    return;
  }
  started_[choice] = true;
  // Text completions have no role chunk; theirs is written only to carry the prompt's ids.
  if (!chat_ && !request_.return_token_ids) {
    return;
  }
  Begin(out);
  out->append(R"({"index":)");
  AppendNumber(choice, out);
  out->append(chat_ ? R"(,"delta":{"role":"assistant","content":""})" : R"(,"text":"")");
  out->append(R"(,"logprobs":null,"finish_reason":null)");
  std::string prompt_ids;
  if (request_.return_token_ids) {
    prompt_ids = R"(,"prompt_token_ids":)";
    AppendTokenIds(PromptOf(request_, choice), &prompt_ids);
  }
  // A chat has one prompt, so its ids stand beside the choices.
  if (!chat_) {
    out->append(std::exchange(prompt_ids, {}));
  }
  out->push_back('}');
  End(running, prompt_ids, out);
}

void ChunkWriter::AppendLogprobs(const serving::DeltaEvent& event, std::string* out) const {
  if (event.logprobs.empty() || !WantsLogprobs(request_)) {
    out->append("null");
  } else {
    server::AppendLogprobs(chat_, event.logprobs, out);
  }
}

void ChunkWriter::Delta(const serving::DeltaEvent& event,
                        const serving::Usage& running,
                        std::string* out) {
  FirstChunk(event.choice, running, out);
  const bool has_ids = request_.return_token_ids && !event.token_ids.empty();
  if (event.text.empty() && event.logprobs.empty() && !has_ids) {
    return;
  }
  Begin(out);
  out->append(R"({"index":)");
  AppendNumber(event.choice, out);
  if (!chat_) {
    out->append(R"(,"text":)");
    AppendJsonString(event.text, out);
  } else if (event.text.empty()) {
    out->append(R"(,"delta":{})");
  } else {
    out->append(R"(,"delta":{"content":)");
    AppendJsonString(event.text, out);
    out->push_back('}');
  }
  out->append(R"(,"logprobs":)");
  AppendLogprobs(event, out);
  out->append(R"(,"finish_reason":null)");
  if (has_ids) {
    out->append(R"(,"token_ids":)");
    AppendTokenIds(event.token_ids, out);
  }
  out->push_back('}');
  End(running, {}, out);
}

void ChunkWriter::Finished(const serving::FinishedEvent& event,
                           const serving::Usage& running,
                           std::string* out) {
  FirstChunk(event.choice, running, out);
  Begin(out);
  out->append(R"({"index":)");
  AppendNumber(event.choice, out);
  out->append(chat_ ? R"(,"delta":{})" : R"(,"text":"")");
  out->append(R"(,"logprobs":null,"finish_reason":")").append(FinishReasonName(event.reason));
  out->append(R"(","stop_reason":)");
  AppendStopReason(event, out);
  out->push_back('}');
  End(running, {}, out);
}

void ChunkWriter::Progress(const serving::ProgressEvent& event,
                           const serving::Usage& running,
                           std::string* out) {
  std::string progress = R"(,"spindle":{"progress":{"phase":")";
  progress.append(event.queued ? "queued" : "prefill");
  progress.append(R"(","queue_position":)");
  AppendNumber(event.queue_position, &progress);
  progress.append(R"(,"processed_tokens":)");
  AppendNumber(event.processed_tokens, &progress);
  progress.append(R"(,"total_tokens":)");
  AppendNumber(event.total_tokens, &progress);
  progress.append(R"(,"cached_tokens":)");
  AppendNumber(event.cached_tokens, &progress);
  progress.append("}}");
  Begin(out);
  End(running, progress, out);
}

void ChunkWriter::Done(const serving::Usage& usage,
                       const engine::RequestStats& stats,
                       std::string* out) {
  if (request_.include_usage || request_.stats) {
    Begin(out);
    out->push_back(']');
    if (request_.include_usage) {
      out->append(R"(,"usage":)");
      AppendUsage(usage, request_.stats ? &stats : nullptr, out);
    }
    if (request_.stats) {
      out->append(R"(,"spindle":)");
      AppendStats(request_, stats, out);
    }
    out->append("}\n\n");
  }
  out->append("data: [DONE]\n\n");
}

void ChunkWriter::Error(const serving::ApiError& error, std::string* out) {
  out->append("data: ").append(ErrorJson(error, error.http_status)).append("\n\n");
}

uint64_t ResultBuilder::Choice::held_bytes() const {
  const uint64_t stop_bytes = finish.stop_string.has_value() ? finish.stop_string->size() : 0;
  return sizeof(Choice) + text.held_bytes() + token_ids.held_bytes() + logprobs.held_bytes() +
         stop_bytes;
}

ResultBuilder::ResultBuilder(const serving::PreparedRequest& request,
                             const CompletionIdentity& identity)
    : request_(request), identity_(identity), chat_(request.endpoint == serving::Endpoint::kChat) {}

ResultBuilder::Choice& ResultBuilder::At(uint32_t index) {
  const auto [place, added] = choices_.try_emplace(index, chat_);
  if (added) {
    held_bytes_ += place->second.held_bytes();
    if (request_.return_token_ids && !chat_) {
      held_bytes_ += PromptOf(request_, index).size() * kIdTextBytes;  // written by Build
    }
  }
  return place->second;
}

void ResultBuilder::Delta(const serving::DeltaEvent& event) {
  Choice& choice = At(event.choice);
  held_bytes_ -= choice.held_bytes();
  scratch_.clear();
  AppendJsonText(event.text, &scratch_);
  choice.text.Append(scratch_);
  if (request_.return_token_ids) {
    scratch_.clear();
    AppendTokenIdItems(event.token_ids, /*follows=*/!choice.token_ids.empty(), &scratch_);
    choice.token_ids.Append(scratch_);
  }
  if (WantsLogprobs(request_)) {
    choice.logprobs.Add(event.logprobs);
  }
  held_bytes_ += choice.held_bytes();
}

void ResultBuilder::Finished(serving::FinishedEvent event) {
  Choice& choice = At(event.choice);
  held_bytes_ -= choice.held_bytes();
  choice.finish = std::move(event);
  held_bytes_ += choice.held_bytes();
}

void ResultBuilder::Clear() {
  choices_.clear();
  held_bytes_ = 0;
}

void ResultBuilder::AppendChoice(uint32_t index, Choice* choice, TextBlocks* out) const {
  std::string text = R"({"index":)";
  AppendNumber(index, &text);
  out->Append(text);
  out->Append(chat_ ? R"(,"message":{"role":"assistant","content":")" : R"(,"text":")");
  out->Append(std::move(choice->text));
  out->Append(chat_ ? R"(","refusal":null},"logprobs":)" : R"(","logprobs":)");
  if (WantsLogprobs(request_)) {
    choice->logprobs.MoveTo(out);
  } else {
    out->Append("null");
  }
  text = R"(,"finish_reason":")";
  text.append(FinishReasonName(choice->finish.reason)).append(R"(","stop_reason":)");
  AppendStopReason(choice->finish, &text);
  out->Append(text);
  if (request_.return_token_ids) {
    out->Append(R"(,"token_ids":[)");
    out->Append(std::move(choice->token_ids));
    out->Append("]");
  }
  if (request_.return_token_ids && !chat_) {
    text = R"(,"prompt_token_ids":)";
    AppendTokenIds(PromptOf(request_, index), &text);
    out->Append(text);
  }
  out->Append("}");
}

TextBlocks ResultBuilder::Build(const serving::Usage& usage, const engine::RequestStats& stats) {
  TextBlocks body;
  body.Append(ResponseHead(request_, identity_, chat_ ? "chat.completion" : "text_completion"));
  bool follows = false;
  for (auto& [index, choice] : choices_) {
    body.Append(std::exchange(follows, true) ? "," : "");
    AppendChoice(index, &choice, &body);
  }
  Clear();
  std::string tail = R"(],"usage":)";
  AppendUsage(usage, request_.stats ? &stats : nullptr, &tail);
  if (request_.stats) {
    tail += R"(,"spindle":)";
    AppendStats(request_, stats, &tail);
  }
  if (chat_) {
    tail += R"(,"service_tier":"default")";
  }
  if (request_.return_token_ids && chat_ && !request_.prompts.empty()) {
    tail += R"(,"prompt_token_ids":)";
    AppendTokenIds(request_.prompts.front(), &tail);
  }
  tail += '}';
  body.Append(tail);
  return body;
}

}  // namespace spindle::server
