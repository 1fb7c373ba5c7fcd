// The system calls of the disk tier behind two small interfaces, so that tests can plug in faults
// and simulate crashes. Positioned, vectored, possibly short: callers loop (io_queue.h does).
// Thread-safety: thread-safe; one DiskFile may be read and written by several threads at once.
//
// Every error names the file, and the offset where there is one. Codes: kNotFound (no such file),
// kAlreadyExists, kResourceExhausted (no space, quota), kPermissionDenied, kFailedPrecondition
// (locked by somebody else), kUnavailable (everything else, for example EIO).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <sys/uio.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace spindle::kv::disk {

// Unit of offsets, lengths and addresses of direct I/O, and of all records.
inline constexpr uint64_t kAlignment = 4096;

[[nodiscard]] inline constexpr uint64_t RoundUp(uint64_t bytes, uint64_t unit = kAlignment) {
  return (bytes + unit - 1) / unit * unit;
}

// Times that a transfer may come back short, and is continued, before it counts as failed.
inline constexpr uint32_t kMaxRetries = 3;

// One transfer takes at most this many parts.
inline constexpr size_t kMaxParts = 4;

class DiskFile {
 public:
  explicit DiskFile(std::string path) : path_(std::move(path)) {}

  virtual ~DiskFile() = default;
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  // Bytes transferred, possibly fewer than asked; a read returns 0 only at the end of the file.
  // With a direct file offset, addresses and lengths are multiples of 4 KiB.
  // REQUIRES: 1 … kMaxParts parts.
  [[nodiscard]] virtual absl::StatusOr<size_t> ReadAt(uint64_t offset,
                                                      std::span<const iovec> parts) = 0;
  [[nodiscard]] virtual absl::StatusOr<size_t> WriteAt(uint64_t offset,
                                                       std::span<const iovec> parts) = 0;

  // Content and length are durable afterwards (fdatasync).
  [[nodiscard]] virtual absl::Status Sync() = 0;

  [[nodiscard]] virtual absl::StatusOr<uint64_t> Size() = 0;

  // The open file of the system for io_uring, or -1: then only the calls above can be used.
  [[nodiscard]] virtual int descriptor() const { return -1; }

  // Reads and writes go past the page cache.
  [[nodiscard]] virtual bool direct() const { return false; }

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

// Held while it exists; the system releases it when the process dies.
class DiskLock {
 public:
  virtual ~DiskLock() = default;
};

struct DirectoryEntry {
  std::string name;
  bool is_directory = false;
  uint64_t bytes = 0;            // length
  uint64_t allocated_bytes = 0;  // on the device
};

struct FreeSpaceInfo {
  uint64_t free_bytes = 0;  // to an unprivileged process
  uint64_t total_bytes = 0;
};

enum class OpenMode : uint8_t {
  kRead,    // must exist
  kWrite,   // must exist; read and write
  kCreate,  // must not exist; read and write, mode 0600
};

class DiskFiles {
 public:
  virtual ~DiskFiles() = default;

  // `direct` asks for I/O past the page cache; where the file system refuses, the file is opened
  // buffered, which direct() tells.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<DiskFile>> Open(const std::string& path,
                                                                       OpenMode mode,
                                                                       bool direct) = 0;

  // Unsorted, without "." and "..". Names that vanish meanwhile are left out.
  [[nodiscard]] virtual absl::StatusOr<std::vector<DirectoryEntry>> List(
      const std::string& directory) = 0;

  // Mode 0700, with missing parents; no error if it exists.
  [[nodiscard]] virtual absl::Status MakeDirectory(const std::string& directory) = 0;

  // Names in `directory` are durable afterwards.
  [[nodiscard]] virtual absl::Status SyncDirectory(const std::string& directory) = 0;

  // Replaces `to`.
  [[nodiscard]] virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;

  [[nodiscard]] virtual absl::Status Unlink(const std::string& path) = 0;

  [[nodiscard]] virtual absl::StatusOr<FreeSpaceInfo> FreeSpace(const std::string& directory) = 0;

  // Takes the lock file, creating it, and writes this process's id into it. Does not block.
  // ERRORS: kFailedPrecondition naming the process that holds it.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<DiskLock>> Lock(const std::string& path) = 0;

  // Bytes that no other store has: its identity.
  [[nodiscard]] virtual std::array<uint8_t, 16> UniqueId() = 0;

  // Open files have a descriptor().
  [[nodiscard]] virtual bool has_descriptors() const { return false; }
};

// The file systems of this host. Lives as long as the process.
[[nodiscard]] DiskFiles& SystemFiles();

// Blocking helpers over DiskFile; short transfers are continued. ERRORS: kDataLoss when the file
// ends before `bytes` are read; kUnavailable when three attempts in a row transfer only a part.
[[nodiscard]] absl::Status ReadFully(DiskFile& file, uint64_t offset, std::span<uint8_t> bytes);
[[nodiscard]] absl::Status WriteFully(DiskFile& file,
                                      uint64_t offset,
                                      std::span<const uint8_t> bytes);

// The parts behind the first `done` bytes of `parts`; returns how many parts there are.
// REQUIRES: done < bytes of all parts.
size_t SkipParts(std::span<const iovec> parts, size_t done, std::span<iovec> rest);

// Status of a failed system call; see above for the codes.
[[nodiscard]] absl::Status ErrnoStatus(int error, const std::string& what);

// "path at offset N", for messages.
[[nodiscard]] std::string At(const std::string& path, uint64_t offset);

}  // namespace spindle::kv::disk
