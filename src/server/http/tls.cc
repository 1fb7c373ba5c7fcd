#include "server/http/tls.h"

#include <string>

#include "base/read_file.h"
#include "base/status_macros.h"

namespace spindle::server {
namespace {

namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;

constexpr uint64_t kMaxPemBytes = 16U << 20;

// Hands the text of a PEM file to `use`, which sets its error code.
template <typename Use>
absl::Status UsePem(const char* option, const std::string& path, const Use& use) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxPemBytes);
  if (!text.ok()) {
    return absl::InvalidArgumentError(std::string(option) + ": " +
                                      std::string(text.status().message()));
  }
  boost::system::error_code error;
  use(asio::buffer(*text), error);
  if (error) {
    return absl::InvalidArgumentError(std::string(option) + ": cannot use " + path + ": " +
                                      error.message());
  }
  return absl::OkStatus();
}

absl::Status SetClientAuth(const TlsOptions& options, ssl::context* context) {
  if (options.client_auth == TlsClientAuth::kNone) {
    return absl::OkStatus();
  }
  if (options.ca_file.empty()) {
    return absl::InvalidArgumentError("--tls-client-auth needs --tls-ca");
  }
  SPINDLE_RETURN_IF_ERROR(
      UsePem("--tls-ca", options.ca_file, [&](const auto& pem, boost::system::error_code& error) {
        context->add_certificate_authority(pem, error);
      }));
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
    return absl::InvalidArgumentError("--tls-cert needs --tls-key");
  }
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  context->set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 |
                       ssl::context::no_sslv3 | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1 |
                       ssl::context::no_compression);
  SPINDLE_RETURN_IF_ERROR(UsePem(
      "--tls-cert", options.cert_file, [&](const auto& pem, boost::system::error_code& error) {
        context->use_certificate_chain(pem, error);
      }));
  SPINDLE_RETURN_IF_ERROR(
      UsePem("--tls-key", options.key_file, [&](const auto& pem, boost::system::error_code& error) {
        context->use_private_key(pem, ssl::context::pem, error);
      }));
  SPINDLE_RETURN_IF_ERROR(SetClientAuth(options, context.get()));
  return context;
}

}  // namespace spindle::server
