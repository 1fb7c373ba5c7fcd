// Bytes in and out of a connection, and its timers.
#include "server/http/connection.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include <boost/asio/post.hpp>

#include "serving/answer_memory.h"

namespace spindle::server {
namespace {

// How much and how long an ended connection is still read, so that the peer gets to see the answer
// instead of a reset.
constexpr uint64_t kMaxLingerBytes = uint64_t{1} << 20;
constexpr Duration kLingerTime = std::chrono::seconds(2);
// A body that grows by less than this in a body timeout is as good as stalled.
constexpr uint64_t kMinBodyProgressBytes = 1024;

ParserLimits LimitsOf(const HttpOptions& options) {
  return ParserLimits{
      options.max_request_line_bytes, options.max_header_bytes, options.max_body_bytes};
}

int64_t ToMilliseconds(Duration time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
}

}  // namespace

Connection::Connection(ServerContext& context,
                       Orphans& orphans,
                       Executor executor,
                       std::unique_ptr<Transport> transport,
                       bool loopback_peer,
                       std::function<void()> on_end)
    : context_(context),
      orphans_(orphans),
      executor_(std::move(executor)),
      transport_(std::move(transport)),
      loopback_peer_(loopback_peer),
      on_end_(std::move(on_end)),
      parser_(LimitsOf(context.options)),
      output_lease_(context.backend->AnswerMemory()),
      read_timer_(executor_),
      write_timer_(executor_),
      keep_alive_timer_(executor_) {}

void Connection::Start() {
  boost::asio::post(executor_, [self = shared_from_this()] {
    if (self->phase_ == Phase::kClosed) {
      return;
    }
    self->ArmReadTimer(self->context_.options.header_timeout);
    self->transport_->AsyncHandshake([self](Transport::Error error) {
      if (error) {
        self->CloseNow();
        return;
      }
      self->ArmRead();
    });
  });
}

void Connection::Drain(bool last_call) {
  boost::asio::post(executor_, [self = shared_from_this(), last_call] {
    self->last_call_ = self->last_call_ || last_call;
    if (self->phase_ == Phase::kIdle && (self->served_one_ || self->last_call_)) {
      self->ArmReadTimer(self->IdleTimeout());
    }
  });
}

void Connection::Close() {
  boost::asio::post(executor_, [self = shared_from_this()] {
    if (self->phase_ != Phase::kClosed) {
      self->AbandonExchange(engine::CancelCause::kShutdown);
      self->CloseNow();
    }
  });
}

void Connection::CloseNow() {
  if (phase_ == Phase::kClosed) {
    return;
  }
  phase_ = Phase::kClosed;
  read_timer_.cancel();
  write_timer_.cancel();
  keep_alive_timer_.cancel();
  transport_->Close();
  on_end_();
}

// --- reading

void Connection::ArmRead() {
  // A body may fill the parser, waiting requests may not.
  const bool full = input_.size() >= kBufferedInputBytes;
  if (reading_ || full || peer_ended_ || phase_ == Phase::kClosed) {
    return;
  }
  reading_ = true;
  transport_->AsyncRead(read_buffer_.data(),
                        read_buffer_.size(),
                        [self = shared_from_this()](Transport::Error error, size_t size) {
                          self->reading_ = false;
                          self->OnRead(error, size);
                        });
}

void Connection::OnRead(Transport::Error error, size_t size) {
  if (phase_ == Phase::kClosed) {
    return;
  }
  if (error || size == 0) {
    peer_ended_ = true;
    OnPeerClosed();
    return;
  }
  if (phase_ == Phase::kLinger) {
    lingered_bytes_ += size;
    if (lingered_bytes_ > kMaxLingerBytes) {
      CloseNow();
      return;
    }
    ArmRead();
    return;
  }
  input_.append(read_buffer_.data(), size);
  ProcessInput();
  ArmRead();
}

void Connection::OnPeerClosed() {
  // The peer will not see an answer that does not exist yet (a closed write side counts as closed);
  // one that is written already still goes out.
  AbandonExchange(engine::CancelCause::kClientGone);
  if (phase_ == Phase::kLinger || unsent_bytes() == 0) {
    CloseNow();
    return;
  }
  end_after_write_ = true;
}

bool Connection::CanParse() const {
  const bool reading_phase = phase_ == Phase::kIdle || phase_ == Phase::kHead ||
                             phase_ == Phase::kBody || phase_ == Phase::kDiscard;
  // A client that sends requests without reading answers must not fill our memory with them.
  return reading_phase && !end_after_write_ && unsent_bytes() <= serving::kSmallAnswerBytes;
}

void Connection::ProcessInput() {
  if (parsing_) {
    return;
  }
  parsing_ = true;
  size_t parsed = 0;
  while (CanParse()) {
    size_t used = 0;
    const RequestParser::Event event = parser_.Feed(std::string_view(input_).substr(parsed), &used);
    parsed += used;
    if (event == RequestParser::Event::kNeedMore) {
      break;
    }
    OnParseEvent(event);
  }
  OnBodyBytes();
  parsing_ = false;
  input_.erase(0, parsed);
  UpdateReadTimer();
}

void Connection::OnParseEvent(RequestParser::Event event) {
  switch (event) {
    case RequestParser::Event::kNeedMore:
      break;
    case RequestParser::Event::kHead:
      OnHead();
      break;
    case RequestParser::Event::kComplete:
      if (phase_ == Phase::kDiscard) {
        phase_ = Phase::kIdle;
        parser_.Reset();
      } else {
        OnBody();
      }
      break;
    case RequestParser::Event::kError:
      OnParseError();
      break;
  }
}

// The right timer for what is being waited for. Called after each batch of input.
void Connection::UpdateReadTimer() {
  const HttpOptions& options = context_.options;
  if (end_after_write_) {
    return;  // the write timer and then the linger timer rule
  }
  switch (phase_) {
    case Phase::kIdle:
      if (parser_.started()) {
        phase_ = Phase::kHead;
        head_begun_ = context_.clock.Now();
        ArmReadTimer(options.header_timeout);
      } else {
        ArmReadTimer(IdleTimeout());
      }
      break;
    case Phase::kHead:
      break;  // counts from the first byte
    case Phase::kBody:
    case Phase::kDiscard:
      if (body_mark_bytes_ == 0 ||
          parser_.body_bytes() + 1 >= body_mark_bytes_ + kMinBodyProgressBytes) {
        body_mark_bytes_ = parser_.body_bytes() + 1;
        ArmReadTimer(options.body_timeout);
      }
      break;
    case Phase::kServing:
      read_timer_.cancel();
      break;
    case Phase::kLinger:
    case Phase::kClosed:
      break;
  }
}

Duration Connection::IdleTimeout() const {
  const HttpOptions& options = context_.options;
  const Duration usual = served_one_ ? options.keep_alive_timeout : options.header_timeout;
  const bool ending = last_call_ || (served_one_ && context_.draining());
  return ending ? std::min(kDrainGrace, usual) : usual;
}

void Connection::ArmReadTimer(Duration timeout) {
  read_timer_.expires_after(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(timeout));
  read_timer_.async_wait([self = shared_from_this()](Transport::Error error) {
    if (!error) {
      self->OnReadTimeout();
    }
  });
}

void Connection::OnReadTimeout() {
  // A wait may end before it can be cancelled or moved.
  const bool late = read_timer_.expiry() <= std::chrono::steady_clock::now();
  const bool answered = end_after_write_ && phase_ != Phase::kLinger;
  if (phase_ == Phase::kServing || phase_ == Phase::kClosed || answered || !late) {
    return;
  }
  if (phase_ == Phase::kHead || phase_ == Phase::kBody) {
    if (!exchange_.has_value()) {
      BeginExchange();
      exchange_->begun = head_begun_;
    }
    const bool in_head = phase_ == Phase::kHead;
    serving::ApiError error = serving::MakeError(
        408,
        "request_timeout",
        std::string("The request did not arrive in time: ") +
            (in_head ? "its head" : "the next part of its body") + " took longer than " +
            std::to_string(ToMilliseconds(in_head ? context_.options.header_timeout
                                                  : context_.options.body_timeout)) +
            " ms.");
    error.extras = {{"total_ms", ToMilliseconds(context_.clock.Now() - exchange_->begun)}};
    Response response = ErrorResponse(error);
    response.close = true;
    Respond(std::move(response));
    return;
  }
  if (phase_ == Phase::kIdle && transport_->HasUnread()) {
    ArmReadTimer(IdleTimeout());  // closing now would be a reset
    return;
  }
  if (phase_ == Phase::kIdle && unsent_bytes() > 0) {
    end_after_write_ = true;  // the write timer rules
    return;
  }
  CloseNow();
}

// --- writing

void Connection::Send(std::string_view bytes) {
  pending_.append(bytes);
  StartWrite();
}

// A long body is moved, not copied.
void Connection::QueueBody(Response* response) {
  std::vector<std::string> parts = response->more_body.Take();
  parts.insert(parts.begin(), std::move(response->body));
  for (std::string& part : parts) {
    if (part.size() <= serving::kSmallAnswerBytes) {
      pending_.append(part);
      continue;
    }
    for (std::string* next : {&pending_, &part}) {
      queued_bytes_ += next->size();
      queued_.push_back(std::exchange(*next, {}));
    }
  }
}

void Connection::StartWrite() {
  if (writing_ || phase_ == Phase::kClosed) {
    return;
  }
  if (in_flight_offset_ == in_flight_.size()) {
    in_flight_.clear();
    in_flight_offset_ = 0;
    while (in_flight_.empty() && !queued_.empty()) {
      in_flight_ = std::move(queued_.front());
      queued_.pop_front();
      queued_bytes_ -= in_flight_.size();
    }
    if (in_flight_.empty()) {
      std::swap(in_flight_, pending_);
    }
  }
  if (in_flight_.empty()) {
    return;
  }
  writing_ = true;
  if (!stream_paused_) {
    ArmWriteTimer();
  }
  transport_->AsyncWrite(in_flight_.data() + in_flight_offset_,
                         in_flight_.size() - in_flight_offset_,
                         [self = shared_from_this()](Transport::Error error, size_t size) {
                           self->writing_ = false;
                           self->OnWrote(error, size);
                         });
}

void Connection::OnWrote(Transport::Error error, size_t size) {
  if (phase_ == Phase::kClosed) {
    return;
  }
  if (error) {
    peer_ended_ = true;
    AbandonExchange(engine::CancelCause::kClientGone);
    CloseNow();
    return;
  }
  in_flight_offset_ += size;
  StartWrite();
  if (stream_paused_ && unsent_bytes() <= resume_bytes_) {
    stream_paused_ = false;
    ArmWriteTimer();
    PumpGeneration();
  }
  if (unsent_bytes() == 0) {
    OnDrained();
  }
}

void Connection::OnDrained() {
  write_timer_.cancel();
  output_lease_.Release();
  in_flight_.clear();
  in_flight_offset_ = 0;
  for (std::string* buffer : {&in_flight_, &pending_, &events_}) {
    if (buffer->capacity() > serving::kSmallAnswerBytes) {
      *buffer = std::string();  // the next answers may be short
    }
  }
  if (end_after_write_) {
    BeginLinger();
    return;
  }
  ProcessInput();
  ArmRead();
}

void Connection::BeginLinger() {
  if (peer_ended_) {
    CloseNow();
    return;
  }
  phase_ = Phase::kLinger;
  input_.clear();
  transport_->AsyncShutdownSend([self = shared_from_this()](Transport::Error error) {
    if (error) {
      self->CloseNow();
    }
  });
  ArmReadTimer(kLingerTime);
  ArmRead();
}

void Connection::ArmWriteTimer() {
  const Duration timeout = context_.options.stream_stall_timeout;
  write_timer_.expires_after(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(timeout));
  write_timer_.async_wait([self = shared_from_this()](Transport::Error error) {
    if (!error) {
      self->OnWriteTimeout();
    }
  });
}

void Connection::OnWriteTimeout() {
  const bool late = write_timer_.expiry() <= std::chrono::steady_clock::now();
  if (phase_ == Phase::kClosed || unsent_bytes() == 0 || !late) {
    return;
  }
  AbandonExchange(engine::CancelCause::kSlowReader);
  CloseNow();
}

}  // namespace spindle::server
