#include "server/http/transport.h"

#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>

namespace spindle::server {
namespace {

namespace asio = boost::asio;

bool HasBytes(const Transport::Socket& socket) {
  Transport::Error error;
  return socket.available(error) > 0 && !error;
}

class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(Socket socket) : socket_(std::move(socket)) {}

  void AsyncHandshake(Done done) override {
    asio::post(socket_.get_executor(), [done = std::move(done)] { done(Error()); });
  }

  void AsyncRead(char* data, size_t size, Transferred done) override {
    socket_.async_read_some(asio::buffer(data, size), std::move(done));
  }

  void AsyncWrite(const char* data, size_t size, Transferred done) override {
    socket_.async_write_some(asio::buffer(data, size), std::move(done));
  }

  void AsyncShutdownSend(Done done) override {
    Error error;
    socket_.shutdown(Socket::shutdown_send, error);
    asio::post(socket_.get_executor(), [error, done = std::move(done)] { done(error); });
  }

  [[nodiscard]] bool HasUnread() const override { return HasBytes(socket_); }

  void Close() override {
    Error ignored;  // a socket that cannot be closed is closed
    socket_.close(ignored);
  }

 private:
  Socket socket_;
};

class TlsTransport final : public Transport {
 public:
  TlsTransport(Socket socket, std::shared_ptr<asio::ssl::context> tls)
      : tls_(std::move(tls)), stream_(std::move(socket), *tls_) {}

  void AsyncHandshake(Done done) override {
    stream_.async_handshake(asio::ssl::stream_base::server, std::move(done));
  }

  void AsyncRead(char* data, size_t size, Transferred done) override {
    stream_.async_read_some(asio::buffer(data, size), std::move(done));
  }

  void AsyncWrite(const char* data, size_t size, Transferred done) override {
    stream_.async_write_some(asio::buffer(data, size), std::move(done));
  }

  void AsyncShutdownSend(Done done) override { stream_.async_shutdown(std::move(done)); }

  [[nodiscard]] bool HasUnread() const override { return HasBytes(stream_.next_layer()); }

  void Close() override {
    Error ignored;
    stream_.lowest_layer().close(ignored);
  }

 private:
  const std::shared_ptr<asio::ssl::context> tls_;  // kept as long as the stream
  asio::ssl::stream<Socket> stream_;
};

}  // namespace

std::unique_ptr<Transport> MakePlainTransport(Transport::Socket socket) {
  return std::make_unique<PlainTransport>(std::move(socket));
}

std::unique_ptr<Transport> MakeTlsTransport(Transport::Socket socket,
                                            std::shared_ptr<boost::asio::ssl::context> tls) {
  return std::make_unique<TlsTransport>(std::move(socket), std::move(tls));
}

}  // namespace spindle::server
