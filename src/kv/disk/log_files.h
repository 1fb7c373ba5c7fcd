// Journal and checkpoint files: writing them, and reading what a crash left of them.
// Thread-safety: thread-compatible. Borrows the file layer. Calls block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kv/disk/disk_files.h"
#include "kv/disk/log_format.h"

namespace spindle::kv::disk {

[[nodiscard]] std::string JournalName(uint64_t number);     // journal-N.log
[[nodiscard]] std::string CheckpointName(uint64_t number);  // index-N.ckpt

// What one log file held.
struct LogContent {
  LogHeader header;
  uint64_t num_frames = 0;
  uint64_t file_bytes = 0;
  bool cut = false;   // bytes follow that are no whole frame: a commit that a crash cut off
  bool last = false;  // the end frame of a checkpoint was there
};

// Reads frames up to the first that is not whole, and hands their entries over frame by frame.
// ERRORS: those of the file layer and of DecodeLogHeader; kDataLoss (another store's log).
[[nodiscard]] absl::StatusOr<LogContent> ReadLog(
    DiskFiles& files,
    const std::string& path,
    const StoreUuid& uuid,
    const std::function<void(std::span<const LogEntry>)>& take);

// Appends frames to the journal; starts a new file when there is none, and after every error: what
// an incomplete write or sync left behind is never relied on.
class JournalWriter {
 public:
  // Continues behind `previous` (0: nothing) of which `previous_frames` frames count. The next file
  // gets `next_number`.
  JournalWriter(DiskFiles& files,
                std::string directory,
                const StoreUuid& uuid,
                uint64_t previous,
                uint64_t previous_frames,
                uint64_t next_number);

  // The entries are durable afterwards. ERRORS: those of the file layer; nothing then counts.
  [[nodiscard]] absl::Status Append(std::span<const LogEntry> entries);

  // The next Append starts a new file; returns its number.
  uint64_t Rotate();

  // Bytes appended since the last Rotate, or since construction.
  [[nodiscard]] uint64_t bytes() const { return bytes_; }

 private:
  [[nodiscard]] absl::Status Start();
  // A durable journal without frames.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DiskFile>> Create(const std::string& path,
                                                                 const LogHeader& header);

  DiskFiles& files_;
  const std::string directory_;
  LogHeader header_;  // of the current file, or of the one before the next
  std::unique_ptr<DiskFile> file_;
  uint64_t num_frames_;
  uint64_t next_number_;
  uint64_t end_ = 0;  // of the current file
  uint64_t bytes_ = 0;
  std::vector<uint8_t> buffer_;
};

// Writes index-N.ckpt under a temporary name until Finish.
class CheckpointWriter {
 public:
  CheckpointWriter(DiskFiles& files, std::string directory, const StoreUuid& uuid, uint64_t number);

  // REQUIRES: at most kMaxFrameEntries entries. After an error only destruction is allowed.
  [[nodiscard]] absl::Status Append(std::span<const LogEntry> entries);

  // Makes the checkpoint durable under its name, then removes what it stands for: checkpoints and
  // journals of smaller numbers. Failures to remove are not errors.
  [[nodiscard]] absl::Status Finish();

 private:
  [[nodiscard]] absl::Status Write();

  DiskFiles& files_;
  const std::string directory_;
  const LogHeader header_;
  std::unique_ptr<DiskFile> file_;
  uint64_t num_frames_ = 0;
  uint64_t end_ = 0;
  std::vector<uint8_t> buffer_;
};

}  // namespace spindle::kv::disk
