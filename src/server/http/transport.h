// A byte stream to one peer: TCP or a Unix socket, plain or with TLS. Private to this module (pulls
// in Asio). Thread-safety: all calls and callbacks on the strand given at creation.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/system/error_code.hpp>

namespace spindle::server {

class Transport {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  using Error = boost::system::error_code;
  using Done = std::function<void(Error)>;
  using Transferred = std::function<void(Error, size_t)>;

  virtual ~Transport() = default;

  // Before anything else; at once for plain sockets.
  virtual void AsyncHandshake(Done done) = 0;
  // One read and one write may be under way at a time; the bytes must stay until the callback.
  // Partial transfers are normal. Callbacks always come, with an error after Close.
  virtual void AsyncRead(char* data, size_t size, Transferred done) = 0;
  virtual void AsyncWrite(const char* data, size_t size, Transferred done) = 0;
  // No more will be written; the peer sees the end after what was written.
  virtual void AsyncShutdownSend(Done done) = 0;
  // Whether bytes of the peer have arrived that no read has taken.
  [[nodiscard]] virtual bool HasUnread() const = 0;
  // Ends everything at once. Idempotent.
  virtual void Close() = 0;
};

// `socket` runs its handlers on a strand.
[[nodiscard]] std::unique_ptr<Transport> MakePlainTransport(Transport::Socket socket);

// `tls` is shared with the server, which may replace its own by a reload.
[[nodiscard]] std::unique_ptr<Transport> MakeTlsTransport(
    Transport::Socket socket, std::shared_ptr<boost::asio::ssl::context> tls);

}  // namespace spindle::server
