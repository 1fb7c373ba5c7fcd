#include "server/http/session_report.h"

#include <chrono>
#include <cstdint>
#include <utility>

#include "server/http/json_writer.h"
#include "server/http/response.h"

namespace spindle::server {
namespace {

serving::ApiError ToError(const absl::Status& status) {
  constexpr std::chrono::seconds kRetry{5};
  std::string message(status.message());
  message += '.';
  serving::ApiError error;
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return MakeError(404, "not_found", "There is no such session.");
    case absl::StatusCode::kUnimplemented:
      return MakeError(400, "unsupported_combination", std::move(message));
    case absl::StatusCode::kFailedPrecondition:
      return MakeError(409, "session_of_other_model", std::move(message));
    case absl::StatusCode::kResourceExhausted:
      error = MakeError(503, "host_memory_full", std::move(message));
      break;
    case absl::StatusCode::kUnavailable:
      error = MakeError(503, "storage_unavailable", std::move(message));
      break;
    default:
      error = MakeError(500, "storage_error", std::move(message));
      error.should_retry = false;
      return error;
  }
  error.retry_after = kRetry;
  error.should_retry = true;
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

void AppendSession(const kv::SessionInfo& session, std::string* out) {
  const auto number = [out](std::string_view name, uint64_t value) {
    out->append(",\"").append(name).append("\":");
    AppendJsonNumber(value, out);
  };
  *out += R"({"id":)";
  AppendJsonString(session.name.id, out);
  *out += R"(,"tenant":)";
  AppendJsonString(session.name.tenant, out);
  *out += R"(,"state":)";
  AppendJsonString(StateName(session.state), out);
  number("tokens", session.num_tokens);
  number("stripes", session.num_stripes);
  number("tail_tokens", session.tail_tokens);
  number("resident_tokens", session.resident_tokens);
  number("created", session.created_s);
  number("last_used", session.last_used_s);
  *out += R"(,"expires":)";
  if (session.pinned || session.ttl_s == 0) {
    *out += "null";
  } else {
    AppendJsonNumber(session.last_used_s + session.ttl_s, out);
  }
  *out += session.pinned ? R"(,"pinned":true})" : R"(,"pinned":false})";
}

serving::Result<std::string> ListJson(engine::Engine& engine, const SessionCall& call) {
  const auto sessions = engine.ListSessions(call.tenant);
  if (!sessions.ok()) {
    return ToError(sessions.status());
  }
  std::string json = R"({"sessions":[)";
  for (const kv::SessionInfo& session : *sessions) {
    json += json.back() == '[' ? "" : ",";
    AppendSession(session, &json);
  }
  json += "]}";
  return json;
}

}  // namespace

serving::Result<std::string> RunSessionCall(engine::Engine& engine, const SessionCall& call) {
  if (call.action == SessionCall::Action::kList) {
    return ListJson(engine, call);
  }
  const kv::SessionName name{call.tenant.value_or(""), call.id};
  absl::Status done;
  switch (call.action) {
    case SessionCall::Action::kRestore:
      done = engine.RestoreSession(name);
      break;
    case SessionCall::Action::kPin:
    case SessionCall::Action::kUnpin:
      done = engine.SetSessionPinned(name, call.action == SessionCall::Action::kPin);
      break;
    case SessionCall::Action::kDelete:
      done = engine.DeleteSession(name);
      break;
    default:
      break;
  }
  std::string json;
  if (done.ok() && call.action == SessionCall::Action::kDelete) {
    json = R"({"id":)";
    AppendJsonString(call.id, &json);
    json += R"(,"deleted":true})";
    return json;
  }
  const auto session = done.ok() ? engine.FindSession(name) : done;
  if (!session.ok()) {
    return ToError(session.status());
  }
  AppendSession(*session, &json);
  return json;
}

}  // namespace spindle::server
