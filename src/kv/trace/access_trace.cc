#include "kv/trace/access_trace.h"

#include <array>
#include <utility>

#include "base/status_macros.h"
#include "kv/disk/crc32c.h"
#include "kv/trace/access_trace_format.h"

namespace spindle::kv {
namespace {

using disk::GetAt;
using disk::PutAt;

// Records are passed on when so many bytes have gathered.
constexpr size_t kBlockBytes = size_t{1} << 16;
static_assert(kBlockBytes + AccessTraceWriter::kMaxEncodedBytes <= kMaxBlockPayloadBytes);

absl::Status ValidateTrace(const AccessTraceHeader& header, uint64_t max_bytes) {
  SPINDLE_RETURN_IF_ERROR(ValidateAccessHeader(header));
  if (max_bytes < kMinAccessTraceBytes || max_bytes > kMaxAccessTraceBytes) {
    return absl::InvalidArgumentError(
        "size of a page-access trace must be in 65536..1073741824 bytes, got " +
        std::to_string(max_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

bool LooksLikeAccessTrace(std::span<const uint8_t> bytes) {
  return bytes.size() >= sizeof(disk::Magic) && GetAt<disk::Magic>(bytes, 0) == kAccessTraceMagic;
}

AccessTraceWriter::AccessTraceWriter(std::unique_ptr<TraceSink> sink, uint64_t max_bytes)
    : sink_(std::move(sink)), max_bytes_(max_bytes) {
  block_.reserve(kBlockBytes + kMaxEncodedBytes);
  block_.resize(kAccessBlockHeaderBytes);
}

absl::StatusOr<std::unique_ptr<AccessTraceWriter>> AccessTraceWriter::Create(
    const std::string& path, const AccessTraceHeader& header, uint64_t max_bytes) {
  SPINDLE_RETURN_IF_ERROR(ValidateTrace(header, max_bytes));
  SPINDLE_ASSIGN_OR_RETURN(std::unique_ptr<TraceSink> file, TraceFile::Create(path));
  return Create(std::move(file), header, max_bytes);
}

absl::StatusOr<std::unique_ptr<AccessTraceWriter>> AccessTraceWriter::Create(
    std::unique_ptr<TraceSink> sink, const AccessTraceHeader& header, uint64_t max_bytes) {
  SPINDLE_RETURN_IF_ERROR(ValidateTrace(header, max_bytes));
  std::array<uint8_t, kAccessHeaderBytes> bytes;
  EncodeAccessHeader(header, bytes);
  SPINDLE_RETURN_IF_ERROR(sink->Write(bytes));
  std::unique_ptr<AccessTraceWriter> writer(new AccessTraceWriter(std::move(sink), max_bytes));
  writer->written_bytes_ = bytes.size();
  return writer;
}

absl::Status AccessTraceWriter::WriteBlock(uint32_t flags) {
  const auto payload_bytes = static_cast<uint32_t>(block_.size() - kAccessBlockHeaderBytes);
  PutAt<uint32_t>(block_, 0, kAccessBlockMagic);
  PutAt<uint32_t>(block_, 4, payload_bytes);
  PutAt<uint32_t>(block_, 8, num_records_);
  PutAt<uint32_t>(block_, 12, flags);
  const uint32_t crc = disk::Crc32c(block_);
  block_.resize(block_.size() + sizeof(crc));
  PutAt<uint32_t>(block_, block_.size() - sizeof(crc), crc);
  absl::Status status = sink_->Write(block_);
  if (status.ok()) {
    written_bytes_ += block_.size();
    num_kept_records_ += num_records_;
  } else {
    num_dropped_records_ += num_records_;
  }
  block_.resize(kAccessBlockHeaderBytes);
  num_records_ = 0;
  if (absl::IsResourceExhausted(status)) {
    return absl::OkStatus();  // the last block will say so
  }
  is_open_ = status.ok();
  return status;
}

absl::Status AccessTraceWriter::Append(const AccessRecord& record) {
  if (!is_recording()) {
    ++num_dropped_records_;
    return absl::OkStatus();
  }
  record_.clear();
  EncodeAccessRecord(record, &record_);
  return AppendEncoded(record_, 1);
}

absl::Status AccessTraceWriter::AppendEncoded(std::span<const uint8_t> bytes,
                                              uint32_t num_records) {
  SPINDLE_CHECK(bytes.size() <= kMaxEncodedBytes);
  // This block and a last, empty one must fit.
  const uint64_t needed = block_.size() + bytes.size() + sizeof(uint32_t) + kAccessBlockMinBytes;
  if (!is_recording() || written_bytes_ + needed > max_bytes_) {
    num_dropped_records_ += num_records;
    return absl::OkStatus();
  }
  block_.insert(block_.end(), bytes.begin(), bytes.end());
  num_records_ += num_records;
  return block_.size() < kBlockBytes ? absl::OkStatus() : WriteBlock(0);
}

absl::Status AccessTraceWriter::Finish() {
  if (!is_open_) {
    return absl::OkStatus();
  }
  const uint64_t num_dropped = num_dropped_records_;
  absl::Status status = WriteBlock(num_dropped > 0 ? kLastBlock | kCutByLimit : kLastBlock);
  if (status.ok() && num_dropped_records_ > num_dropped) {
    status = WriteBlock(kLastBlock | kCutByLimit);  // no room for the records, but for the mark
  }
  is_open_ = false;
  return status;
}

absl::StatusOr<AccessTraceReader> AccessTraceReader::Open(std::span<const uint8_t> bytes) {
  SPINDLE_ASSIGN_OR_RETURN(AccessTraceHeader header, DecodeAccessHeader(bytes));
  AccessTraceReader reader(bytes.subspan(kAccessHeaderBytes), std::move(header));
  reader.total_bytes_ = bytes.size();
  return reader;
}

absl::Status AccessTraceReader::Damaged(const char* what) const {
  return absl::DataLossError("page-access trace: " + std::string(what) + " before byte " +
                             std::to_string(total_bytes_ - rest_.size()));
}

absl::StatusOr<bool> AccessTraceReader::NextBlock() {
  if (ending_ != Ending::kNotReached) {
    return false;
  }
  if (rest_.size() < kAccessBlockMinBytes) {
    ending_ = Ending::kTorn;
    return false;
  }
  const auto payload_bytes = GetAt<uint32_t>(rest_, 4);
  const auto flags = GetAt<uint32_t>(rest_, 12);
  if (GetAt<uint32_t>(rest_, 0) != kAccessBlockMagic || payload_bytes > kMaxBlockPayloadBytes ||
      (flags & ~uint32_t{kKnownBlockFlags}) != 0 || flags == kCutByLimit) {
    return Damaged("no block of records");
  }
  const size_t body_bytes = kAccessBlockHeaderBytes + payload_bytes;
  if (rest_.size() < body_bytes + sizeof(uint32_t)) {
    ending_ = Ending::kTorn;
    return false;
  }
  records_left_ = GetAt<uint32_t>(rest_, 8);
  block_ = rest_.subspan(kAccessBlockHeaderBytes, payload_bytes);
  const bool is_whole = GetAt<uint32_t>(rest_, body_bytes) == disk::Crc32c(rest_.first(body_bytes));
  rest_ = rest_.subspan(body_bytes + sizeof(uint32_t));
  if (!is_whole) {
    return Damaged("wrong checksum");
  }
  if ((flags & kLastBlock) != 0) {
    ending_ = (flags & kCutByLimit) != 0 ? Ending::kLimit : Ending::kWhole;
    if (!rest_.empty()) {
      return Damaged("more behind the last block");
    }
  }
  return true;
}

absl::StatusOr<bool> AccessTraceReader::Next(AccessRecord* record) {
  while (records_left_ == 0) {
    if (!block_.empty()) {
      return Damaged("fewer records than bytes");
    }
    SPINDLE_ASSIGN_OR_RETURN(const bool found, NextBlock());
    if (!found) {
      return false;
    }
  }
  if (!DecodeAccessRecord(header_.geometry, &block_, &ids_, record) || record->step < last_step_) {
    return Damaged("a record that is none");
  }
  last_step_ = record->step;
  --records_left_;
  return true;
}

}  // namespace spindle::kv
