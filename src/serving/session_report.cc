#include "serving/session_report.h"

#include <chrono>
#include <cstdint>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json_text.h"

namespace spindle::serving {
namespace {

using nlohmann::ordered_json;

ApiError MakeRetryLater(std::string code, std::string message) {
  constexpr std::chrono::seconds kRetry{5};
  ApiError error = MakeError(503, std::move(code), std::move(message));
  error.retry_after = kRetry;
  error.should_retry = true;
  return error;
}

ApiError SessionError(const absl::Status& status) {
  std::string message(status.message());
  message += '.';
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return MakeError(404, "not_found", "There is no such session.");
    case absl::StatusCode::kUnimplemented:
      return MakeError(400, "unsupported_combination", std::move(message));
    case absl::StatusCode::kFailedPrecondition:
      return MakeError(409, "session_of_other_model", std::move(message));
    case absl::StatusCode::kResourceExhausted:
      return MakeRetryLater("host_memory_full", std::move(message));
    case absl::StatusCode::kUnavailable:
      return MakeRetryLater("storage_unavailable", std::move(message));
    default:
      break;
  }
  ApiError error = MakeError(500, "storage_error", std::move(message));
  error.should_retry = false;
  return error;
}

std::string_view StateName(kv::SessionState state) {
  switch (state) {
    case kv::SessionState::kDisk:
      return "disk";
    case kv::SessionState::kRestoring:
      return "restoring";
    case kv::SessionState::kResident:
      return "resident";
  }
  return "disk";
}

ordered_json SessionJson(const kv::SessionInfo& session) {
  ordered_json json = {{"id", session.name.id},
                       {"tenant", session.name.tenant},
                       {"state", std::string(StateName(session.state))},
                       {"tokens", session.num_tokens},
                       {"stripes", session.num_stripes},
                       {"tail_tokens", session.tail_tokens},
                       {"resident_tokens", session.resident_tokens},
                       {"created", session.created_s},
                       {"last_used", session.last_used_s},
                       {"expires", nullptr},
                       {"pinned", session.pinned}};
  if (!session.pinned && session.ttl_s != 0) {
    json["expires"] = session.last_used_s + session.ttl_s;
  }
  return json;
}

Result<std::string> ListJson(engine::Engine& engine, const SessionCall& call) {
  const auto sessions = engine.ListSessions(call.tenant);
  if (!sessions.ok()) {
    return SessionError(sessions.status());
  }
  ordered_json list = ordered_json::array();
  for (const kv::SessionInfo& session : *sessions) {
    list.push_back(SessionJson(session));
  }
  return DumpJson(ordered_json{{"sessions", std::move(list)}});
}

}  // namespace

Result<std::string> RunSessionCall(engine::Engine& engine, const SessionCall& call) {
  using enum SessionCall::Action;
  const kv::SessionName name{call.tenant.value_or(""), call.id};
  absl::Status done;
  switch (call.action) {
    case kList:
      return ListJson(engine, call);
    case kGet:
      break;
    case kRestore:
      done = engine.RestoreSession(name);
      break;
    case kPin:
    case kUnpin:
      done = engine.SetSessionPinned(name, call.action == kPin);
      break;
    case kDelete:
      done = engine.DeleteSession(name);
      break;
  }
  if (!done.ok()) {
    return SessionError(done);
  }
  if (call.action == kDelete) {
    return DumpJson(ordered_json{{"id", call.id}, {"deleted", true}});
  }
  const auto session = engine.FindSession(name);
  if (!session.ok()) {
    return SessionError(session.status());
  }
  return DumpJson(SessionJson(*session));
}

}  // namespace spindle::serving
