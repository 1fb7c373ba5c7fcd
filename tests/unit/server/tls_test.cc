// TLS: a handshake with a certificate made here, and its failures.
#include "server/http/tls.h"

#include <cstdio>
#include <memory>
#include <string>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/status_macros.h"
#include "unit/server/http_test_server.h"

namespace spindle::server {
namespace {

struct CertificateFiles {
  std::string cert;
  std::string key;
};

// A self-signed certificate for `name`.
CertificateFiles MakeCertificate(const std::string& name) {
  CertificateFiles files{::testing::TempDir() + "/" + name + ".pem",
                         ::testing::TempDir() + "/" + name + ".key"};
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* cert = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
  X509_gmtime_adj(X509_getm_notBefore(cert), 0);
  X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
  X509_set_pubkey(cert, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(cert),
                             "CN",
                             MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()),
                             -1,
                             -1,
                             0);
  X509_set_issuer_name(cert, X509_get_subject_name(cert));
  SPINDLE_CHECK(X509_sign(cert, key, EVP_sha256()) > 0);
  FILE* file = std::fopen(files.cert.c_str(), "wb");
  PEM_write_X509(file, cert);
  std::fclose(file);
  file = std::fopen(files.key.c_str(), "wb");
  PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  X509_free(cert);
  EVP_PKEY_free(key);
  return files;
}

// Speaks TLS to the server; returns the subject of its certificate, empty when there was no
// handshake, and the answer to one request.
struct TlsAnswer {
  std::string subject;
  std::string response;
};

TlsAnswer AskTls(uint16_t port, int max_version = TLS1_3_VERSION) {
  TlsAnswer answer;
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const timeval timeout{10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  SPINDLE_CHECK(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_security_level(context, 0);  // so that old versions are really offered
  SSL_CTX_set_max_proto_version(context, max_version);
  SSL* ssl = SSL_new(context);
  SSL_set_fd(ssl, fd);
  if (SSL_connect(ssl) == 1) {
    X509* cert = SSL_get1_peer_certificate(ssl);
    char subject[256];
    X509_NAME_oneline(X509_get_subject_name(cert), subject, sizeof(subject));
    answer.subject = subject;
    X509_free(cert);
    const std::string request = Request("GET", "/version", {}, "Connection: close\r\n");
    SSL_write(ssl, request.data(), static_cast<int>(request.size()));
    char buffer[4096];
    for (int size = 0; (size = SSL_read(ssl, buffer, sizeof(buffer))) > 0;) {
      answer.response.append(buffer, static_cast<size_t>(size));
    }
    SSL_shutdown(ssl);
  }
  SSL_free(ssl);
  SSL_CTX_free(context);
  close(fd);
  return answer;
}

TEST(Tls, ServesAndReloadsCertificates) {
  const CertificateFiles first = MakeCertificate("first");
  TestServerConfig config;
  config.options.tls.cert_file = first.cert;
  config.options.tls.key_file = first.key;
  TestServer server(config);
  EXPECT_EQ(server.server().address().rfind("https://", 0), 0U);
  const TlsAnswer answer = AskTls(server.port());
  EXPECT_NE(answer.subject.find("first"), std::string::npos);
  EXPECT_NE(answer.response.find("200 OK"), std::string::npos);
  EXPECT_NE(AskTls(server.port(), TLS1_2_VERSION).response.find("200 OK"), std::string::npos);
  EXPECT_EQ(AskTls(server.port(), TLS1_1_VERSION).subject, "");

  // The same files with another certificate; a plain-text client gets no HTTP answer.
  const CertificateFiles second = MakeCertificate("second");
  ASSERT_EQ(std::rename(second.cert.c_str(), first.cert.c_str()), 0);
  EXPECT_FALSE(server.server().ReloadTls().ok()) << "the key does not belong to the certificate";
  EXPECT_NE(AskTls(server.port()).subject.find("first"), std::string::npos);
  ASSERT_EQ(std::rename(second.key.c_str(), first.key.c_str()), 0);
  ASSERT_TRUE(server.server().ReloadTls().ok());
  EXPECT_NE(AskTls(server.port()).subject.find("second"), std::string::npos);
  RawClient plain(server.port());
  plain.Send(Request("GET", "/version"));
  EXPECT_EQ(plain.ReadAll().find("HTTP/1.1"), std::string::npos);
}

TEST(Tls, BadFilesAreNamed) {
  TlsOptions options;
  options.cert_file = "/nowhere/cert.pem";
  EXPECT_NE(LoadTls(options).status().message().find("tls-key"), std::string::npos);
  options.key_file = "/nowhere/key.pem";
  EXPECT_NE(LoadTls(options).status().message().find("/nowhere/cert.pem"), std::string::npos);
  const CertificateFiles files = MakeCertificate("named");
  options = {files.cert, files.key, "", TlsClientAuth::kRequire};
  EXPECT_NE(LoadTls(options).status().message().find("tls-ca"), std::string::npos);
  options.ca_file = files.cert;
  EXPECT_TRUE(LoadTls(options).ok());
}

TEST(Tls, ClientsWithoutACertificateAreRefusedWhenOneIsRequired) {
  const CertificateFiles files = MakeCertificate("required");
  TestServerConfig config;
  config.options.tls = {files.cert, files.key, files.cert, TlsClientAuth::kRequire};
  TestServer server(config);
  EXPECT_EQ(AskTls(server.port()).response, "");
}

}  // namespace
}  // namespace spindle::server
