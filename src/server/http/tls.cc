#include "server/http/tls.h"

#include <string>

#include "base/status_macros.h"

namespace spindle::server {
namespace {

namespace ssl = boost::asio::ssl;

absl::Status FileError(const char* option,
                       const std::string& path,
                       const boost::system::error_code& error) {
  return absl::InvalidArgumentError(std::string(option) + ": cannot use " + path + ": " +
                                    error.message());
}

absl::Status SetClientAuth(const TlsOptions& options, ssl::context* context) {
  if (options.client_auth == TlsClientAuth::kNone) {
    return absl::OkStatus();
  }
  if (options.ca_file.empty()) {
    return absl::InvalidArgumentError("tls_client_auth needs tls_ca");
  }
  boost::system::error_code error;
  context->load_verify_file(options.ca_file, error);
  if (error) {
    return FileError("tls_ca", options.ca_file, error);
  }
  ssl::verify_mode mode = ssl::verify_peer;
  if (options.client_auth == TlsClientAuth::kRequire) {
    mode |= ssl::verify_fail_if_no_peer_cert;
  }
  context->set_verify_mode(mode);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<ssl::context>> LoadTls(const TlsOptions& options) {
  if (options.key_file.empty()) {
    return absl::InvalidArgumentError("tls_cert needs tls_key");
  }
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  context->set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 |
                       ssl::context::no_sslv3 | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1 |
                       ssl::context::no_compression);
  boost::system::error_code error;
  context->use_certificate_chain_file(options.cert_file, error);
  if (error) {
    return FileError("tls_cert", options.cert_file, error);
  }
  context->use_private_key_file(options.key_file, ssl::context::pem, error);
  if (error) {
    return FileError("tls_key", options.key_file, error);
  }
  SPINDLE_RETURN_IF_ERROR(SetClientAuth(options, context.get()));
  return context;
}

}  // namespace spindle::server
