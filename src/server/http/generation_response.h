// One generation on its way to a client: pulls its events and writes them in the form the request
// asked for. No sockets. Thread-safety: thread-compatible; lives on the connection's strand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/byte_quota.h"
#include "base/clock.h"
#include "server/http/completion_format.h"
#include "serving/completion_service.h"
#include "serving/generation.h"

namespace spindle::server {

class GenerationResponse {
 public:
  enum class State : uint8_t { kWaiting, kMore, kDone };

  // `memory` is what an answer that is not streamed takes leases of while it grows; it and `clock`
  // must outlive the object.
  GenerationResponse(serving::PreparedRequest request,
                     std::unique_ptr<serving::Generation> generation,
                     const CompletionIdentity& identity,
                     ByteQuota& memory,
                     const Clock& clock);

  // Takes up to `max_events` events, and no more once their server-sent events, which are appended
  // to `out`, have `max_bytes`. kWaiting: nothing more until the ready callback. After kDone:
  // error(), else TakeBody() or the end of the stream, which is in `out`.
  [[nodiscard]] State Pump(size_t max_events, size_t max_bytes, std::string* out);

  [[nodiscard]] bool streaming() const { return request_.stream; }

  [[nodiscard]] const serving::PreparedRequest& request() const { return request_; }

  [[nodiscard]] const std::optional<serving::ApiError>& error() const { return error_; }

  // The whole response. REQUIRES: done, not streaming, no error; called once.
  [[nodiscard]] TextBlocks TakeBody() { return result_.Build(usage_, stats_); }

  // The memory that the answer takes passes to who sends it.
  [[nodiscard]] ByteQuota::Lease TakeLease() { return std::move(lease_); }

  [[nodiscard]] serving::Generation& generation() { return *generation_; }

  // Gives the unfinished generation away.
  [[nodiscard]] std::unique_ptr<serving::Generation> Release() { return std::move(generation_); }

  // For the access log.
  [[nodiscard]] serving::Usage usage() const;

  [[nodiscard]] Duration queue_time() const { return stats_.queue_time; }

  // By the engine's own measure.
  [[nodiscard]] Duration time_to_first_token() const { return stats_.time_to_first_token; }

  [[nodiscard]] const std::string& finish_reasons() const { return finish_reasons_; }

 private:
  void OnEvent(serving::GenerationEvent event, std::string* out);
  void OnProgress(const serving::ProgressEvent& event, std::string* out);
  // The result has grown.
  void CoverResult();

  const serving::PreparedRequest request_;
  std::unique_ptr<serving::Generation> generation_;
  ByteQuota& memory_;
  const Clock& clock_;
  ChunkWriter chunks_;
  ResultBuilder result_;
  ByteQuota::Lease lease_;
  std::vector<serving::GenerationEvent> events_;  // reused
  serving::Usage usage_;
  engine::RequestStats stats_;
  std::optional<serving::ApiError> error_;
  TimePoint next_progress_{};
  std::string finish_reasons_;
};

}  // namespace spindle::server
