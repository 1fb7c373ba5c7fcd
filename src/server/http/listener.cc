#include "server/http/listener.h"

#include <chrono>
#include <cstring>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status_macros.h"

namespace spindle::server {
namespace {

namespace asio = boost::asio;

// After running out of descriptors: connections end all the time, so a short wait helps.
constexpr std::chrono::milliseconds kAcceptRetry{100};
constexpr std::chrono::seconds kAcceptWarning{1};
// How many connections a closing port still takes.
constexpr int kMaxLastConnections = 256;
// The kernel doubles it. With the stream buffer this bounds what one slow reader can pin down.
constexpr int kSendBufferBytes = 64 << 10;

bool IsLoopback(const asio::generic::stream_protocol::endpoint& peer) {
  const sockaddr* address = peer.data();
  if (address->sa_family == AF_UNIX) {
    return true;
  }
  constexpr uint32_t kLoopbackNet = 127;
  if (address->sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, address, sizeof(v4));
    return ntohl(v4.sin_addr.s_addr) >> 24U == kLoopbackNet;
  }
  if (address->sa_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, address, sizeof(v6));
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) && v6.sin6_addr.s6_addr[12] == kLoopbackNet);
  }
  return false;
}

// Removes a socket file that nobody listens on any more.
absl::Status RemoveStaleSocket(const std::string& path) {
  struct stat info {};

  if (lstat(path.c_str(), &info) != 0) {
    return absl::OkStatus();
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::UnavailableError(path + " exists and is not a socket");
  }
  asio::io_context io;
  asio::local::stream_protocol::socket probe(io);
  boost::system::error_code error;
  probe.connect(asio::local::stream_protocol::endpoint(path), error);
  if (!error) {
    return absl::UnavailableError("another process listens on " + path);
  }
  unlink(path.c_str());
  return absl::OkStatus();
}

}  // namespace

Listener::Listener(asio::io_context& io, OnSocket on_socket)
    : io_(io),
      on_socket_(std::move(on_socket)),
      strand_(asio::make_strand(io)),
      acceptor_(strand_),
      retry_timer_(strand_) {}

Listener::~Listener() {
  if (!unlink_path_.empty()) {
    unlink(unlink_path_.c_str());
  }
}

absl::StatusOr<std::shared_ptr<Listener>> Listener::Open(asio::io_context& io,
                                                         const HttpOptions& options,
                                                         OnSocket on_socket) {
  std::shared_ptr<Listener> listener(new Listener(io, std::move(on_socket)));
  SPINDLE_RETURN_IF_ERROR(options.uds.empty() ? listener->OpenTcp(options)
                                              : listener->OpenUnix(options.uds));
  return listener;
}

absl::Status Listener::Bind(const Endpoint& endpoint, bool reuse_address, const std::string& name) {
  boost::system::error_code error;
  acceptor_.open(endpoint.protocol(), error);
  if (!error && reuse_address) {
    acceptor_.set_option(asio::socket_base::reuse_address(true), error);
  }
  if (!error) {
    acceptor_.bind(endpoint, error);
  }
  if (!error) {
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
  }
  if (error) {
    return absl::UnavailableError("cannot listen on " + name + ": " + error.message());
  }
  return absl::OkStatus();
}

absl::Status Listener::OpenTcp(const HttpOptions& options) {
  boost::system::error_code error;
  asio::ip::tcp::resolver resolver(io_);
  const auto found = resolver.resolve(
      options.host, std::to_string(options.port), asio::ip::resolver_base::passive, error);
  if (error || found.empty()) {
    return absl::InvalidArgumentError("--host: cannot resolve " + options.host);
  }
  const asio::ip::tcp::endpoint endpoint = found.begin()->endpoint();
  const std::string host = endpoint.address().is_v6() ? '[' + endpoint.address().to_string() + ']'
                                                      : endpoint.address().to_string();
  SPINDLE_RETURN_IF_ERROR(Bind(endpoint, true, host + ':' + std::to_string(options.port)));
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (getsockname(acceptor_.native_handle(), reinterpret_cast<sockaddr*>(&bound), &size) == 0) {
    // The port stands at the same place in both families.
    sockaddr_in v4{};
    std::memcpy(&v4, &bound, sizeof(v4));
    port_ = ntohs(v4.sin_port);
  }
  address_ =
      (options.tls.cert_file.empty() ? "http://" : "https://") + host + ':' + std::to_string(port_);
  return absl::OkStatus();
}

absl::Status Listener::OpenUnix(const std::string& path) {
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return absl::InvalidArgumentError("--uds: the path is longer than " +
                                      std::to_string(sizeof(sockaddr_un::sun_path) - 1) + " bytes");
  }
  SPINDLE_RETURN_IF_ERROR(RemoveStaleSocket(path));
  SPINDLE_RETURN_IF_ERROR(Bind(asio::local::stream_protocol::endpoint(path), false, path));
  unlink_path_ = path;
  address_ = "unix:" + path;
  return absl::OkStatus();
}

void Listener::Start() {
  asio::post(strand_, [self = shared_from_this()] { self->Accept(); });
}

void Listener::SetPaused(bool paused) {
  asio::post(strand_, [self = shared_from_this(), paused] {
    self->paused_ = paused;
    self->Accept();
  });
}

void Listener::Stop(std::function<void()> done) {
  asio::post(strand_, [self = shared_from_this(), done = std::move(done)] {
    self->stopped_ = true;
    self->retry_timer_.cancel();
    if (!self->paused_) {
      self->TakeBacklog();
    }
    boost::system::error_code ignored;  // a socket that cannot be closed is closed
    self->acceptor_.close(ignored);
    done();
  });
}

// Closing the port resets what waits in the backlog.
void Listener::TakeBacklog() {
  boost::system::error_code error;
  acceptor_.non_blocking(true, error);
  for (int i = 0; i < kMaxLastConnections && !error; ++i) {
    const asio::any_io_executor executor = asio::make_strand(io_);
    Transport::Socket socket(executor);
    acceptor_.accept(socket, error);
    if (!error) {
      Hand(std::move(socket), executor);
    }
  }
}

void Listener::Accept() {
  if (accepting_ || paused_ || stopped_) {
    return;
  }
  accepting_ = true;
  const asio::any_io_executor executor = asio::make_strand(io_);
  acceptor_.async_accept(executor,
                         [self = shared_from_this(), executor](boost::system::error_code error,
                                                               Transport::Socket socket) {
                           self->accepting_ = false;
                           self->OnAccept(error, std::move(socket), executor);
                         });
}

void Listener::OnAccept(boost::system::error_code error,
                        Transport::Socket socket,
                        asio::any_io_executor executor) {
  if (error && stopped_) {
    return;
  }
  if (error) {
    ++failed_accepts_;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_warning_ >= kAcceptWarning) {
      log::Warn("http_accept_failed", {{"error", error.message()}, {"count", failed_accepts_}});
      last_warning_ = now;
      failed_accepts_ = 0;
    }
    retry_timer_.expires_after(kAcceptRetry);
    retry_timer_.async_wait([self = shared_from_this()](boost::system::error_code stopped) {
      if (!stopped) {
        self->Accept();
      }
    });
    return;
  }
  Hand(std::move(socket), std::move(executor));
  Accept();
}

void Listener::Hand(Transport::Socket socket, asio::any_io_executor executor) {
  boost::system::error_code error;
  const Endpoint peer = socket.remote_endpoint(error);
  if (error) {
    return;  // gone already
  }
  const bool loopback = IsLoopback(peer);
  boost::system::error_code ignored;  // both options only tune
  if (peer.data()->sa_family != AF_UNIX) {
    socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  }
  socket.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
  on_socket_(std::move(socket), std::move(executor), loopback);
}

}  // namespace spindle::server
