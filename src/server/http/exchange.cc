// Requests of a connection: checks, dispatch, answers, generations.
#include <algorithm>
#include <charconv>
#include <utility>
#include <variant>

#include <boost/asio/post.hpp>

#include "base/client_name.h"
#include "server/http/connection.h"
#include "server/http/simple_handlers.h"
#include "serving/answer_memory.h"

namespace spindle::server {
namespace {

// A refused request's body up to this size is read and dropped, so that the connection lives on.
constexpr uint64_t kMaxDiscardBytes = uint64_t{1} << 20;
// Events taken at a time, and how many bytes they may make before the last of them; other
// connections of the thread get their turn in between.
constexpr size_t kEventsPerPump = 64;
constexpr size_t kBytesPerPump = serving::kSmallAnswerBytes;

int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string JoinIgnored(const std::vector<std::string>& fields) {
  constexpr size_t kMaxNames = 16;
  std::string list;
  for (size_t i = 0; i < std::min(fields.size(), kMaxNames); ++i) {
    list += i > 0 ? "," : "";
    for (const char c : fields[i]) {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
      list += plain ? c : '_';
    }
  }
  return list;
}

serving::ApiError LimitError(const LimitRefusal& refusal) {
  const bool rate = refusal.kind == LimitFailure::kRate;
  serving::ApiError error =
      serving::MakeError(429,
                         rate ? "rate_limit_exceeded" : "key_concurrency_exceeded",
                         rate ? "This API key made too many requests in the last minute."
                              : "This API key has too many requests running.");
  error.retry_after = refusal.retry_after;
  error.should_retry = true;
  return error;
}

std::optional<serving::Endpoint> GenerationEndpoint(EndpointId endpoint) {
  switch (endpoint) {
    case EndpointId::kChatCompletions:
      return serving::Endpoint::kChat;
    case EndpointId::kCompletions:
      return serving::Endpoint::kCompletions;
    default:
      return std::nullopt;
  }
}

void AppendHttpChunk(std::string_view data, std::string* out) {
  std::array<char, 16> size;
  const auto end = std::to_chars(size.data(), size.data() + size.size(), data.size(), 16).ptr;
  out->append(size.data(), end).append("\r\n").append(data).append("\r\n");
}

}  // namespace

void Connection::BeginExchange() {
  exchange_.emplace(context_.large_bodies.memory());
  exchange_->serial = ++num_exchanges_;
  exchange_->begun = context_.clock.Now();
  exchange_->received = exchange_->begun;
}

void Connection::OnHead() {
  const RequestHead& head = parser_.head();
  BeginExchange();
  Exchange& exchange = *exchange_;
  const std::string* wanted = head.Find("x-request-id");
  exchange.header_names_id = wanted != nullptr && IsClientName(*wanted);
  exchange.id = context_.ids.Acquire(wanted == nullptr ? std::nullopt
                                                       : std::optional<std::string_view>(*wanted));
  exchange.route = context_.router.Resolve(head.method, head.target);
  exchange.record.method = head.method;
  exchange.record.path = std::string(TargetPath(head.target));
  exchange.close = !head.keep_alive || context_.draining();
  exchange.headers = context_.cors.ResponseHeaders(head);

  std::optional<Response> refusal =
      CheckHead(context_, exchange.route, head, loopback_peer_, &exchange.grant);
  exchange.record.key_name = exchange.grant.name;
  if (const std::string* id = head.Find(kFairnessHeader); id != nullptr && exchange.grant.trusted) {
    exchange.fairness_id = *id;
  }
  if (refusal.has_value()) {
    Refuse(*std::move(refusal));
    return;
  }
  phase_ = Phase::kBody;
  body_mark_bytes_ = 0;
  if (head.expect_continue && head.has_body()) {
    Send("HTTP/1.1 100 Continue\r\n\r\n");
  }
}

void Connection::Refuse(Response response) {
  const RequestHead& head = parser_.head();
  const bool readable =
      !head.expect_continue && !head.chunked && head.content_length.value_or(0) <= kMaxDiscardBytes;
  response.close = response.close || (head.has_body() && !readable);
  Respond(std::move(response));
  if (!end_after_write_) {
    phase_ = Phase::kDiscard;
    body_mark_bytes_ = 0;
    parser_.DiscardBody();
  }
}

void Connection::OnParseError() {
  if (!exchange_.has_value() && phase_ != Phase::kDiscard) {
    BeginExchange();
  }
  if (!exchange_.has_value()) {
    // The request was answered already.
    end_after_write_ = true;
    if (unsent_bytes() == 0) {
      BeginLinger();
    }
    return;
  }
  Response response = ErrorResponse(ToApiError(parser_.error()));
  response.close = true;
  Respond(std::move(response));
}

void Connection::OnBodyBytes() {
  if (phase_ != Phase::kBody) {
    return;
  }
  std::string& body = parser_.body();
  if (body.size() > kLargeBodyBytes) {
    // Growing would hold it twice; memory is taken only as it is written.
    body.reserve(parser_.head().content_length.value_or(0));
  }
  const uint64_t held_bytes = parser_.head().chunked ? body.capacity() : body.size();
  if (exchange_->body_lease.Cover(held_bytes)) {
    return;
  }
  serving::ApiError error = serving::MakeError(
      503, "too_many_large_bodies", "Too many large requests are being received.");
  error.retry_after = std::chrono::seconds(1);
  error.should_retry = true;
  context_.backend->RecordRejection(error);
  Response response = ErrorResponse(error);
  response.close = true;
  Respond(std::move(response));
  parser_.body().clear();
  parser_.body().shrink_to_fit();
}

void Connection::OnBody() {
  phase_ = Phase::kServing;
  exchange_->received = context_.clock.Now();
  const Route& route = exchange_->route;
  if (parser_.body().size() > kLargeBodyBytes) {
    ServeLargeBody();
  } else if (const auto endpoint = GenerationEndpoint(route.endpoint); endpoint.has_value()) {
    StartGeneration(context_.backend->Prepare(*endpoint, parser_.body(), CallerOfExchange()));
  } else {
    Respond(HandleSimple(context_, route, parser_.head(), exchange_->grant, parser_.body()));
  }
}

// The same away from this thread: nothing of the connection is touched there.
void Connection::ServeLargeBody() {
  struct Work {
    Route route;
    RequestHead head;
    ApiKeys::Grant grant;
    serving::Caller caller;
    std::string body;
    ByteQuota::Lease lease;
  };

  auto work = std::make_shared<Work>(Work{exchange_->route,
                                          parser_.head(),
                                          exchange_->grant,
                                          CallerOfExchange(),
                                          std::move(parser_.body()),
                                          std::move(exchange_->body_lease)});
  parser_.body().clear();
  context_.large_bodies.Post([weak = weak_from_this(),
                              executor = executor_,
                              serial = exchange_->serial,
                              &context = context_,
                              work = std::move(work)] {
    if (weak.expired()) {
      return;  // nobody waits for it
    }
    if (const auto endpoint = GenerationEndpoint(work->route.endpoint); endpoint.has_value()) {
      auto prepared = std::make_shared<serving::Result<serving::PreparedRequest>>(
          context.backend->Prepare(*endpoint, work->body, work->caller));
      boost::asio::post(executor, [weak, serial, prepared] {
        const auto self = weak.lock();
        if (self != nullptr && self->StillServing(serial)) {
          self->StartGeneration(std::move(*prepared));
        }
      });
    } else {
      auto response = std::make_shared<Response>(
          HandleSimple(context, work->route, work->head, work->grant, work->body));
      boost::asio::post(executor, [weak, serial, response] {
        const auto self = weak.lock();
        if (self != nullptr && self->StillServing(serial)) {
          self->Respond(std::move(*response));
        }
      });
    }
  });
}

bool Connection::StillServing(uint64_t serial) const {
  return phase_ == Phase::kServing && exchange_.has_value() && exchange_->serial == serial;
}

void Connection::Respond(Response response) {
  Exchange& exchange = *exchange_;
  const uint64_t wanted_bytes = unsent_bytes() + response.body_bytes();
  if (!output_lease_.Cover(wanted_bytes)) {
    const serving::ApiError error =
        serving::AnswerMemoryFull(wanted_bytes, context_.backend->AnswerMemory());
    context_.backend->RecordRejection(error);
    response = ErrorResponse(error);
  }
  if (exchange.id.id().empty()) {
    exchange.id = context_.ids.Acquire(std::nullopt);
  }
  exchange.close = exchange.close || response.close || context_.draining();
  exchange.record.status = response.status;
  exchange.record.error_code = response.error_code;
  AddCommonHeaders();
  const std::string head = SerializeHead(response, Framing::kLength, exchange.headers);
  const bool has_body = exchange.record.method != "HEAD";
  end_after_write_ = exchange.close;
  FinishExchange();
  pending_.append(head);
  if (has_body) {
    QueueBody(&response);
  }
  StartWrite();
}

void Connection::FinishExchange() {
  Exchange& exchange = *exchange_;
  AccessRecord& record = exchange.record;
  record.request_id = exchange.id.id();
  record.total = context_.clock.Now() - exchange.begun;
  if (exchange.generation != nullptr) {
    record.usage = exchange.generation->usage();
    record.queue_time = exchange.generation->queue_time();
    record.finish_reasons = exchange.generation->finish_reasons();
  }
  context_.metrics.CountRequest(exchange.route.endpoint, record.status);
  WriteAccessLog(record);
  exchange_.reset();
  stream_paused_ = false;
  served_one_ = true;
  keep_alive_timer_.cancel();
  if (phase_ == Phase::kServing) {
    phase_ = Phase::kIdle;
    parser_.Reset();
  }
}

void Connection::AbandonExchange(engine::CancelCause cause) {
  if (!exchange_.has_value()) {
    return;
  }
  Exchange& exchange = *exchange_;
  if (exchange.id.id().empty()) {
    exchange_.reset();  // not even a head
    return;
  }
  constexpr int kClientGone = 499;
  exchange.record.status = kClientGone;
  std::unique_ptr<serving::Generation> unfinished;
  if (exchange.generation != nullptr) {
    exchange.record.usage = exchange.generation->usage();
    exchange.record.finish_reasons = exchange.generation->finish_reasons();
    unfinished = exchange.generation->Release();
  }
  exchange.record.request_id = exchange.id.id();
  exchange.record.total = context_.clock.Now() - exchange.begun;
  context_.metrics.CountRequest(exchange.route.endpoint, kClientGone);
  WriteAccessLog(exchange.record);
  if (unfinished != nullptr) {
    orphans_.Adopt(std::move(unfinished), cause, std::move(exchange.id), std::move(exchange.slot));
  }
  exchange_.reset();
}

// --- generations

serving::Caller Connection::CallerOfExchange() const {
  serving::Caller caller;
  caller.request_id = exchange_->id.id();
  caller.tenant = exchange_->grant.tenant;
  caller.key_name = exchange_->grant.name;
  caller.min_priority = exchange_->grant.min_priority;
  caller.retention = exchange_->grant.retention;
  caller.fairness_id = exchange_->fairness_id;
  caller.received = exchange_->received;
  return caller;
}

void Connection::StartGeneration(serving::Result<serving::PreparedRequest> prepared) {
  Exchange& exchange = *exchange_;
  serving::Caller caller = CallerOfExchange();
  if (!prepared.ok()) {
    Respond(ErrorResponse(prepared.error()));
    return;
  }
  serving::PreparedRequest request = std::move(prepared).value();
  exchange.record.model = request.model;
  if (!request.request_id.empty() && !exchange.header_names_id) {
    exchange.id = context_.ids.Acquire(request.request_id);
    caller.request_id = exchange.id.id();
  }
  auto admitted = context_.keys.Admit(exchange.grant);
  if (const auto* refusal = std::get_if<LimitRefusal>(&admitted)) {
    const serving::ApiError error = LimitError(*refusal);
    context_.backend->RecordRejection(error);
    Respond(ErrorResponse(error));
    return;
  }
  exchange.slot = std::get<ApiKeys::Slot>(std::move(admitted));
  auto started = context_.backend->Start(request, caller);
  if (!started.ok()) {
    Respond(ErrorResponse(started.error()));
    return;
  }
  if (!request.ignored_fields.empty()) {
    exchange.headers.emplace_back("x-spindle-ignored", JoinIgnored(request.ignored_fields));
  }
  parser_.body().clear();
  parser_.body().shrink_to_fit();
  const CompletionIdentity identity{CompletionId(request.endpoint, caller.request_id),
                                    UnixSeconds(),
                                    context_.backend->SystemFingerprint()};
  exchange.generation = std::make_unique<GenerationResponse>(std::move(request),
                                                             std::move(started).value(),
                                                             identity,
                                                             context_.backend->AnswerMemory(),
                                                             context_.clock);
  last_sent_ = context_.clock.Now();
  if (exchange.generation->streaming() && context_.options.sse_keepalive > Duration(0)) {
    ArmKeepAlive(context_.options.sse_keepalive);
  }
  // The engine thread only posts. A weak pointer: a connection that ended needs no news.
  exchange.generation->generation().SetReadyCallback(
      [weak = weak_from_this(), executor = executor_] {
        boost::asio::post(executor, [weak] {
          if (const auto self = weak.lock()) {
            self->PumpGeneration();
          }
        });
      });
}

void Connection::PumpGeneration() {
  if (phase_ != Phase::kServing || !exchange_.has_value() || exchange_->generation == nullptr ||
      stream_paused_) {
    return;
  }
  events_.clear();
  const GenerationResponse::State state =
      exchange_->generation->Pump(kEventsPerPump, kBytesPerPump, &events_);
  if (!events_.empty()) {
    MarkFirstOutput();
    SendStreamBytes(events_);
  }
  if (state == GenerationResponse::State::kDone) {
    EndGeneration();
  } else if (PausesStream()) {
    stream_paused_ = true;
    ArmWriteTimer();
  } else if (state == GenerationResponse::State::kMore) {
    boost::asio::post(executor_, [self = shared_from_this()] { self->PumpGeneration(); });
  }
}

// Whether the unsent bytes are too many for one stream, or for all of them together. It goes on
// when half of what it may have is sent, not just a little: a reader that crawls stays paused until
// it is cut.
bool Connection::PausesStream() {
  const uint64_t limit = context_.options.stream_buffer_bytes;
  if (unsent_bytes() > limit) {
    resume_bytes_ = limit / 2;
    return true;
  }
  resume_bytes_ = serving::kSmallAnswerBytes / 2;
  return !output_lease_.Cover(unsent_bytes());
}

void Connection::MarkFirstOutput() {
  std::optional<Duration>& first = exchange_->record.time_to_first_token;
  if (!first.has_value()) {
    first = context_.clock.Now() - exchange_->received;
  }
}

void Connection::AddCommonHeaders() {
  Exchange& exchange = *exchange_;
  exchange.headers.emplace_back("x-request-id", exchange.id.id());
  exchange.headers.emplace_back("server", "spindle/" + context_.options.build.version);
  if (exchange.close) {
    exchange.headers.emplace_back("connection", "close");
  } else if (parser_.head().http_1_0) {
    exchange.headers.emplace_back("connection", "keep-alive");
  }
}

void Connection::SendStreamHead() {
  Exchange& exchange = *exchange_;
  if (exchange.headers_sent) {
    return;
  }
  exchange.headers_sent = true;
  // HTTP/1.0 knows no chunks: the end of the connection ends the body.
  exchange.close = exchange.close || context_.draining() || parser_.head().http_1_0;
  exchange.record.status = 200;
  Response response;
  response.content_type = "text/event-stream; charset=utf-8";
  response.headers = {{"cache-control", "no-cache"}, {"x-accel-buffering", "no"}};
  AddCommonHeaders();
  const Framing framing = parser_.head().http_1_0 ? Framing::kUntilClose : Framing::kChunked;
  Send(SerializeHead(response, framing, exchange.headers));
}

void Connection::SendStreamBytes(std::string_view events) {
  SendStreamHead();
  last_sent_ = context_.clock.Now();
  if (parser_.head().http_1_0) {
    Send(events);
    return;
  }
  AppendHttpChunk(events, &pending_);
  StartWrite();
}

void Connection::EndGeneration() {
  Exchange& exchange = *exchange_;
  GenerationResponse& generation = *exchange.generation;
  if (!exchange.headers_sent) {
    if (generation.error().has_value()) {
      Respond(ErrorResponse(*generation.error()));
      return;
    }
    Response response;
    response.more_body = generation.TakeBody();
    output_lease_ = generation.TakeLease();
    exchange.record.time_to_first_token = generation.time_to_first_token();
    Respond(std::move(response));
    return;
  }
  if (generation.error().has_value()) {
    exchange.record.error_code = generation.error()->code;
    std::string event;
    ChunkWriter::Error(*generation.error(), &event);
    SendStreamBytes(event);
  }
  const bool chunked = !parser_.head().http_1_0;
  end_after_write_ = exchange.close || context_.draining();
  FinishExchange();
  if (chunked) {
    Send("0\r\n\r\n");
  } else if (unsent_bytes() == 0) {
    OnDrained();
  }
}

void Connection::ArmKeepAlive(Duration wait) {
  keep_alive_timer_.expires_after(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(wait));
  keep_alive_timer_.async_wait([weak = weak_from_this()](Transport::Error error) {
    const auto self = weak.lock();
    if (!error && self != nullptr) {
      self->OnKeepAlive();
    }
  });
}

void Connection::OnKeepAlive() {
  if (!exchange_.has_value() || exchange_->generation == nullptr) {
    return;
  }
  const Duration interval = context_.options.sse_keepalive;
  const Duration quiet = context_.clock.Now() - last_sent_;
  if (quiet < interval) {
    ArmKeepAlive(interval - quiet);
    return;
  }
  if (unsent_bytes() == 0) {
    SendStreamBytes(": keep-alive\n\n");
  }
  last_sent_ = context_.clock.Now();
  ArmKeepAlive(interval);
}

}  // namespace spindle::server
