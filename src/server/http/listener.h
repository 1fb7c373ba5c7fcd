// The listening socket: TCP or Unix. Private to this module (pulls in Asio).
// Thread-safety: thread-safe after Open; callbacks run on threads of the io_context, one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "absl/status/statusor.h"
#include "server/http/http_options.h"
#include "server/http/transport.h"

namespace spindle::server {

class Listener : public std::enable_shared_from_this<Listener> {
 public:
  // A socket whose handlers run on `executor`, a strand of its own.
  using OnSocket = std::function<void(
      Transport::Socket socket, boost::asio::any_io_executor executor, bool loopback_peer)>;

  // Binds and listens; accepts nothing before Start. ERRORS: kUnavailable, kInvalidArgument.
  static absl::StatusOr<std::shared_ptr<Listener>> Open(boost::asio::io_context& io,
                                                        const HttpOptions& options,
                                                        OnSocket on_socket);
  ~Listener();

  void Start();
  // While paused, new connections wait in the backlog.
  void SetPaused(bool paused);
  // Takes the connections that wait in the backlog, then closes the port, then calls `done`.
  void Stop(std::function<void()> done);

  [[nodiscard]] uint16_t port() const { return port_; }

  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  using Acceptor = boost::asio::basic_socket_acceptor<boost::asio::generic::stream_protocol>;
  using Endpoint = boost::asio::generic::stream_protocol::endpoint;

  Listener(boost::asio::io_context& io, OnSocket on_socket);

  absl::Status OpenTcp(const HttpOptions& options);
  absl::Status OpenUnix(const std::string& path);
  absl::Status Bind(const Endpoint& endpoint, bool reuse_address, const std::string& name);
  void Accept();
  void OnAccept(boost::system::error_code error,
                Transport::Socket socket,
                boost::asio::any_io_executor executor);
  void TakeBacklog();
  void Hand(Transport::Socket socket, boost::asio::any_io_executor executor);

  boost::asio::io_context& io_;
  const OnSocket on_socket_;
  boost::asio::any_io_executor strand_;
  Acceptor acceptor_;
  boost::asio::steady_timer retry_timer_;
  uint16_t port_ = 0;
  std::string address_;
  std::string unlink_path_;      // of the Unix socket, removed at the end
  uint64_t failed_accepts_ = 0;  // since the last warning about them
  std::chrono::steady_clock::time_point last_warning_;
  bool accepting_ = false;
  bool paused_ = false;
  bool stopped_ = false;
};

}  // namespace spindle::server
