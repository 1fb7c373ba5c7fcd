// Turns the bytes of a connection into requests, one after the other. Incremental: the events do
// not depend on how the bytes were cut. Linear in the input.
// Thread-safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/request_head.h"

namespace spindle::server {

struct ParserLimits {
  size_t max_request_line_bytes = size_t{8} << 10;
  size_t max_header_bytes = size_t{64} << 10;  // all field lines of a head, CRLFs included
  uint64_t max_body_bytes = uint64_t{32} << 20;
};

class RequestParser {
 public:
  enum class Event : uint8_t {
    kNeedMore,  // everything given was looked at; feed again when more arrives
    kHead,      // head() is complete; call Feed again for the body
    kComplete,  // body() is complete; Reset before the next request
    kError,     // error() tells why; the stream cannot be used any more
  };

  explicit RequestParser(const ParserLimits& limits) : limits_(limits) {}

  // Looks at `input`; `*consumed` bytes of it are dealt with and must not be given again. The rest
  // must be given again, followed by what arrived since. Stops after each event.
  [[nodiscard]] Event Feed(std::string_view input, size_t* consumed);

  // From now on body bytes are counted but not kept.
  void DiscardBody();

  // Ready for the next request. REQUIRES: the last event was kComplete.
  void Reset();

  // Some bytes of the current request were seen.
  [[nodiscard]] bool started() const { return started_; }

  [[nodiscard]] const RequestHead& head() const { return head_; }

  [[nodiscard]] std::string& body() { return body_; }

  // Body bytes so far, kept or not.
  [[nodiscard]] uint64_t body_bytes() const { return body_bytes_; }

  [[nodiscard]] const ParseError& error() const { return error_; }

 private:
  enum class State : uint8_t {
    kRequestLine,
    kFields,
    kFixedBody,
    kChunkSize,
    kChunkData,
    kChunkEnd,
    kTrailers,
    kComplete,
    kFailed,
  };

  // Outcome of one attempt to move on: an event to report, or nothing to go on parsing.
  using Step = std::optional<Event>;

  Step StepLine(std::string_view rest, size_t* used);
  Step OnLine(std::string_view line);
  Step OnHeadEnd();
  Step OnChunkSize(std::string_view line);
  Step StepData(std::string_view rest, size_t* used);
  Step CheckLineLength(size_t line_bytes, bool complete);
  Event Fail(ParseError error);
  Event Complete();

  ParserLimits limits_;
  State state_ = State::kRequestLine;
  RequestHead head_;
  RequestHead trailers_;  // checked, then dropped: a trailer never changes a request
  std::string body_;
  ParseError error_;
  uint64_t body_bytes_ = 0;
  uint64_t remaining_bytes_ = 0;  // of the fixed body or the chunk
  size_t field_bytes_ = 0;        // of the head's or the trailers' lines
  size_t scanned_bytes_ = 0;      // of an unfinished line, known to hold no LF
  uint32_t empty_lines_ = 0;
  bool started_ = false;
  bool discard_body_ = false;
};

}  // namespace spindle::server
