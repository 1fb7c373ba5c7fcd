// One client connection: reads requests, keeps their order, answers, and notices when the peer goes
// away. Private to this module (pulls in Asio).
// Thread-safety: everything on the connection's strand, except Start, Drain and Close, which post.
//
// Phases: kIdle (no request begun) → kHead → kBody → kServing → kIdle again. A refused request with
// an unread body goes through kDiscard instead; kLinger ends a connection: the answer is out, what
// the peer still sends is thrown away for a moment so that it can read the answer.
// Invariants: at most one request at a time is served; bytes of later ones stay in `input_`. A read
// is under way in every phase unless `input_` is full, so the peer's end is seen at once.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/http/access_log.h"
#include "server/http/generation_response.h"
#include "server/http/orphans.h"
#include "server/http/request_parser.h"
#include "server/http/response.h"
#include "server/http/router.h"
#include "server/http/server_context.h"
#include "server/http/transport.h"

namespace spindle::server {

// The request under way.
struct Exchange {
  RequestIds::Lease id;
  bool header_names_id = false;  // else the body may
  Route route;
  ApiKeys::Grant grant;
  std::string fairness_id;  // for whom a trusted key asks
  ApiKeys::Slot slot;
  TimePoint begun;     // head complete, or its first byte where it never was
  TimePoint received;  // last body byte
  AccessRecord record;
  std::vector<std::pair<std::string, std::string>> headers;  // for its answer
  std::unique_ptr<GenerationResponse> generation;
  ByteQuota::Lease body_lease;
  uint64_t serial = 0;  // within the connection; for answers that arrive later
  bool headers_sent = false;
  bool close = false;  // the connection ends after the answer

  explicit Exchange(ByteQuota& bodies) : body_lease(bodies) {}
};

// How long the end of a server waits for requests that are on their way to it.
inline constexpr Duration kDrainGrace = std::chrono::milliseconds(250);

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Executor = boost::asio::any_io_executor;

  // `executor` is a strand. `on_end` is called once, when the connection is closed.
  Connection(ServerContext& context,
             Orphans& orphans,
             Executor executor,
             std::unique_ptr<Transport> transport,
             bool loopback_peer,
             std::function<void()> on_end);

  void Start();
  // Ends the connection after the answer of the request under way. Without one it waits a moment
  // for a request that the peer may have sent already; `last_call` false spares a connection that
  // has not sent its first one, which then still gets an answer.
  void Drain(bool last_call);
  // Ends the connection now; a running generation is cancelled.
  void Close();

 private:
  enum class Phase : uint8_t { kIdle, kHead, kBody, kDiscard, kServing, kLinger, kClosed };

  // --- reading (connection.cc)
  void ArmRead();
  void OnRead(Transport::Error error, size_t size);
  void ProcessInput();
  [[nodiscard]] bool CanParse() const;
  void OnParseEvent(RequestParser::Event event);
  void OnPeerClosed();
  void ArmReadTimer(Duration timeout);
  void OnReadTimeout();
  void UpdateReadTimer();
  [[nodiscard]] Duration IdleTimeout() const;

  // --- writing (connection.cc)
  void Send(std::string_view bytes);
  void QueueBody(Response* response);
  void StartWrite();
  void OnWrote(Transport::Error error, size_t size);
  void OnDrained();
  void ArmWriteTimer();
  void OnWriteTimeout();

  [[nodiscard]] size_t unsent_bytes() const {
    return pending_.size() + in_flight_.size() - in_flight_offset_ + queued_bytes_;
  }

  void BeginLinger();
  void CloseNow();

  // --- requests (exchange.cc)
  void BeginExchange();
  void OnHead();
  void OnBodyBytes();
  void OnBody();
  void ServeLargeBody();
  // Whether the exchange that asked for a piece of work still waits for it.
  [[nodiscard]] bool StillServing(uint64_t serial) const;
  void OnParseError();
  void Refuse(Response response);
  void Respond(Response response);
  void FinishExchange();
  void AbandonExchange(engine::CancelCause cause);

  // --- generations (exchange.cc)
  [[nodiscard]] serving::Caller CallerOfExchange() const;
  void StartGeneration(serving::Result<serving::PreparedRequest> prepared);
  void PumpGeneration();
  void SendStreamBytes(std::string_view events);
  void SendStreamHead();
  [[nodiscard]] bool PausesStream();
  void MarkFirstOutput();
  void AddCommonHeaders();
  void EndGeneration();
  void ArmKeepAlive(Duration wait);
  void OnKeepAlive();

  ServerContext& context_;
  Orphans& orphans_;
  Executor executor_;
  std::unique_ptr<Transport> transport_;
  const bool loopback_peer_;
  std::function<void()> on_end_;

  Phase phase_ = Phase::kIdle;
  RequestParser parser_;
  std::optional<Exchange> exchange_;
  uint64_t num_exchanges_ = 0;
  bool served_one_ = false;       // a request was answered on this connection
  bool last_call_ = false;        // the server is about to stop
  bool peer_ended_ = false;       // end of input was seen
  bool end_after_write_ = false;  // linger once everything is sent
  bool parsing_ = false;          // guards ProcessInput against recursion

  std::array<char, kConnectionReadBytes> read_buffer_;
  bool reading_ = false;
  std::string input_;  // received, not yet parsed
  uint64_t lingered_bytes_ = 0;

  std::string in_flight_;  // [in_flight_offset_, size) is being sent
  size_t in_flight_offset_ = 0;
  std::deque<std::string> queued_;  // to be sent after in_flight_: long bodies and what led to them
  uint64_t queued_bytes_ = 0;
  std::string pending_;            // … and after that
  ByteQuota::Lease output_lease_;  // of what is unsent, if that is much
  bool writing_ = false;
  bool stream_paused_ = false;  // too much unsent: no events are taken …
  uint64_t resume_bytes_ = 0;   // … until only so much is
  std::string events_;          // reused by PumpGeneration

  boost::asio::steady_timer read_timer_;
  boost::asio::steady_timer write_timer_;
  boost::asio::steady_timer keep_alive_timer_;
  TimePoint head_begun_;          // first byte of a head that came in pieces
  uint64_t body_mark_bytes_ = 0;  // body bytes when the body timer was armed
  TimePoint last_sent_;
};

}  // namespace spindle::server
