#include "kv/disk/disk_files.h"

#include <array>
#include <cerrno>
#include <cstring>

#include "base/status_macros.h"

namespace spindle::kv::disk {
namespace {

// Transfers all of `bytes` by repeated calls of `transfer(offset, part)`.
template <typename Transfer>
absl::Status Repeat(
    const std::string& path, uint64_t offset, uint8_t* bytes, size_t size, Transfer transfer) {
  size_t done = 0;
  for (uint32_t attempt = 0; done < size; ++attempt) {
    if (attempt > kMaxRetries) {
      return absl::UnavailableError(At(path, offset) + ": only " + std::to_string(done) + " of " +
                                    std::to_string(size) + " bytes transferred");
    }
    const iovec part{bytes + done, size - done};
    SPINDLE_ASSIGN_OR_RETURN(const size_t moved,
                             transfer(offset + done, std::span<const iovec>(&part, 1)));
    if (moved == 0) {
      return absl::DataLossError(At(path, offset) + ": the file ends after " +
                                 std::to_string(done) + " of " + std::to_string(size) + " bytes");
    }
    done += moved;
  }
  return absl::OkStatus();
}

}  // namespace

std::string At(const std::string& path, uint64_t offset) {
  return path + " at offset " + std::to_string(offset);
}

absl::Status ErrnoStatus(int error, const std::string& what) {
  const std::string message =
      what + ": " + std::strerror(error);  // NOLINT(concurrency-mt-unsafe): glibc's is safe
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EEXIST:
      return absl::AlreadyExistsError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

size_t SkipParts(std::span<const iovec> parts, size_t done, std::span<iovec> rest) {
  size_t count = 0;
  for (const iovec& part : parts) {
    if (done >= part.iov_len) {
      done -= part.iov_len;
      continue;
    }
    rest[count++] = {static_cast<uint8_t*>(part.iov_base) + done, part.iov_len - done};
    done = 0;
  }
  SPINDLE_CHECK(count > 0);
  return count;
}

absl::Status ReadFully(DiskFile& file, uint64_t offset, std::span<uint8_t> bytes) {
  return Repeat(file.path(),
                offset,
                bytes.data(),
                bytes.size(),
                [&](uint64_t at, std::span<const iovec> parts) { return file.ReadAt(at, parts); });
}

absl::Status WriteFully(DiskFile& file, uint64_t offset, std::span<const uint8_t> bytes) {
  // iovec has no const form; a write does not change the bytes.
  return Repeat(file.path(),
                offset,
                const_cast<uint8_t*>(bytes.data()),
                bytes.size(),
                [&](uint64_t at, std::span<const iovec> parts) { return file.WriteAt(at, parts); });
}

}  // namespace spindle::kv::disk
