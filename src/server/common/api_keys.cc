#include "server/common/api_keys.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <openssl/crypto.h>

#include "base/hash.h"
#include "base/read_file.h"
#include "base/status_macros.h"

namespace spindle::server {

struct ApiKeys::KeyState {
  explicit KeyState(KeyEntry e) : entry(std::move(e)) {}

  const KeyEntry entry;

  // Counters are shared between the states of one key before and after a reload.
  struct Counters {
    std::atomic<uint32_t> running{0};
    Mutex mutex;
    // Token bucket of `rpm` tokens, full before its first use.
    double tokens SPINDLE_GUARDED_BY(mutex) = 0;
    std::optional<TimePoint> refilled SPINDLE_GUARDED_BY(mutex);
  };

  std::shared_ptr<Counters> counters = std::make_shared<Counters>();
};

struct ApiKeys::Table {
  std::vector<std::shared_ptr<KeyState>> keys;
  bool has_user_keys = false;
  bool has_admin_keys = false;
};

namespace {

constexpr uint64_t kMaxKeyFileBytes = 16U << 20;

absl::Status AppendValues(const std::vector<std::string>& values,
                          bool admin,
                          std::vector<KeyEntry>* entries) {
  for (const std::string& value : values) {
    KeyEntry entry;
    absl::StatusOr<Digest> digest = ParseKeyValue(value);
    if (!digest.ok()) {
      return absl::InvalidArgumentError(std::string(admin ? "--admin-api-key: " : "--api-key: ") +
                                        std::string(digest.status().message()));
    }
    entry.digest = *digest;
    entry.admin = admin;
    entries->push_back(std::move(entry));
  }
  return absl::OkStatus();
}

absl::Status AppendFile(const std::string& path, bool admin, std::vector<KeyEntry>* entries) {
  if (path.empty()) {
    return absl::OkStatus();
  }
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxKeyFileBytes);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        std::string(admin ? "--admin-api-key-file: " : "--api-key-file: ") +
                            std::string(text.status().message()));
  }
  SPINDLE_ASSIGN_OR_RETURN(std::vector<KeyEntry> parsed, ParseKeyFile(*text));
  for (KeyEntry& entry : parsed) {
    entry.admin = entry.admin || admin;
    entries->push_back(std::move(entry));
  }
  return absl::OkStatus();
}

constexpr size_t kTenantDigits = 16;
// A slot of a busy key frees up when one of its requests ends; there is no better estimate.
constexpr std::chrono::milliseconds kConcurrencyRetry{1000};

}  // namespace

ApiKeys::Slot& ApiKeys::Slot::operator=(Slot&& other) noexcept {
  if (this != &other) {
    Release();
    state_ = std::move(other.state_);
  }
  return *this;
}

void ApiKeys::Slot::Release() {
  if (state_ != nullptr) {
    state_->counters->running.fetch_sub(1);
    state_ = nullptr;
  }
}

ApiKeys::ApiKeys(ApiKeyOptions options, const Clock& clock)
    : options_(std::move(options)), clock_(clock) {}

ApiKeys::~ApiKeys() = default;

absl::StatusOr<std::unique_ptr<ApiKeys>> ApiKeys::Create(const ApiKeyOptions& options,
                                                         const Clock& clock) {
  std::unique_ptr<ApiKeys> keys(new ApiKeys(options, clock));
  SPINDLE_RETURN_IF_ERROR(keys->Reload());
  return keys;
}

absl::StatusOr<std::shared_ptr<const ApiKeys::Table>> ApiKeys::Load() const {
  std::vector<KeyEntry> entries;
  SPINDLE_RETURN_IF_ERROR(AppendValues(options_.keys, false, &entries));
  SPINDLE_RETURN_IF_ERROR(AppendFile(options_.key_file, false, &entries));
  // The first mention of a key decides; admin values come last but must not lose their role.
  std::vector<KeyEntry> admins;
  SPINDLE_RETURN_IF_ERROR(AppendValues(options_.admin_keys, true, &admins));
  SPINDLE_RETURN_IF_ERROR(AppendFile(options_.admin_key_file, true, &admins));
  entries.insert(entries.begin(), admins.begin(), admins.end());

  auto table = std::make_shared<Table>();
  for (KeyEntry& entry : entries) {
    table->has_admin_keys = table->has_admin_keys || entry.admin;
    table->has_user_keys = table->has_user_keys || !entry.admin;
    table->keys.push_back(std::make_shared<KeyState>(std::move(entry)));
  }
  return table;
}

absl::Status ApiKeys::Reload() {
  SPINDLE_ASSIGN_OR_RETURN(std::shared_ptr<const Table> table, Load());
  MutexLock lock(mutex_);
  if (table_ != nullptr) {
    for (const auto& state : table->keys) {
      const auto old = std::find_if(table_->keys.begin(), table_->keys.end(), [&](const auto& s) {
        return s->entry.digest == state->entry.digest;
      });
      if (old != table_->keys.end()) {
        state->counters = (*old)->counters;
      }
    }
  }
  table_ = std::move(table);
  return absl::OkStatus();
}

bool ApiKeys::closed() const {
  MutexLock lock(mutex_);
  return table_->has_user_keys;
}

std::variant<ApiKeys::Grant, AuthFailure> ApiKeys::Authenticate(
    std::optional<std::string_view> presented, KeyScope scope, bool loopback) const {
  std::shared_ptr<const Table> table;
  {
    MutexLock lock(mutex_);
    table = table_;
  }
  std::shared_ptr<KeyState> match;
  if (presented.has_value()) {
    const Digest digest = KeyDigest(*presented);
    // Every entry is compared in full, so that time tells nothing about the table.
    for (const auto& state : table->keys) {
      const bool equal =
          CRYPTO_memcmp(state->entry.digest.data(), digest.data(), digest.size()) == 0;
      if (equal && match == nullptr) {
        match = state;
      }
    }
  }
  const bool admin_scope = scope == KeyScope::kAdmin;
  const bool needs_key = table->has_user_keys || (admin_scope && table->has_admin_keys);
  if (needs_key && match == nullptr) {
    return presented.has_value() ? AuthFailure::kInvalid : AuthFailure::kMissing;
  }
  if (admin_scope && table->has_admin_keys && !match->entry.admin) {
    return AuthFailure::kForbidden;
  }
  if (admin_scope && !table->has_admin_keys && !loopback) {
    return AuthFailure::kNotLoopback;
  }
  Grant grant;
  if (match != nullptr) {
    grant.name = match->entry.name;
    grant.tenant = ToHex(match->entry.digest).substr(0, kTenantDigits);
    grant.min_priority = match->entry.min_priority;
    grant.admin = match->entry.admin;
    grant.retention = match->entry.retention || match->entry.admin;
    grant.trusted = match->entry.trusted;
    grant.state = std::move(match);
  }
  return grant;
}

std::variant<ApiKeys::Slot, LimitRefusal> ApiKeys::Admit(const Grant& grant) const {
  if (grant.state == nullptr) {
    return Slot();
  }
  const KeyEntry& entry = grant.state->entry;
  KeyState::Counters& counters = *grant.state->counters;
  const uint32_t running = counters.running.fetch_add(1);
  Slot slot(grant.state);  // gives the place back on every refusal below
  if (entry.concurrency > 0 && running >= entry.concurrency) {
    return LimitRefusal{LimitFailure::kConcurrency, kConcurrencyRetry};
  }
  if (entry.rpm > 0) {
    const TimePoint now = clock_.Now();
    const double per_second = entry.rpm / 60.0;
    MutexLock lock(counters.mutex);
    const double gained = counters.refilled.has_value()
                              ? ToSeconds(now - *counters.refilled) * per_second
                              : entry.rpm;
    counters.tokens = std::min<double>(entry.rpm, counters.tokens + gained);
    counters.refilled = now;
    if (counters.tokens < 1) {
      const double wait_ms = std::ceil((1 - counters.tokens) / per_second * 1000);
      return LimitRefusal{LimitFailure::kRate,
                          std::chrono::milliseconds(static_cast<int64_t>(wait_ms))};
    }
    counters.tokens -= 1;
  }
  return slot;
}

std::optional<std::string_view> BearerToken(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer";
  const bool is_bearer =
      authorization.size() > kScheme.size() &&
      std::equal(kScheme.begin(), kScheme.end(), authorization.begin(), [](char a, char b) {
        return a == static_cast<char>(b | 0x20);
      });
  if (!is_bearer || authorization[kScheme.size()] != ' ') {
    return std::nullopt;
  }
  authorization.remove_prefix(kScheme.size());
  authorization.remove_prefix(std::min(authorization.find_first_not_of(' '), authorization.size()));
  return authorization;
}

}  // namespace spindle::server
