// Request ids: the client's own if it is well formed, else a random one; unique among the active
// requests of all transports. Thread-safety: thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/mutex.h"

namespace spindle::server {

// 128 bits from the system's generator, as 32 hex digits.
[[nodiscard]] std::string RandomId();

class RequestIds {
 public:
  // Keeps an id active. Move-only; the registry must outlive it.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();

    [[nodiscard]] const std::string& id() const { return id_; }

   private:
    friend class RequestIds;

    Lease(RequestIds* registry, std::string id) : registry_(registry), id_(std::move(id)) {}

    RequestIds* registry_ = nullptr;
    std::string id_;
  };

  // `wanted` as it is, with a suffix when it is active already, or a random id when it is absent or
  // no client name (base/client_name.h).
  [[nodiscard]] Lease Acquire(std::optional<std::string_view> wanted);

  [[nodiscard]] size_t num_active() const;

 private:
  void Release(const std::string& id);

  mutable Mutex mutex_;
  std::unordered_set<std::string> active_ SPINDLE_GUARDED_BY(mutex_);
};

}  // namespace spindle::server
