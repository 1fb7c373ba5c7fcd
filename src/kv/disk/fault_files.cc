#include "kv/disk/fault_files.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/status_macros.h"
#include "kv/disk/aligned_buffer.h"

namespace spindle::kv::disk {
namespace {

uint64_t TotalBytes(std::span<const iovec> parts) {
  uint64_t bytes = 0;
  for (const iovec& part : parts) {
    bytes += part.iov_len;
  }
  return bytes;
}

// The first whole units of the transfer, at least one and not all; empty if there is only one.
size_t CutParts(std::span<const iovec> parts, uint64_t random, std::array<iovec, kMaxParts>* cut) {
  const uint64_t units = TotalBytes(parts) / kAlignment;
  if (units < 2) {
    return 0;
  }
  uint64_t left = (1 + random % (units - 1)) * kAlignment;
  size_t count = 0;
  for (const iovec& part : parts) {
    if (left == 0) {
      break;
    }
    const uint64_t taken = std::min<uint64_t>(left, part.iov_len);
    (*cut)[count++] = {part.iov_base, taken};
    left -= taken;
  }
  return count;
}

void FlipBit(std::span<const iovec> parts, uint64_t bytes, uint64_t random) {
  uint64_t bit = random % (bytes * 8);
  for (const iovec& part : parts) {
    if (bit < part.iov_len * 8) {
      static_cast<uint8_t*>(part.iov_base)[bit / 8] ^= static_cast<uint8_t>(1U << bit % 8);
      return;
    }
    bit -= part.iov_len * 8;
  }
}

}  // namespace

class FaultFile final : public DiskFile {
 public:
  FaultFile(FaultFiles& files, std::unique_ptr<DiskFile> below)
      : DiskFile(below->path()), files_(files), below_(std::move(below)) {}

  absl::StatusOr<size_t> ReadAt(uint64_t offset, std::span<const iovec> parts) override {
    const FaultFiles::Decision decision = files_.DecideRead(path(), TotalBytes(parts));
    if (decision.fault == FaultFiles::Fault::kError) {
      return ErrnoStatus(EIO, At(path(), offset));
    }
    std::array<iovec, kMaxParts> cut;
    if (decision.fault == FaultFiles::Fault::kShort) {
      const size_t count = CutParts(parts, decision.random, &cut);
      return below_->ReadAt(offset, std::span(cut).first(count));
    }
    SPINDLE_ASSIGN_OR_RETURN(const size_t moved, below_->ReadAt(offset, parts));
    if (decision.fault == FaultFiles::Fault::kFlip && moved > 0) {
      FlipBit(parts, moved, decision.random);
    }
    return moved;
  }

  absl::StatusOr<size_t> WriteAt(uint64_t offset, std::span<const iovec> parts) override {
    const FaultFiles::Decision decision = files_.DecideWrite(path(), TotalBytes(parts));
    std::array<iovec, kMaxParts> cut;
    const size_t count = CutParts(parts, decision.random, &cut);
    switch (decision.fault) {
      case FaultFiles::Fault::kNone:
        return below_->WriteAt(offset, parts);
      case FaultFiles::Fault::kShort:
        return below_->WriteAt(offset, std::span(cut).first(count));
      case FaultFiles::Fault::kError:
      case FaultFiles::Fault::kNoSpace:
        if (count > 0) {
          // The device did a part of it before it failed.
          below_->WriteAt(offset, std::span(cut).first(count)).IgnoreError();
        }
        return ErrnoStatus(decision.fault == FaultFiles::Fault::kError ? EIO : ENOSPC,
                           At(path(), offset));
      case FaultFiles::Fault::kFlip:
        return WriteFlipped(offset, parts, decision.random);
    }
    return 0;
  }

  absl::Status Sync() override {
    return files_.DecideSync(path()) ? ErrnoStatus(EIO, "fdatasync " + path()) : below_->Sync();
  }

  absl::StatusOr<uint64_t> Size() override { return below_->Size(); }

  [[nodiscard]] bool direct() const override { return below_->direct(); }

 private:
  // The caller's memory must not change: the flip goes into a copy.
  absl::StatusOr<size_t> WriteFlipped(uint64_t offset,
                                      std::span<const iovec> parts,
                                      uint64_t random) {
    const uint64_t bytes = TotalBytes(parts);
    const AlignedBuffer copy(bytes);
    uint8_t* out = copy.data();
    for (const iovec& part : parts) {
      const auto* in = static_cast<const uint8_t*>(part.iov_base);
      out = std::copy(in, in + part.iov_len, out);
    }
    const iovec part{copy.data(), bytes};
    FlipBit({&part, 1}, bytes, random);
    return below_->WriteAt(offset, {&part, 1});
  }

  FaultFiles& files_;
  const std::unique_ptr<DiskFile> below_;
};

void FaultFiles::SetRates(const FaultRates& rates) {
  MutexLock lock(mutex_);
  rates_ = rates;
}

FaultCounts FaultFiles::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

bool FaultFiles::Exempt(const std::string& path) const {
  return rates_.segments_only && !path.ends_with(".kv");
}

// SplitMix64.
uint64_t FaultFiles::Next() {
  random_ += 0x9e3779b97f4a7c15;
  uint64_t mixed = random_;
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
  return mixed ^ mixed >> 31;
}

bool FaultFiles::Chance(double probability) {
  return static_cast<double>(Next() >> 11) < probability * 0x1p53;
}

FaultFiles::Decision FaultFiles::DecideRead(const std::string& path, uint64_t bytes) {
  MutexLock lock(mutex_);
  if (Exempt(path)) {
    return {};
  }
  if (Chance(rates_.read_error)) {
    ++counts_.read_errors;
    return {Fault::kError, Next()};
  }
  if (bytes >= 2 * kAlignment && Chance(rates_.short_read)) {
    ++counts_.short_reads;
    return {Fault::kShort, Next()};
  }
  if (Chance(rates_.flip)) {
    ++counts_.read_flips;
    return {Fault::kFlip, Next()};
  }
  return {};
}

FaultFiles::Decision FaultFiles::DecideWrite(const std::string& path, uint64_t bytes) {
  MutexLock lock(mutex_);
  if (Exempt(path)) {
    return {};
  }
  if (Chance(rates_.write_error)) {
    ++counts_.write_errors;
    return {Fault::kError, Next()};
  }
  if (Chance(rates_.no_space)) {
    ++counts_.no_space;
    return {Fault::kNoSpace, Next()};
  }
  if (bytes >= 2 * kAlignment && Chance(rates_.short_write)) {
    ++counts_.short_writes;
    return {Fault::kShort, Next()};
  }
  if (Chance(rates_.flip)) {
    ++counts_.write_flips;
    return {Fault::kFlip, Next()};
  }
  return {};
}

bool FaultFiles::DecideSync(const std::string& path) {
  MutexLock lock(mutex_);
  if (Exempt(path) || !Chance(rates_.sync_error)) {
    return false;
  }
  ++counts_.sync_errors;
  return true;
}

absl::Status FaultFiles::Unlink(const std::string& path) {
  {
    MutexLock lock(mutex_);
    if (!Exempt(path) && Chance(rates_.unlink_error)) {
      ++counts_.unlink_errors;
      return ErrnoStatus(EPERM, path);
    }
  }
  return below_.Unlink(path);
}

absl::StatusOr<std::unique_ptr<DiskFile>> FaultFiles::Open(const std::string& path,
                                                           OpenMode mode,
                                                           bool direct) {
  SPINDLE_ASSIGN_OR_RETURN(std::unique_ptr<DiskFile> file, below_.Open(path, mode, direct));
  return std::make_unique<FaultFile>(*this, std::move(file));
}

}  // namespace spindle::kv::disk
