#include "kv/sim/access_trace.h"

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>

#include "base/status_macros.h"
#include "kv/disk/crc32c.h"
#include "kv/sim/access_trace_format.h"

namespace spindle::kv::sim {
namespace {

using disk::GetAt;
using disk::PutAt;

// Records are written when so many bytes have gathered.
constexpr size_t kBlockBytes = size_t{1} << 16;

absl::Status FileError(const char* what) {
  return absl::UnavailableError(std::string("page-access trace: ") + what + ": " +
                                std::generic_category().message(errno));
}

absl::Status WriteAll(int fd, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return FileError("write");
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

}  // namespace

bool LooksLikeAccessTrace(std::span<const uint8_t> bytes) {
  return bytes.size() >= sizeof(disk::Magic) && GetAt<disk::Magic>(bytes, 0) == kAccessTraceMagic;
}

AccessTraceWriter::AccessTraceWriter(int fd, uint64_t max_bytes)
    : file_(fd), max_bytes_(max_bytes), block_(kAccessBlockHeaderBytes) {}

absl::StatusOr<std::unique_ptr<AccessTraceWriter>> AccessTraceWriter::Create(
    const std::string& path, const AccessTraceHeader& header, uint64_t max_bytes) {
  SPINDLE_RETURN_IF_ERROR(ValidateAccessHeader(header));
  if (max_bytes < kMinAccessTraceBytes || max_bytes > kMaxAccessTraceBytes) {
    return absl::InvalidArgumentError(
        "size of a page-access trace must be in 65536..1073741824 bytes, got " +
        std::to_string(max_bytes));
  }
  constexpr mode_t kOwnerOnly = 0600;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kOwnerOnly);
  if (fd < 0) {
    return errno == EEXIST ? absl::AlreadyExistsError(path + " exists") : FileError(path.c_str());
  }
  std::unique_ptr<AccessTraceWriter> writer(new AccessTraceWriter(fd, max_bytes));
  std::array<uint8_t, kAccessHeaderBytes> bytes;
  EncodeAccessHeader(header, bytes);
  SPINDLE_RETURN_IF_ERROR(WriteAll(fd, bytes));
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
  const absl::Status status = WriteAll(file_.get(), block_);
  written_bytes_ += block_.size();
  block_.resize(kAccessBlockHeaderBytes);
  num_records_ = 0;
  is_open_ = status.ok();
  return status;
}

absl::Status AccessTraceWriter::Append(const AccessRecord& record) {
  if (!is_open_) {
    ++num_dropped_records_;
    return absl::OkStatus();
  }
  record_.clear();
  EncodeAccessRecord(record, &record_);
  // This block and a last, empty one must fit.
  const uint64_t needed = block_.size() + record_.size() + sizeof(uint32_t) + kAccessBlockMinBytes;
  if (written_bytes_ + needed > max_bytes_ || num_dropped_records_ > 0) {
    ++num_dropped_records_;
    return absl::OkStatus();
  }
  block_.insert(block_.end(), record_.begin(), record_.end());
  ++num_records_;
  return block_.size() < kBlockBytes ? absl::OkStatus() : WriteBlock(0);
}

absl::Status AccessTraceWriter::Finish() {
  if (!is_open_) {
    return absl::OkStatus();
  }
  const absl::Status status =
      WriteBlock(num_dropped_records_ > 0 ? kLastBlock | kCutByLimit : kLastBlock);
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

}  // namespace spindle::kv::sim
