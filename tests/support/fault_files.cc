#include "support/fault_files.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/status_macros.h"
#include "kv/disk/aligned_buffer.h"
#include "kv/disk/store_directory.h"

namespace spindle::test {

using kv::disk::AlignedBuffer;
using kv::disk::At;
using kv::disk::DiskFile;
using kv::disk::DiskFiles;
using kv::disk::ErrnoStatus;
using kv::disk::kAlignment;
using kv::disk::kMaxParts;
using kv::disk::OpenMode;

namespace {

FileClass ClassOf(const std::string& path) {
  return path.ends_with(".kv")                  ? FileClass::kSegment
         : path.ends_with(kv::disk::kProbeName) ? FileClass::kProbe
                                                : FileClass::kLog;
}

// A device that does not answer for a while.
void WaitReally(Duration duration) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(mutex);
  const TimePoint end = SteadyClock().Now() + duration;
  while (never.WaitUntil(mutex, end)) {
  }
}

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

// Returns the place of the byte.
uint64_t FlipBit(std::span<const iovec> parts, uint64_t bytes, uint64_t random) {
  const uint64_t place = random % bytes;
  uint64_t rest = place;
  for (const iovec& part : parts) {
    if (rest < part.iov_len) {
      static_cast<uint8_t*>(part.iov_base)[rest] ^= static_cast<uint8_t>(1U << (random >> 61));
      break;
    }
    rest -= part.iov_len;
  }
  return place;
}

}  // namespace

class FaultFile final : public DiskFile {
 public:
  FaultFile(FaultFiles& files, std::unique_ptr<DiskFile> below)
      : DiskFile(below->path()), class_(ClassOf(path())), files_(files), below_(std::move(below)) {}

  absl::StatusOr<size_t> ReadAt(uint64_t offset, std::span<const iovec> parts) override {
    const FaultFiles::Decision decision = files_.DecideRead(class_, TotalBytes(parts));
    files_.Stall(decision.stall);
    if (decision.fault == FaultFiles::Fault::kError) {
      return ErrnoStatus(EIO, At(path(), offset));
    }
    std::array<iovec, kMaxParts> cut;
    if (decision.fault == FaultFiles::Fault::kShort) {
      parts = std::span(cut).first(CutParts(parts, decision.random, &cut));
    }
    SPINDLE_ASSIGN_OR_RETURN(const size_t moved, below_->ReadAt(offset, parts));
    const bool flips = decision.fault == FaultFiles::Fault::kFlip && moved > 0;
    if (flips) {
      FlipBit(parts, moved, decision.random);
    }
    files_.NoteRead(path(), offset, moved, flips);
    return moved;
  }

  absl::StatusOr<size_t> WriteAt(uint64_t offset, std::span<const iovec> parts) override {
    const FaultFiles::Decision decision = files_.DecideWrite(class_, TotalBytes(parts));
    files_.Stall(decision.stall);
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
    return files_.DecideSync(class_) ? ErrnoStatus(EIO, "fdatasync " + path()) : below_->Sync();
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
    const uint64_t place = FlipBit({&part, 1}, bytes, random);
    SPINDLE_ASSIGN_OR_RETURN(const size_t moved, below_->WriteAt(offset, {&part, 1}));
    if (place < moved) {
      files_.NoteFlip(path(), offset + place);
    }
    return moved;
  }

  const FileClass class_;
  FaultFiles& files_;
  const std::unique_ptr<DiskFile> below_;
};

uint64_t TotalFaults(const FaultCounts& counts) {
  uint64_t total = 0;
  for (const FaultField& field : kFaultFields) {
    total += counts.*field.count;
  }
  return total;
}

FaultFiles::FaultFiles(DiskFiles& below, uint64_t seed, std::function<void(Duration)> wait)
    : below_(below), wait_(wait ? std::move(wait) : &WaitReally), random_(seed) {}

void FaultFiles::SetRates(const FaultRates& rates) {
  MutexLock lock(mutex_);
  rates_ = rates;
}

FaultCounts FaultFiles::counts(FileClass file_class) const {
  MutexLock lock(mutex_);
  return counts_[static_cast<size_t>(file_class)];
}

FaultCounts FaultFiles::counts() const {
  FaultCounts sum;
  for (const FileClass file_class : {FileClass::kSegment, FileClass::kProbe, FileClass::kLog}) {
    const FaultCounts part = counts(file_class);
    for (const FaultField& field : kFaultFields) {
      sum.*field.count += part.*field.count;
    }
    sum.damaged_reads += part.damaged_reads;
  }
  return sum;
}

bool FaultFiles::Exempt(FileClass file_class) const {
  return rates_.spare_logs && file_class == FileClass::kLog;
}

FaultCounts& FaultFiles::CountsOf(FileClass file_class) {
  return counts_[static_cast<size_t>(file_class)];
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

FaultFiles::Decision FaultFiles::DecideRead(FileClass file_class, uint64_t bytes) {
  MutexLock lock(mutex_);
  Decision decision;
  if (Exempt(file_class)) {
    return decision;
  }
  FaultCounts& counts = CountsOf(file_class);
  if (Chance(rates_.read_stall)) {
    ++counts.read_stalls;
    decision.stall = rates_.stall;
  }
  decision.random = Next();
  if (Chance(rates_.read_error)) {
    ++counts.read_errors;
    decision.fault = Fault::kError;
  } else if (bytes >= 2 * kAlignment && Chance(rates_.short_read)) {
    ++counts.short_reads;
    decision.fault = Fault::kShort;
  } else if (Chance(rates_.flip)) {
    ++counts.read_flips;
    decision.fault = Fault::kFlip;
  }
  return decision;
}

FaultFiles::Decision FaultFiles::DecideWrite(FileClass file_class, uint64_t bytes) {
  MutexLock lock(mutex_);
  Decision decision;
  if (Exempt(file_class)) {
    return decision;
  }
  FaultCounts& counts = CountsOf(file_class);
  if (Chance(rates_.write_stall)) {
    ++counts.write_stalls;
    decision.stall = rates_.stall;
  }
  decision.random = Next();
  if (Chance(rates_.write_error)) {
    ++counts.write_errors;
    decision.fault = Fault::kError;
  } else if (Chance(rates_.no_space)) {
    ++counts.no_space;
    decision.fault = Fault::kNoSpace;
  } else if (bytes >= 2 * kAlignment && Chance(rates_.short_write)) {
    ++counts.short_writes;
    decision.fault = Fault::kShort;
  } else if (Chance(rates_.flip)) {
    ++counts.write_flips;
    decision.fault = Fault::kFlip;
  }
  return decision;
}

bool FaultFiles::DecideSync(FileClass file_class) {
  MutexLock lock(mutex_);
  if (Exempt(file_class) || !Chance(rates_.sync_error)) {
    return false;
  }
  ++CountsOf(file_class).sync_errors;
  return true;
}

void FaultFiles::Stall(Duration duration) {
  if (duration > Duration::zero()) {
    wait_(duration);
  }
}

void FaultFiles::NoteFlip(const std::string& path, uint64_t offset) {
  MutexLock lock(mutex_);
  flipped_[path].push_back(offset);
}

void FaultFiles::NoteRead(const std::string& path, uint64_t offset, uint64_t bytes, bool flipped) {
  MutexLock lock(mutex_);
  const auto found = flipped_.find(path);
  const bool damaged = flipped || (found != flipped_.end() &&
                                   std::ranges::any_of(found->second, [&](uint64_t place) {
                                     return place >= offset && place - offset < bytes;
                                   }));
  CountsOf(ClassOf(path)).damaged_reads += damaged ? 1 : 0;
}

absl::Status FaultFiles::Unlink(const std::string& path) {
  const FileClass file_class = ClassOf(path);
  {
    MutexLock lock(mutex_);
    if (!Exempt(file_class) && Chance(rates_.unlink_error)) {
      ++CountsOf(file_class).unlink_errors;
      return ErrnoStatus(EPERM, path);
    }
    flipped_.erase(path);
  }
  return below_.Unlink(path);
}

absl::StatusOr<std::unique_ptr<DiskFile>> FaultFiles::Open(const std::string& path,
                                                           OpenMode mode,
                                                           bool direct) {
  SPINDLE_ASSIGN_OR_RETURN(std::unique_ptr<DiskFile> file, below_.Open(path, mode, direct));
  return std::make_unique<FaultFile>(*this, std::move(file));
}

}  // namespace spindle::test
