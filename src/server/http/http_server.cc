#include "server/http/http_server.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <pthread.h>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "server/http/connection.h"
#include "server/http/listener.h"
#include "server/http/orphans.h"
#include "server/http/server_context.h"
#include "server/http/tls.h"

namespace spindle::server {
namespace {

namespace asio = boost::asio;

absl::Status CheckRange(std::string_view name, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(std::string(name) + " must be from " + std::to_string(low) +
                                    " to " + std::to_string(high) + ", not " +
                                    std::to_string(value));
}

absl::Status CheckPositive(std::string_view name, Duration value) {
  if (value > Duration(0)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(std::string(name) + " must be greater than zero");
}

absl::Status CheckOptions(const HttpOptions& options) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  SPINDLE_RETURN_IF_ERROR(CheckRange("http_threads", options.num_threads, 1, 64));
  SPINDLE_RETURN_IF_ERROR(CheckRange("max_body_size", options.max_body_bytes, 1024, 4 * kGiB));
  SPINDLE_RETURN_IF_ERROR(CheckRange("max_header_bytes", options.max_header_bytes, 256, kGiB));
  SPINDLE_RETURN_IF_ERROR(
      CheckRange("max_request_line_bytes", options.max_request_line_bytes, 64, kGiB));
  SPINDLE_RETURN_IF_ERROR(CheckRange("max_connections", options.max_connections, 1, 1'000'000));
  SPINDLE_RETURN_IF_ERROR(CheckRange("stream_buffer", options.stream_buffer_bytes, 4096, kGiB));
  SPINDLE_RETURN_IF_ERROR(CheckPositive("stream_stall_timeout", options.stream_stall_timeout));
  SPINDLE_RETURN_IF_ERROR(CheckPositive("header_timeout", options.header_timeout));
  SPINDLE_RETURN_IF_ERROR(CheckPositive("body_timeout", options.body_timeout));
  SPINDLE_RETURN_IF_ERROR(CheckPositive("keep_alive_timeout", options.keep_alive_timeout));
  SPINDLE_RETURN_IF_ERROR(CheckPositive("watchdog", options.watchdog));
  const std::string& root = options.root_path;
  if (!root.empty() && (root.front() != '/' || root.back() == '/')) {
    return absl::InvalidArgumentError("--root-path must begin with / and not end with it");
  }
  if (options.sse_keepalive < Duration(0)) {
    return absl::InvalidArgumentError("sse_keepalive must not be negative");
  }
  return absl::OkStatus();
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const HttpOptions& options,
       std::unique_ptr<Backend> backend,
       const HttpDependencies& dependencies,
       HttpHooks hooks)
      : context_(options, std::move(backend), dependencies, std::move(hooks)),
        orphans_(
            [this](std::function<void()> work) { asio::post(orphan_strand_, std::move(work)); }),
        io_(static_cast<int>(options.num_threads)),
        work_(asio::make_work_guard(io_)),
        orphan_strand_(asio::make_strand(io_)) {}

  ~Impl() { Stop(context_.clock.Now()); }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  absl::Status ReloadTls() {
    if (context_.options.tls.cert_file.empty()) {
      return absl::OkStatus();
    }
    SPINDLE_ASSIGN_OR_RETURN(std::shared_ptr<asio::ssl::context> tls,
                             LoadTls(context_.options.tls));
    MutexLock lock(mutex_);
    tls_ = std::move(tls);
    return absl::OkStatus();
  }

  absl::Status Listen() {
    SPINDLE_ASSIGN_OR_RETURN(
        listener_,
        Listener::Open(io_,
                       context_.options,
                       [this](Transport::Socket socket, Connection::Executor executor, bool local) {
                         AddConnection(std::move(socket), std::move(executor), local);
                       }));
    listener_->Start();
    for (uint32_t i = 0; i < context_.options.num_threads; ++i) {
      threads_.emplace_back([this] { io_.run(); });
      pthread_setname_np(threads_.back().native_handle(), ("http-" + std::to_string(i)).c_str());
    }
    return absl::OkStatus();
  }

  void Drain(TimePoint deadline) {
    // Zero means "not draining".
    const auto ticks = std::max<Duration::rep>(
        1, std::chrono::duration_cast<Duration>(deadline.time_since_epoch()).count());
    context_.drain_deadline_ticks.store(ticks);
    for (const auto& connection : Connections()) {
      connection->Drain(/*last_call=*/false);
    }
  }

  void Stop(TimePoint deadline) {
    if (threads_.empty()) {
      return;
    }
    if (!context_.draining()) {
      Drain(deadline);
    }
    {
      MutexLock lock(mutex_);
      last_call_ = true;
    }
    for (const auto& connection : Connections()) {
      connection->Drain(/*last_call=*/true);
    }
    // A client may not know yet that the server ends: it finds an open port for a moment.
    WaitForConnections(std::min(deadline, context_.clock.Now() + kDrainGrace), deadline);
    listener_->Stop([this] {
      MutexLock lock(mutex_);
      port_closed_ = true;
      changed_.NotifyAll();
    });
    {
      MutexLock lock(mutex_);
      while (!port_closed_) {
        changed_.Wait(mutex_);
      }
    }
    WaitForConnections(TimePoint(), deadline);
    {
      MutexLock lock(mutex_);
      closing_ = true;
    }
    for (const auto& connection : Connections()) {
      connection->Close();
    }
    {
      MutexLock lock(mutex_);
      while (!connections_.empty()) {
        changed_.Wait(mutex_);
      }
    }
    context_.large_bodies.Stop();
    work_.reset();
    io_.stop();
    for (std::thread& thread : threads_) {
      thread.join();
    }
    threads_.clear();
    orphans_.Clear();
  }

  [[nodiscard]] uint16_t port() const {
    return listener_ == nullptr ? uint16_t{0} : listener_->port();
  }

  [[nodiscard]] std::string address() const {
    return listener_ == nullptr ? std::string() : listener_->address();
  }

  [[nodiscard]] const ServerContext& context() const { return context_; }

 private:
  void AddConnection(Transport::Socket socket, Connection::Executor executor, bool loopback) {
    std::shared_ptr<Connection> connection;
    bool last_call = false;
    {
      MutexLock lock(mutex_);
      if (closing_) {
        return;
      }
      std::unique_ptr<Transport> transport = tls_ == nullptr
                                                 ? MakePlainTransport(std::move(socket))
                                                 : MakeTlsTransport(std::move(socket), tls_);
      const uint64_t id = next_id_++;
      connection = std::make_shared<Connection>(
          context_, orphans_, std::move(executor), std::move(transport), loopback, [this, id] {
            RemoveConnection(id);
          });
      connections_.emplace(id, connection);
      if (connections_.size() >= context_.options.max_connections) {
        listener_->SetPaused(true);
      }
      last_call = last_call_;
    }
    connection->Start();
    if (last_call) {
      connection->Drain(last_call);
    }
  }

  // Until there are none and `earliest` has passed, or `deadline` has.
  void WaitForConnections(TimePoint earliest, TimePoint deadline) {
    MutexLock lock(mutex_);
    for (;;) {
      const TimePoint now = context_.clock.Now();
      if (now >= deadline || (connections_.empty() && now >= earliest)) {
        return;
      }
      changed_.WaitUntil(mutex_, connections_.empty() ? earliest : deadline);
    }
  }

  void RemoveConnection(uint64_t id) {
    MutexLock lock(mutex_);
    const bool was_full = connections_.size() >= context_.options.max_connections;
    connections_.erase(id);
    if (was_full) {
      listener_->SetPaused(false);
    }
    if (connections_.empty()) {
      changed_.NotifyAll();
    }
  }

  std::vector<std::shared_ptr<Connection>> Connections() {
    std::vector<std::shared_ptr<Connection>> list;
    MutexLock lock(mutex_);
    for (const auto& [id, weak] : connections_) {
      if (auto connection = weak.lock()) {
        list.push_back(std::move(connection));
      }
    }
    return list;
  }

  // Destroyed last: handlers that are still in io_ refer to them.
  ServerContext context_;
  Orphans orphans_;
  Mutex mutex_;
  CondVar changed_;  // no connection is left, or the port is closed
  std::shared_ptr<asio::ssl::context> tls_ SPINDLE_GUARDED_BY(mutex_);  // shared with connections
  // Connections own themselves through their handlers.
  std::unordered_map<uint64_t, std::weak_ptr<Connection>> connections_ SPINDLE_GUARDED_BY(mutex_);
  uint64_t next_id_ SPINDLE_GUARDED_BY(mutex_) = 0;
  bool last_call_ SPINDLE_GUARDED_BY(mutex_) = false;  // connections end soon
  bool closing_ SPINDLE_GUARDED_BY(mutex_) = false;    // and no new ones begin
  bool port_closed_ SPINDLE_GUARDED_BY(mutex_) = false;

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::any_io_executor orphan_strand_;
  std::shared_ptr<Listener> listener_;  // shared with its handlers
  std::vector<std::thread> threads_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::CreateWithBackend(
    const HttpOptions& options,
    std::unique_ptr<Backend> backend,
    const HttpDependencies& dependencies,
    HttpHooks hooks) {
  SPINDLE_RETURN_IF_ERROR(CheckOptions(options));
  auto impl = std::make_unique<Impl>(options, std::move(backend), dependencies, std::move(hooks));
  SPINDLE_RETURN_IF_ERROR(impl->ReloadTls());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

absl::Status HttpServer::Listen() {
  return impl_->Listen();
}

uint16_t HttpServer::port() const {
  return impl_->port();
}

std::string HttpServer::address() const {
  return impl_->address();
}

void HttpServer::Drain(TimePoint deadline) {
  impl_->Drain(deadline);
}

void HttpServer::Stop(TimePoint deadline) {
  impl_->Stop(deadline);
}

absl::Status HttpServer::ReloadTls() {
  return impl_->ReloadTls();
}

void HttpServer::SetModelLoadTime(Duration time) {
  impl_->context().metrics.SetModelLoadTime(time);
}

}  // namespace spindle::server
