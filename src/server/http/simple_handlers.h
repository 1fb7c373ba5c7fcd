// Endpoints whose answer is ready at once: listings, tokenizer tools, health, metrics,
// administration. Thread-safety: thread-safe.
#pragma once

#include <optional>
#include <string_view>

#include "server/http/request_head.h"
#include "server/http/response.h"
#include "server/http/router.h"
#include "server/http/server_context.h"

namespace spindle::server {

// REQUIRES: `route` is neither a generation endpoint nor unknown.
[[nodiscard]] Response HandleSimple(ServerContext& context,
                                    const Route& route,
                                    const RequestHead& head,
                                    const ApiKeys::Grant& grant,
                                    std::string_view body);

// Administration of sessions. REQUIRES: `route` is one of theirs.
[[nodiscard]] Response HandleSession(ServerContext& context,
                                     const Route& route,
                                     const RequestHead& head,
                                     const ApiKeys::Grant& grant);

// Checks of a request head after routing, in the order that README.md has: key, path and method,
// declared length and media type, server state. `loopback`: the peer is on this machine. On success
// `*grant` tells who asks.
[[nodiscard]] std::optional<Response> CheckHead(const ServerContext& context,
                                                const Route& route,
                                                const RequestHead& head,
                                                bool loopback,
                                                ApiKeys::Grant* grant);

}  // namespace spindle::server
