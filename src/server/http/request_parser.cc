#include "server/http/request_parser.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace spindle::server {
namespace {

// RFC 9112 2.2: a server should ignore an empty line before the request line; old clients send one
// after a POST body.
constexpr uint32_t kMaxEmptyLines = 2;
// Header lines of a message: many short ones would take far more memory than bytes.
constexpr size_t kMaxFields = 128;
// Size in hex (16 digits at most) with extensions, which are read over.
constexpr size_t kMaxChunkSizeLine = 256;
constexpr size_t kMaxTrailerBytes = size_t{8} << 10;
// Sixteen-digit sizes would overflow the count; no real chunk needs more than eight.
constexpr size_t kMaxChunkDigits = 15;

int HexValue(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  if (c >= 'a' && c <= 'f') {
    return c - 'a' + 10;
  }
  if (c >= 'A' && c <= 'F') {
    return c - 'A' + 10;
  }
  return -1;
}

}  // namespace

RequestParser::Event RequestParser::Fail(ParseError error) {
  state_ = State::kFailed;
  error_ = std::move(error);
  return Event::kError;
}

RequestParser::Event RequestParser::Complete() {
  state_ = State::kComplete;
  return Event::kComplete;
}

void RequestParser::DiscardBody() {
  discard_body_ = true;
  body_.clear();
  body_.shrink_to_fit();
}

void RequestParser::Reset() {
  SPINDLE_CHECK(state_ == State::kComplete);
  *this = RequestParser(limits_);
}

RequestParser::Event RequestParser::Feed(std::string_view input, size_t* consumed) {
  *consumed = 0;
  while (true) {
    const std::string_view rest = input.substr(*consumed);
    Step step;
    size_t used = 0;
    switch (state_) {
      case State::kFailed:
        return Event::kError;
      case State::kComplete:
        return Event::kComplete;
      case State::kFixedBody:
      case State::kChunkData:
        step = StepData(rest, &used);
        break;
      default:
        step = StepLine(rest, &used);
        break;
    }
    *consumed += used;
    if (step.has_value()) {
      return *step;
    }
  }
}

RequestParser::Step RequestParser::CheckLineLength(size_t line_bytes, bool complete) {
  switch (state_) {
    case State::kRequestLine:
      // `line_bytes` counts the CRLF of a complete line and none of an incomplete one.
      if (line_bytes > limits_.max_request_line_bytes + (complete ? 2 : 1)) {
        return Fail({414, "uri_too_long", "The request line is too long."});
      }
      break;
    case State::kFields:
      if (field_bytes_ + line_bytes > limits_.max_header_bytes) {
        return Fail({431, "headers_too_large", "The request headers are too large."});
      }
      break;
    case State::kTrailers:
      if (field_bytes_ + line_bytes > kMaxTrailerBytes) {
        return Fail({431, "headers_too_large", "The trailers are too large."});
      }
      break;
    default:
      if (line_bytes > kMaxChunkSizeLine) {
        return Fail({400, "invalid_http", "A chunk size line is too long."});
      }
      break;
  }
  return std::nullopt;
}

RequestParser::Step RequestParser::StepLine(std::string_view rest, size_t* used) {
  started_ = started_ || !rest.empty();
  const size_t lf = rest.find('\n', scanned_bytes_);
  const size_t line_bytes = lf == std::string_view::npos ? rest.size() : lf + 1;
  if (auto step = CheckLineLength(line_bytes, lf != std::string_view::npos)) {
    return step;
  }
  if (lf == std::string_view::npos) {
    scanned_bytes_ = rest.size();
    return Event::kNeedMore;
  }
  scanned_bytes_ = 0;
  *used = line_bytes;
  std::string_view line = rest.substr(0, lf);
  if (line.empty() || line.back() != '\r') {
    return Fail({400, "invalid_http", "A line ends without a carriage return."});
  }
  line.remove_suffix(1);
  field_bytes_ += line_bytes;
  return OnLine(line);
}

RequestParser::Step RequestParser::OnLine(std::string_view line) {
  std::optional<ParseError> error;
  switch (state_) {
    case State::kRequestLine:
      if (line.empty() && ++empty_lines_ <= kMaxEmptyLines) {
        return std::nullopt;
      }
      error = ParseRequestLine(line, &head_);
      field_bytes_ = 0;
      state_ = State::kFields;
      break;
    case State::kFields:
      if (line.empty()) {
        return OnHeadEnd();
      }
      if (head_.fields.size() >= kMaxFields) {
        return Fail({431, "headers_too_large", "There are too many request headers."});
      }
      error = ParseFieldLine(line, &head_);
      break;
    case State::kTrailers:
      if (line.empty()) {
        return Complete();
      }
      if (trailers_.fields.size() >= kMaxFields) {
        return Fail({431, "headers_too_large", "There are too many trailers."});
      }
      error = ParseFieldLine(line, &trailers_);
      break;
    case State::kChunkEnd:
      if (!line.empty()) {
        return Fail({400, "invalid_http", "A chunk is longer than its size."});
      }
      state_ = State::kChunkSize;
      break;
    default:
      return OnChunkSize(line);
  }
  if (error.has_value()) {
    return Fail(*std::move(error));
  }
  return std::nullopt;
}

RequestParser::Step RequestParser::OnHeadEnd() {
  if (auto error = FinishHead(&head_)) {
    return Fail(*std::move(error));
  }
  remaining_bytes_ = head_.content_length.value_or(0);
  state_ = head_.chunked ? State::kChunkSize : State::kFixedBody;
  return Event::kHead;
}

RequestParser::Step RequestParser::OnChunkSize(std::string_view line) {
  uint64_t size = 0;
  size_t digits = 0;
  while (digits < line.size() && HexValue(line[digits]) >= 0) {
    size = size * 16 + static_cast<uint64_t>(HexValue(line[digits]));
    if (++digits > kMaxChunkDigits) {
      return Fail({400, "invalid_http", "A chunk size is too large."});
    }
  }
  const std::string_view extension = line.substr(digits);
  const bool clean = std::all_of(extension.begin(), extension.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 && byte != 0x7F;
  });
  if (digits == 0 || !clean || (!extension.empty() && extension.front() != ';')) {
    return Fail({400, "invalid_http", "A chunk size is not a hexadecimal number."});
  }
  if (size == 0) {
    field_bytes_ = 0;
    state_ = State::kTrailers;
    return std::nullopt;
  }
  if (size > limits_.max_body_bytes - body_bytes_) {
    return Fail({413, "request_too_large", "The request body is too large."});
  }
  remaining_bytes_ = size;
  state_ = State::kChunkData;
  return std::nullopt;
}

RequestParser::Step RequestParser::StepData(std::string_view rest, size_t* used) {
  const auto take = static_cast<size_t>(std::min<uint64_t>(rest.size(), remaining_bytes_));
  if (!discard_body_) {
    body_.append(rest.substr(0, take));
  }
  *used = take;
  body_bytes_ += take;
  remaining_bytes_ -= take;
  if (remaining_bytes_ > 0) {
    return Event::kNeedMore;
  }
  if (state_ == State::kFixedBody) {
    return Complete();
  }
  state_ = State::kChunkEnd;
  return std::nullopt;
}

}  // namespace spindle::server
