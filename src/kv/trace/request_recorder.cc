#include "kv/trace/request_recorder.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/prefix_key.h"
#include "base/status_macros.h"

namespace spindle::kv {
namespace {

constexpr size_t kUnitStripes = kTraceUnitTokens / kStripeTokens;
// Numbers up to here are exact in every reader of JSON.
constexpr uint32_t kUnitIdBits = 53;
// The longest last line of a trace that was cut.
constexpr uint64_t kCutLineBytes = 128;
constexpr size_t kTenantDigits = 8;
// Number of requests that are not held.
constexpr uint64_t kDropped = std::numeric_limits<uint64_t>::max();

uint64_t FirstBits(const Digest& digest) {
  uint64_t bits = 0;
  std::memcpy(&bits, digest.data(), sizeof(bits));
  return bits >> (64 - kUnitIdBits);
}

// From -100 … 100, lower first, to 0 … 100, higher first.
int32_t TracePriority(int32_t priority) {
  return (100 - priority) / 2;
}

}  // namespace

RequestRecorder::RequestRecorder(std::unique_ptr<TraceSink> sink,
                                 const Limits& limits,
                                 const Digest& secret,
                                 TimePoint start)
    : sink_(std::move(sink)), limits_(limits), secret_(secret), start_(start) {}

std::vector<uint64_t> RequestRecorder::UnitIds(const Digest& root,
                                               std::span<const Digest> keys,
                                               std::span<const TokenId> tail) const {
  SPINDLE_CHECK(tail.size() < kStripeTokens);
  std::vector<uint64_t> ids;
  ids.reserve(keys.size() / kUnitStripes + 1);
  for (size_t end = kUnitStripes; end <= keys.size(); end += kUnitStripes) {
    ids.push_back(FirstBits(Sha256().Bytes(secret_).Bytes(keys[end - 1]).Finish()));
  }
  if (keys.size() % kUnitStripes != 0 || !tail.empty()) {
    Sha256 hash;
    hash.Bytes(secret_).Bytes(keys.empty() ? root : keys.back()).Number(tail.size());
    for (const TokenId token : tail) {
      hash.Number(static_cast<uint64_t>(token));
    }
    ids.push_back(FirstBits(hash.Finish()));
  }
  return ids;
}

uint64_t RequestRecorder::BytesOf(const Held& held) {
  return sizeof(Held) + held.tenant.size() + held.unit_ids.size() * sizeof(uint64_t);
}

std::string RequestRecorder::TenantName(std::string_view tenant) const {
  if (tenant.empty()) {
    return {};
  }
  const Digest digest = Sha256().Bytes(secret_).Field("tenant").Field(tenant).Finish();
  return "t" + ToHex(digest).substr(0, kTenantDigits);
}

uint64_t RequestRecorder::Begin(ArrivedRequest request) {
  const int64_t since_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(request.at - start_).count();
  last_timestamp_ms_ =
      std::max(last_timestamp_ms_, static_cast<uint64_t>(std::max<int64_t>(since_ms, 0)));
  Held held{.timestamp_ms = last_timestamp_ms_,
            .input_tokens = request.input_tokens,
            .priority = request.priority,
            .tenant = TenantName(request.tenant),
            .unit_ids = std::move(request.unit_ids)};
  const uint64_t bytes = BytesOf(held);
  if (num_dropped_ > 0 || held_bytes_ + bytes > limits_.max_held_bytes) {
    ++num_dropped_;
    return kDropped;
  }
  held_bytes_ += bytes;
  held_.push_back(std::move(held));
  return first_number_ + held_.size() - 1;
}

void RequestRecorder::End(uint64_t number, uint64_t output_tokens) {
  if (number == kDropped) {
    return;
  }
  Held& held = held_[number - first_number_];
  SPINDLE_CHECK(!held.has_ended);
  held.has_ended = true;
  held.output_tokens = output_tokens;
  WriteEnded();
}

void RequestRecorder::WriteEnded() {
  for (; !held_.empty() && held_.front().has_ended; held_.pop_front()) {
    const bool written = Write(held_.front());
    num_kept_ += written ? 1U : 0U;
    num_dropped_ += written ? 0U : 1U;
    held_bytes_ -= BytesOf(held_.front());
    ++first_number_;
  }
}

bool RequestRecorder::Write(const Held& held) {
  line_.clear();
  const auto out = std::back_inserter(line_);
  fmt::format_to(out,
                 R"({{"timestamp": {}, "input_length": {}, "output_length": {}, "hash_ids": [{}])",
                 held.timestamp_ms,
                 held.input_tokens,
                 held.output_tokens,
                 fmt::join(held.unit_ids, ", "));
  if (!held.tenant.empty()) {
    fmt::format_to(out, R"(, "tenant": "{}")", held.tenant);
  }
  fmt::format_to(out, R"(, "priority": {}}})", TracePriority(held.priority));
  line_ += '\n';
  if (is_cut_ || file_bytes_ + line_.size() + kCutLineBytes > limits_.max_file_bytes ||
      !sink_->Write({reinterpret_cast<const uint8_t*>(line_.data()), line_.size()}).ok()) {
    is_cut_ = true;
    return false;
  }
  file_bytes_ += line_.size();
  return true;
}

void RequestRecorder::Finish() {
  WriteEnded();
  if (num_dropped_ == 0) {
    return;
  }
  line_ = fmt::format(
      R"({{"timestamp": {}, "input_length": 0, "output_length": 0, "hash_ids": [], "cut": true}})"
      "\n",
      last_timestamp_ms_);
  SPINDLE_DCHECK(line_.size() <= kCutLineBytes);
  // An error has been logged by the sink.
  sink_->Write({reinterpret_cast<const uint8_t*>(line_.data()), line_.size()}).IgnoreError();
}

}  // namespace spindle::kv
