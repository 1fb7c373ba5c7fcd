#include "kv/disk/disk_options.h"

#include "absl/status/status.h"

namespace spindle::kv::disk {
namespace {

constexpr uint64_t kSmallestSegment = uint64_t{64} << 10;
constexpr uint64_t kLargestSegment = uint64_t{1} << 30;

absl::Status Range(const char* option, const char* range) {
  return absl::InvalidArgumentError(std::string("disk tier: ") + option + " must be " + range);
}

}  // namespace

absl::Status ValidateOptions(const DiskOptions& options) {
  if (options.path.empty()) {
    return Range("path", "a folder");
  }
  if (options.segment_bytes < kSmallestSegment || options.segment_bytes > kLargestSegment ||
      options.segment_bytes % kAlignment != 0) {
    return Range("segment_bytes", "64 KiB..1 GiB, a multiple of 4 KiB");
  }
  if (options.capacity_bytes < 2 * options.segment_bytes) {
    return Range("capacity_bytes", "at least two segments");
  }
  if (!(options.min_free_fraction >= 0.0 && options.min_free_fraction < 1.0)) {
    return Range("min_free_fraction", "in [0, 1)");
  }
  if (!(options.low_watermark > 0.0 && options.low_watermark < options.high_watermark &&
        options.high_watermark <= 1.0)) {
    return Range("watermarks", "0 < low < high <= 1");
  }
  if (options.max_stores == 0 || options.max_stores > 32768 || options.max_loads == 0 ||
      options.max_loads > 32768) {
    return Range("max_stores and max_loads", "in 1..32768");
  }
  if (options.read_depth == 0 || options.read_depth > 1024 || options.write_depth == 0 ||
      options.write_depth > 1024) {
    return Range("read_depth and write_depth", "in 1..1024");
  }
  if (options.max_errors == 0 || options.max_errors > 64) {
    return Range("max_errors", "in 1..64");
  }
  if (options.probe_wait <= Duration::zero() || options.probe_wait > options.max_probe_wait) {
    return Range("probe_wait", "above 0 and at most max_probe_wait");
  }
  return absl::OkStatus();
}

std::string_view StateName(TierState state) {
  switch (state) {
    case TierState::kOk:
      return "ok";
    case TierState::kReadOnly:
      return "readonly";
    case TierState::kDegraded:
      return "degraded";
    case TierState::kOff:
      return "off";
  }
  return "?";
}

std::string_view LoadFailureName(LoadFailure cause) {
  switch (cause) {
    case LoadFailure::kNotFound:
      return "not_found";
    case LoadFailure::kIo:
      return "io";
    case LoadFailure::kShort:
      return "short";
    case LoadFailure::kHeader:
      return "header";
    case LoadFailure::kMismatch:
      return "mismatch";
    case LoadFailure::kPayload:
      return "payload";
    case LoadFailure::kMissing:
      return "missing";
    case LoadFailure::kDeadline:
      return "deadline";
    case LoadFailure::kCancelled:
      return "cancelled";
    case LoadFailure::kBusy:
      return "busy";
    case LoadFailure::kOff:
      return "off";
  }
  return "?";
}

std::string_view StoreSkipName(StoreSkip cause) {
  switch (cause) {
    case StoreSkip::kPresent:
      return "present";
    case StoreSkip::kBackpressure:
      return "backpressure";
    case StoreSkip::kNoSpace:
      return "nospace";
    case StoreSkip::kIo:
      return "io";
    case StoreSkip::kOff:
      return "off";
  }
  return "?";
}

std::string_view DeviceErrorOp(DeviceError error) {
  switch (error) {
    case DeviceError::kRead:
    case DeviceError::kReadDamage:
      return "read";
    case DeviceError::kWrite:
    case DeviceError::kWriteFull:
      return "write";
    case DeviceError::kOpen:
      return "open";
    case DeviceError::kSync:
      return "sync";
    case DeviceError::kLog:
    case DeviceError::kLogFull:
      return "log";
    case DeviceError::kUnlink:
      return "unlink";
    case DeviceError::kProbe:
      return "probe";
    case DeviceError::kSpace:
      return "space";
  }
  return "?";
}

std::string_view DeviceErrorCause(DeviceError error) {
  switch (error) {
    case DeviceError::kReadDamage:
      return "damage";
    case DeviceError::kWriteFull:
    case DeviceError::kLogFull:
      return "nospace";
    default:
      return "io";
  }
}

}  // namespace spindle::kv::disk
