#include "server/http/request_parser.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spindle::server {
namespace {

// What a parser made of a byte stream, as text.
std::string Describe(const RequestParser& parser) {
  const RequestHead& head = parser.head();
  std::string text = head.method + ' ' + head.target + (head.http_1_0 ? " 1.0" : " 1.1");
  for (const auto& [name, value] : head.fields) {
    text += '|' + name + '=' + value;
  }
  return text + (head.keep_alive ? " keep" : " close");
}

// Feeds pieces that end at the given cuts and writes down all events.
std::string Trace(const std::string& bytes, const std::vector<size_t>& cuts, ParserLimits limits) {
  RequestParser parser(limits);
  std::string log;
  std::string buffer;
  size_t given = 0;
  for (size_t piece = 0; piece <= cuts.size(); ++piece) {
    const size_t end = piece < cuts.size() ? cuts[piece] : bytes.size();
    buffer += bytes.substr(given, end - given);
    given = end;
    while (true) {
      // An exactly sized copy, so that a sanitizer sees every read past the end.
      const std::vector<char> exact(buffer.begin(), buffer.end());
      size_t used = 0;
      const RequestParser::Event event =
          parser.Feed(std::string_view(exact.data(), exact.size()), &used);
      buffer.erase(0, used);
      if (event == RequestParser::Event::kNeedMore) {
        break;
      }
      if (event == RequestParser::Event::kError) {
        return log + "error " + std::to_string(parser.error().http_status) + ' ' +
               parser.error().message;
      }
      if (event == RequestParser::Event::kHead) {
        log += "head " + Describe(parser) + '\n';
      } else {
        log += "body " + parser.body() + '\n';
        parser.Reset();
      }
    }
  }
  return log + (parser.started() ? "unfinished" : "idle");
}

const char* const kStreams[] = {
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.0\r\n\r\n",
    "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloPOST /y HTTP/1.1\r\nHost: "
    "a\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n1;a=b\r\n!\r\n000\r\nx: y\r\n\r\nGET "
    "/z HTTP/1.1\r\nHost:a\r\nConnection: close\r\n\r\n",
    "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel",
    "GET / HTTP/1.1\r\nHost: a\nb: c\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
    "GET /aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa "
    "HTTP/1.1\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nlong: "
    "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n\r"
    "\n",
};

TEST(RequestParser, EventsDoNotDependOnTheCutting) {
  ParserLimits limits;
  limits.max_request_line_bytes = 64;
  limits.max_header_bytes = 80;
  constexpr unsigned kSeed = 20260727;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (const std::string stream : kStreams) {
    const std::string whole = Trace(stream, {}, limits);
    std::vector<size_t> every;
    for (size_t i = 1; i < stream.size(); ++i) {
      EXPECT_EQ(Trace(stream, {i}, limits), whole) << stream << " cut at " << i;
      every.push_back(i);
    }
    EXPECT_EQ(Trace(stream, every, limits), whole) << stream;
    for (int round = 0; round < 50; ++round) {
      std::vector<size_t> cuts;
      for (size_t at = random() % 9; at < stream.size(); at += 1 + random() % 9) {
        cuts.push_back(at);
      }
      EXPECT_EQ(Trace(stream, cuts, limits), whole) << stream;
    }
  }
}

TEST(RequestParser, ReadsHeadsAndBodies) {
  EXPECT_EQ(Trace(kStreams[2], {}, {}),
            "head POST /x 1.1|host=a|content-length=5 keep\n"
            "body hello\n"
            "head POST /y 1.1|host=a|transfer-encoding=Chunked keep\n"
            "body hello!\n"
            "head GET /z 1.1|host=a|connection=close close\n"
            "body \n"
            "idle");
}

TEST(RequestParser, TrailersNeverReachTheHead) {
  EXPECT_EQ(Trace("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
                  "Authorization: Bearer x\r\nHost: b\r\n\r\n",
                  {},
                  {}),
            "head POST / 1.1|host=a|transfer-encoding=chunked keep\nbody \nidle");
}

TEST(RequestParser, LimitsAreExact) {
  ParserLimits limits;
  limits.max_request_line_bytes = 20;
  limits.max_header_bytes = 30;
  limits.max_body_bytes = 4;
  const std::string head = "GET /12345 HTTP/1.1\r\n";  // 19 bytes and the line end
  const std::string longer = "GET /1234567 HTTP/1.1\r\n";
  EXPECT_EQ(Trace(head + "Host: a\r\n\r\n", {}, limits).substr(0, 4), "head");
  EXPECT_EQ(Trace(longer + "Host: a\r\n\r\n", {}, limits).substr(0, 9), "error 414");
  // "Host: a" and the last line end take 9 + 2 of the 30 bytes.
  const auto with_field = [&](size_t size) {
    return head + "Host: a\r\n" + "x:" + std::string(size - 4, 'y') + "\r\n\r\n";
  };
  EXPECT_EQ(Trace(with_field(19), {}, limits).substr(0, 4), "head");
  EXPECT_EQ(Trace(with_field(20), {}, limits).substr(0, 9), "error 431");
  const std::string chunked = "POST / HTTP/1.1\r\nHost:\r\nTransfer-Encoding:chunked\r\n\r\n";
  limits.max_header_bytes = 100;
  EXPECT_NE(Trace(chunked + "2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n", {}, limits).find("body abcd"),
            std::string::npos);
  EXPECT_NE(Trace(chunked + "2\r\nab\r\n3\r\n", {}, limits).find("error 413"), std::string::npos);
}

TEST(RequestParser, TooManyHeadersAreRefused) {
  const auto with_fields = [](const char* begin, size_t count) {
    std::string text(begin);
    for (size_t i = 0; i < count; ++i) {
      text += "x: y\r\n";
    }
    return text + "\r\n";
  };
  const char* const head = "GET / HTTP/1.1\r\nHost: a\r\n";
  EXPECT_EQ(Trace(with_fields(head, 127), {}, {}).substr(0, 4), "head");
  EXPECT_EQ(Trace(with_fields(head, 128), {}, {}), "error 431 There are too many request headers.");
  const char* const trailers =
      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n";
  EXPECT_NE(Trace(with_fields(trailers, 128), {}, {}).find("body"), std::string::npos);
  EXPECT_NE(Trace(with_fields(trailers, 129), {}, {}).find("error 431 There are too many trailers"),
            std::string::npos);
}

TEST(RequestParser, DiscardedBodiesAreCountedOnly) {
  RequestParser parser({});
  const std::string bytes = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
  size_t used = 0;
  ASSERT_EQ(parser.Feed(bytes, &used), RequestParser::Event::kHead);
  parser.DiscardBody();
  ASSERT_EQ(parser.Feed(bytes.substr(used), &used), RequestParser::Event::kComplete);
  EXPECT_EQ(parser.body(), "");
  EXPECT_EQ(parser.body_bytes(), 5U);
}

}  // namespace
}  // namespace spindle::server
