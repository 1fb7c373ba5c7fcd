// A corpus of malformed and ambiguous requests. Each must be refused with a 4xx and a closed
// connection (or just closed), and the server must go on serving. What follows a refused message on
// the same connection must never be served: that would be a smuggled request.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "server/http/request_parser.h"
#include "unit/server/http_test_server.h"

namespace spindle::server {
namespace {

using namespace std::string_literals;  // NOLINT(google-build-using-namespace): NUL in literals

std::string Get(const std::string& line_and_headers) {
  return line_and_headers + "\r\n";
}

std::string Post(const std::string& headers, const std::string& body) {
  return "POST /tokenize HTTP/1.1\r\nHost: t\r\n" + headers + "\r\n" + body;
}

std::string Chunked(const std::string& body) {
  return Post("Transfer-Encoding: chunked\r\n", body);
}

std::vector<std::string> RequestLines() {
  std::vector<std::string> lines = {
      "GET",
      "GET /",
      "GET / ",
      "GET  / HTTP/1.1",
      "GET /  HTTP/1.1",
      " GET / HTTP/1.1",
      "GET / HTTP/1.1 ",
      "GET\t/ HTTP/1.1",
      "GET /a b HTTP/1.1",
      "GET / HTTP/1.1 x",
      "GET / HTTP/2.0",
      "GET / HTTP/1.2",
      "GET / HTTP/0.9",
      "GET / HTTP/11",
      "GET / HTTP/1.1.1",
      "GET / http/1.1",
      "GET / HTTP /1.1",
      "GET / FTP/1.1",
      "G@T / HTTP/1.1",
      "GET() / HTTP/1.1",
      "GÉT / HTTP/1.1",
      ": / HTTP/1.1",
      "PRI * HTTP/2.0",
      "GET /\x7f HTTP/1.1",
      "GET /\x01 HTTP/1.1",
      "GET /\0x HTTP/1.1"s,
      "GET /\rx HTTP/1.1",
      "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"s,
      "{\"json\":1}",
  };
  for (std::string& line : lines) {
    line = Get(line + "\r\nHost: t\r\n");
  }
  return lines;
}

std::vector<std::string> FieldLines() {
  return {
      "NoColon",
      ": empty-name",
      "Name : value",
      "Name\t: value",
      "Na me: value",
      "Na(me): value",
      "N\xc3\xa4me: value",
      " Folded: at the beginning",
      "A: b\r\n folded",
      "A: b\r\n\tfolded",
      "A: b\r\n \r\nC: d",
      "A: b\rc",
      "A: \rb",
      "A\r: b",
      "A: b\0c"s,
      "A\0: b"s,
      "A: b\x01",
      "A: b\x7f",
      "A: b\x0b",
      "A: \x1b[31m",
      "Host: other",
      "Expect: 200-ok",
      "Expect: 100-continue, other",
      "Host: a,b",
      "Host: a/b",
      "Host: user@host",
      "Host: a b",
  };
}

std::vector<std::string> FramingLines() {
  return {
      "Content-Length: 5x",
      "Content-Length: +5",
      "Content-Length: -5",
      "Content-Length: 0x5",
      "Content-Length: 5.0",
      "Content-Length: 5e0",
      "Content-Length: 5 5",
      "Content-Length: 5,5",
      "Content-Length: 5, 6",
      "Content-Length: ,",
      "Content-Length:",
      "Content-Length: five",
      "Content-Length: \"5\"",
      "Content-Length: 5\r\nContent-Length: 5",
      "Content-Length: 5\r\nContent-Length: 6",
      "Content-Length: 0\r\ncontent-length: 44",
      "Content-Length: 5\r\nTransfer-Encoding: chunked",
      "Transfer-Encoding: chunked\r\nContent-Length: 0",
      "Transfer-Encoding: gzip",
      "Transfer-Encoding: gzip, chunked",
      "Transfer-Encoding: chunked, gzip",
      "Transfer-Encoding: chunked, chunked",
      "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
      "Transfer-Encoding: identity",
      "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
      "Transfer-Encoding:",
      "Transfer-Encoding: xchunked",
      "Transfer-Encoding: chunkedx",
      "Transfer-Encoding: chunked;q=1",
      "Transfer-Encoding: \"chunked\"",
      "Transfer-Encoding: \x0b"
      "chunked",
      "Transfer-Encoding: chunked\x0b",
      "Transfer-Encoding : chunked",
      "Transfer-Encoding\t: chunked",
      " Transfer-Encoding: chunked",
      "X: y\r\n Transfer-Encoding: chunked",
      "X: y\rTransfer-Encoding: chunked",
      "Transfer-Encoding: chunked\0"s,
      "Transfer-Encoding: chu\0nked"s,
      "Transfer_Encoding: chunked\r\nContent-Length: x",
  };
}

std::vector<std::string> HeaderLines() {
  std::vector<std::string> lines = FieldLines();
  const std::vector<std::string> framing = FramingLines();
  lines.insert(lines.end(), framing.begin(), framing.end());
  std::vector<std::string> requests;
  for (const std::string& line : lines) {
    const bool replaces_host = line.rfind("Host: ", 0) == 0 && line != "Host: other";
    requests.push_back("POST /tokenize HTTP/1.1\r\n" +
                       (replaces_host ? std::string() : "Host: t\r\n") + line + "\r\n\r\n");
  }
  requests.push_back("GET /version HTTP/1.1\r\n\r\n");       // no Host
  requests.push_back("GET /version HTTP/1.1\nHost: t\n\n");  // bare line feeds
  requests.push_back("GET /version HTTP/1.1\r\nHost: t\r\nA: b\n\r\n");
  requests.push_back("GET /version HTTP/1.1\r\n\nHost: t\r\n\r\n");
  requests.push_back("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
  requests.push_back(
      "\r\n\r\n\r\nGET /version HTTP/1.1\r\nHost: t\r\n\r\n");  // too many empty lines
  return requests;
}

std::vector<std::string> ChunkedBodies() {
  std::vector<std::string> bodies = {
      "x\r\n",
      "\r\n",
      " 5\r\nhello\r\n0\r\n\r\n",
      "5 \r\nhello\r\n0\r\n\r\n",
      "5\t\r\nhello\r\n0\r\n\r\n",
      "+5\r\nhello\r\n0\r\n\r\n",
      "-5\r\nhello\r\n0\r\n\r\n",
      "0x5\r\nhello\r\n0\r\n\r\n",
      "5g\r\nhello\r\n0\r\n\r\n",
      "5,\r\nhello\r\n0\r\n\r\n",
      "5\nhello\r\n0\r\n\r\n",
      "5\rhello\r\n0\r\n\r\n",
      "5\r\nhello0\r\n\r\n",
      "5\r\nhello\n0\r\n\r\n",
      "5\r\nhello\r0\r\n\r\n",
      "5\r\nhelloo\r\n0\r\n\r\n",
      "5\r\nhell\r\n0\r\n\r\n",
      "5;\x01\r\nhello\r\n0\r\n\r\n",
      "5;a\0b\r\nhello\r\n0\r\n\r\n"s,
      "5;a\nb\r\nhello\r\n0\r\n\r\n",
      "5;" + std::string(300, 'a') + "\r\nhello\r\n0\r\n\r\n",
      "FFFFFFFFFFFFFFFF\r\n",
      "10000000000000005\r\nhello\r\n0\r\n\r\n",
      "0000000000000000005\r\nhello\r\n0\r\n\r\n",
      "8000000000000000\r\n",
      "0\r\nbad trailer\r\n\r\n",
      "0\r\n folded: x\r\n\r\n",
      "0\r\nname : x\r\n\r\n",
      "0\r\na: b\rc\r\n\r\n",
      "0\r\na: b\nc: d\r\n\r\n",
      "0\r\na: " + std::string(9000, 'x') + "\r\n\r\n",
      "0\n\n",
      "0;\r\n\n",
      "\xef\xbb\xbf"
      "5\r\nhello\r\n0\r\n\r\n",
  };
  for (std::string& body : bodies) {
    body = Chunked(body);
  }
  return bodies;
}

class Malformed : public ::testing::Test {
 protected:
  // Sends the case and, behind it, a request that must not be answered.
  void ExpectRefused(const std::vector<std::string>& requests) {
    for (const std::string& request : requests) {
      RawClient client(server_.port());
      (void)client.TrySend(request + Request("GET", "/version"));
      const RawResponse response = client.Read();
      EXPECT_GE(response.status, 400) << request;
      EXPECT_LT(response.status, 500) << request;
      const std::string code = ErrorCode(response);
      EXPECT_TRUE(code == "invalid_http" || code == "request_too_large" ||
                  code == "headers_too_large")
          << code << request;
      EXPECT_EQ(response.Header("connection"), "close") << request;
      EXPECT_EQ(client.ReadAll(), "") << "served what came after: " << request;
    }
    EXPECT_EQ(server_.Ask(Request("GET", "/health")).status, 200);
  }

  TestServer server_;
};

TEST_F(Malformed, RequestLinesAreRefused) {
  ExpectRefused(RequestLines());
}

TEST_F(Malformed, HeaderLinesAreRefused) {
  ExpectRefused(HeaderLines());
}

TEST_F(Malformed, ChunkedBodiesAreRefused) {
  ExpectRefused(ChunkedBodies());
}

TEST_F(Malformed, TheCorpusIsLargeEnough) {
  EXPECT_GE(RequestLines().size() + HeaderLines().size() + ChunkedBodies().size(), 100U);
}

TEST_F(Malformed, CorruptedVariantsNeverCrashOrAnswer5xx) {
  // Each byte of a good request replaced by each of some nasty ones.
  const std::string good = Chunked("5;x\r\nhello\r\n0\r\nt: v\r\n\r\n");
  const std::string nasty =
      "\r\n\0 \t:;,\x7f\xff"
      "0f"s;
  size_t refused = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    for (const char c : nasty) {
      std::string request = good;
      request[at] = c;
      RequestParser parser({});
      size_t offset = 0;
      while (true) {
        size_t used = 0;
        const auto event = parser.Feed(std::string_view(request).substr(offset), &used);
        offset += used;
        ASSERT_LE(offset, request.size());
        if (event == RequestParser::Event::kError) {
          ASSERT_GE(parser.error().http_status, 400);
          ASSERT_LT(parser.error().http_status, 500);
          ++refused;
        }
        if (event != RequestParser::Event::kHead) {
          break;
        }
      }
    }
  }
  EXPECT_GT(refused, good.size());
}

TEST_F(Malformed, AcceptedOddities) {
  // Unusual, but with one meaning only.
  const std::vector<std::string> requests = {
      "\r\nGET /version HTTP/1.1\r\nHost: t\r\n\r\n",
      "GET /version HTTP/1.1\r\nHost:\r\n\r\n",
      "GET /version HTTP/1.1\r\nhOST:t\r\nX:\r\nY: \t v \t \r\n\r\n",
      "GET /version HTTP/1.1\r\nHost: t\r\nX: caf\xc3\xa9\r\n\r\n",
      "GET /version HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n",
      "GET /version HTTP/1.1\r\nHost: t\r\nContent-Length: 0003\r\n\r\nabc",
      "GET /version HTTP/1.0\r\n\r\n",
      "GET /version HTTP/1.1\r\nHost: [::1]:8000\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
  };
  for (const std::string& request : requests) {
    EXPECT_EQ(server_.Ask(request).status, 200) << request;
  }
}

}  // namespace
}  // namespace spindle::server
