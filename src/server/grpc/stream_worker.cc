#include "server/grpc/stream_worker.h"

#include <optional>
#include <utility>

#include <pthread.h>

namespace spindle::server {

StreamWorker::StreamWorker(size_t capacity) : tasks_(capacity) {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "grpc-stream");
    while (std::optional<std::function<void()>> task = tasks_.Pop()) {
      (*task)();
    }
  });
}

StreamWorker::~StreamWorker() {
  tasks_.Close();
  thread_.join();
}

bool StreamWorker::Post(std::function<void()> task) {
  return tasks_.TryPush(std::move(task));
}

}  // namespace spindle::server
