// TLS contexts from PEM files. Private to this module (pulls in Asio). Thread-safety: pure
// function.
#pragma once

#include <memory>

#include <boost/asio/ssl/context.hpp>

#include "absl/status/statusor.h"
#include "server/http/http_options.h"

namespace spindle::server {

// TLS 1.2 and later. ERRORS: kInvalidArgument naming the file or the missing option.
[[nodiscard]] absl::StatusOr<std::shared_ptr<boost::asio::ssl::context>> LoadTls(
    const TlsOptions& options);

}  // namespace spindle::server
