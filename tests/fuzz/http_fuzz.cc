// Fuzzes the request parser: heads, bodies, chunks, pipelining. The first byte decides how the rest
// is cut; the events must be those of the uncut input.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status_macros.h"
#include "server/http/request_parser.h"
#include "server/http/router.h"

namespace spindle::server {
namespace {

constexpr uint64_t kMaxBody = 4096;

// Everything the parser reports, written down, for inputs handed over in pieces of `step` bytes.
std::string Run(std::string_view bytes, size_t step) {
  ParserLimits limits;
  limits.max_request_line_bytes = 256;
  limits.max_header_bytes = 1024;
  limits.max_body_bytes = kMaxBody;
  RequestParser parser(limits);
  const Router router("", true, false);
  std::string log;
  std::string buffer;
  for (size_t given = 0; given < bytes.size(); given += step) {
    buffer.append(bytes.substr(given, step));
    while (true) {
      // An exactly sized copy, so that reads past the end are seen.
      const std::vector<char> exact(buffer.begin(), buffer.end());
      size_t used = 0;
      const auto event = parser.Feed(std::string_view(exact.data(), exact.size()), &used);
      SPINDLE_CHECK(used <= buffer.size());
      buffer.erase(0, used);
      if (event == RequestParser::Event::kNeedMore) {
        break;
      }
      if (event == RequestParser::Event::kError) {
        const int status = parser.error().http_status;
        SPINDLE_CHECK(status >= 400 && status < 500);
        return log + "error " + std::to_string(status) + parser.error().message;
      }
      if (event == RequestParser::Event::kHead) {
        const RequestHead& head = parser.head();
        SPINDLE_CHECK(!(head.chunked && head.content_length.has_value()));
        log += head.method + ' ' + head.target;
        for (const auto& [name, value] : head.fields) {
          SPINDLE_CHECK(value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos);
          log += '|' + name + '=' + value;
        }
        log += EndpointLabel(router.Resolve(head.method, head.target).endpoint);
        if (head.content_length.value_or(0) > kMaxBody) {
          return log + " too large";
        }
      } else {
        SPINDLE_CHECK(parser.body().size() <= kMaxBody);
        log += "body " + parser.body() + '\n';
        parser.Reset();
      }
    }
  }
  return log + (parser.started() ? " unfinished" : " idle");
}

}  // namespace
}  // namespace spindle::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) {
    return 0;
  }
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t step = 1 + data[0] % 16;
  SPINDLE_CHECK(spindle::server::Run(bytes, bytes.size()) == spindle::server::Run(bytes, step));
  return 0;
}
