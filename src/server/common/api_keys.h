// Who may do what: API keys with roles and limits, shared by all transports (docs/http-api.md).
// Default deny: with keys configured, everything that is not public needs one. Keys are kept as
// SHA-256 digests, compared in constant time and never logged. Thread-safety: thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/common/key_file.h"

namespace spindle::server {

struct ApiKeyOptions {
  std::vector<std::string> keys = {};        // --api-key; bare or sha256:<hex>
  std::string key_file = {};                 // --api-key-file; empty = none
  std::vector<std::string> admin_keys = {};  // --admin-api-key
  std::string admin_key_file = {};           // --admin-api-key-file; each entry is an admin key
};

// Header (HTTP) or metadata (gRPC) in which a trusted caller says for whom it asks, for fair
// shares; the name is that of the Kubernetes inference gateways.
inline constexpr const char* kFairnessHeader = "x-gateway-inference-fairness-id";

// What a path asks for, the transport's view; public paths ask nothing.
enum class KeyScope : uint8_t { kUser, kAdmin };

enum class AuthFailure : uint8_t {
  kMissing,      // 401 missing_api_key
  kInvalid,      // 401 invalid_api_key
  kForbidden,    // 403: the key is not an admin key
  kNotLoopback,  // 403: no admin key is configured and the peer is not local
};

enum class LimitFailure : uint8_t { kConcurrency, kRate };

struct LimitRefusal {
  LimitFailure kind;
  std::chrono::milliseconds retry_after;
};

class ApiKeys {
 public:
  // Counters of one key; they outlive a reload of the key file.
  struct KeyState;

  // An authenticated caller. Value; empty state when no keys are configured.
  struct Grant {
    std::string name;    // for logs; empty without keys
    std::string tenant;  // separates prefix caches; empty without keys
    int32_t min_priority = -100;
    bool admin = false;
    bool retention = true;
    bool trusted = true;
    std::shared_ptr<KeyState> state;  // shared with the table and other requests of the key
  };

  // A running request of a key with its place under the concurrency limit. Move-only.
  class Slot {
   public:
    Slot() = default;
    Slot(Slot&& other) noexcept = default;
    Slot& operator=(Slot&& other) noexcept;

    ~Slot() { Release(); }

   private:
    friend class ApiKeys;

    explicit Slot(std::shared_ptr<KeyState> state) : state_(std::move(state)) {}

    void Release();

    std::shared_ptr<KeyState> state_;
  };

  // Reads the files. `clock` must outlive the object. ERRORS: those of ReadFile, kInvalidArgument.
  static absl::StatusOr<std::unique_ptr<ApiKeys>> Create(const ApiKeyOptions& options,
                                                         const Clock& clock);
  ~ApiKeys();

  // Reads the files again; on an error the old keys stay.
  absl::Status Reload();

  // `presented`: the key as sent, without its scheme; nullopt = none sent. `loopback`: the peer is
  // on this machine.
  [[nodiscard]] std::variant<Grant, AuthFailure> Authenticate(
      std::optional<std::string_view> presented, KeyScope scope, bool loopback) const;

  // Counts one request against the limits of the grant's key, at admission.
  [[nodiscard]] std::variant<Slot, LimitRefusal> Admit(const Grant& grant) const;

  // User keys exist: the server is not open.
  [[nodiscard]] bool closed() const;

 private:
  struct Table;

  ApiKeys(ApiKeyOptions options, const Clock& clock);

  absl::StatusOr<std::shared_ptr<const Table>> Load() const;

  const ApiKeyOptions options_;
  const Clock& clock_;
  mutable Mutex mutex_;
  std::shared_ptr<const Table> table_ SPINDLE_GUARDED_BY(mutex_);  // readers keep theirs
};

// The key inside an Authorization value: what follows "Bearer " (any case); nullopt otherwise.
[[nodiscard]] std::optional<std::string_view> BearerToken(std::string_view authorization);

}  // namespace spindle::server
