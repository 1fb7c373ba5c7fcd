#include "unit/server/http_test_server.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/status_macros.h"

namespace spindle::server {
namespace {

void SetReadTimeout(int fd) {
  const timeval timeout{10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
}

}  // namespace

std::string RawResponse::Header(std::string_view lower_name) const {
  const std::string key = "\r\n" + std::string(lower_name) + ": ";
  const size_t at = head.find(key);
  if (at == std::string::npos) {
    return {};
  }
  const size_t begin = at + key.size();
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

RawClient::RawClient(uint16_t port, int receive_buffer_bytes) {
  fd_ = socket(AF_INET, SOCK_STREAM, 0);
  SetReadTimeout(fd_);
  if (receive_buffer_bytes > 0) {
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
  }
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  SPINDLE_CHECK(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
}

RawClient::RawClient(const std::string& unix_path) {
  fd_ = socket(AF_UNIX, SOCK_STREAM, 0);
  SetReadTimeout(fd_);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, unix_path.c_str(), unix_path.size());
  SPINDLE_CHECK(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
}

RawClient::~RawClient() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

bool RawClient::TrySend(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      return false;
    }
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

void RawClient::Send(std::string_view bytes) {
  EXPECT_TRUE(TrySend(bytes)) << "the server closed the connection";
}

bool RawClient::Fill() {
  char chunk[16384];
  const ssize_t size = recv(fd_, chunk, sizeof(chunk), 0);
  if (size <= 0) {
    EXPECT_FALSE(size < 0 && errno == EAGAIN) << "the server neither answered nor closed in time";
    return false;
  }
  buffer_.append(chunk, static_cast<size_t>(size));
  return true;
}

std::string RawClient::ReadUntil(std::string_view mark) {
  while (buffer_.find(mark) == std::string::npos) {
    if (!Fill()) {
      return std::exchange(buffer_, {});
    }
  }
  const size_t end = buffer_.find(mark) + mark.size();
  std::string bytes = buffer_.substr(0, end);
  buffer_.erase(0, end);
  return bytes;
}

std::string RawClient::ReadAll() {
  while (Fill()) {
  }
  return std::exchange(buffer_, {});
}

RawResponse RawClient::Read(bool head_request) {
  RawResponse response;
  response.head = ReadUntil("\r\n\r\n");
  if (response.head.size() < 12 || response.head.rfind("HTTP/1.1 ", 0) != 0) {
    return response;
  }
  response.status = std::stoi(response.head.substr(9, 3));
  if (head_request || response.status == 204 || response.status == 100) {
    response.complete = true;
    return response;
  }
  if (response.Header("transfer-encoding") == "chunked") {
    while (true) {
      const std::string line = ReadUntil("\r\n");
      if (line.size() < 3) {
        return response;
      }
      const size_t size = std::stoul(line, nullptr, 16);
      while (buffer_.size() < size + 2) {
        if (!Fill()) {
          return response;
        }
      }
      response.body += buffer_.substr(0, size);
      response.complete = size == 0 && buffer_.substr(0, 2) == "\r\n";
      buffer_.erase(0, size + 2);
      if (size == 0) {
        return response;
      }
    }
  }
  const std::string length = response.Header("content-length");
  if (length.empty()) {
    response.body = ReadAll();
    return response;
  }
  const size_t size = std::stoul(length);
  while (buffer_.size() < size && Fill()) {
  }
  response.complete = buffer_.size() >= size;
  response.body = buffer_.substr(0, size);
  buffer_.erase(0, std::min(size, buffer_.size()));
  return response;
}

void RawClient::ShutdownWrite() {
  shutdown(fd_, SHUT_WR);
}

void RawClient::Reset() {
  const linger option{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &option, sizeof(option));
  close(std::exchange(fd_, -1));
}

TestServer::TestServer(TestServerConfig config) {
  config.options.port = 0;
  config.options.build = {"0.1.0", "abc", "test", "cpu", "portable"};
  auto keys = ApiKeys::Create(config.keys, SteadyClock());
  SPINDLE_CHECK(keys.ok());
  keys_ = *std::move(keys);
  auto backend = std::make_unique<ScriptedBackend>(config.answer_memory_bytes);
  backend_ = backend.get();
  auto server = HttpServer::CreateWithBackend(
      config.options,
      std::move(backend),
      {.keys = *keys_, .ids = ids_, .registry = registry_, .clock = SteadyClock()},
      {.drain = [this] { ++num_drains_; },
       .config_json = [] { return std::string(R"({"port":"8000"})"); }});
  SPINDLE_CHECK(server.ok());
  server_ = *std::move(server);
  SPINDLE_CHECK(server_->Listen().ok());
}

TestServer::~TestServer() {
  server_->Stop(SteadyClock().Now());
}

RawResponse TestServer::Ask(std::string_view request) {
  RawClient client(port());
  client.Send(request);
  return client.Read(request.substr(0, 5) == "HEAD ");
}

std::string Request(std::string_view method,
                    std::string_view target,
                    std::string_view body,
                    std::string_view extra_headers) {
  std::string request;
  request.append(method).append(" ").append(target).append(" HTTP/1.1\r\nHost: test\r\n");
  if (!body.empty()) {
    request.append("Content-Length: ").append(std::to_string(body.size())).append("\r\n");
  }
  request.append(extra_headers).append("\r\n").append(body);
  return request;
}

std::string ErrorCode(const RawResponse& response) {
  const nlohmann::json json = nlohmann::json::parse(response.body, nullptr, false);
  if (!json.is_object() || !json.contains("error")) {
    return "no error object in: " + response.body.substr(0, 100);
  }
  const nlohmann::json& error = json["error"];
  for (const char* key : {"message", "type", "param", "code"}) {
    if (!error.contains(key)) {
      return std::string("no key ") + key;
    }
  }
  return error["code"];
}

}  // namespace spindle::server
