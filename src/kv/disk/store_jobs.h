// The background jobs of the disk tier: each does its blocking calls in RunTask, on the task
// thread. Thread-safety: belong to the engine thread, but for the time in an IoQueue.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kv/disk/log_files.h"
#include "kv/disk/store_directory.h"
#include "kv/disk/transfer_job.h"

namespace spindle::kv::disk {

// Group commit: data of the segments, then the journal. Changes that point into a segment that
// could not be synced are left out.
class CommitJob final : public StoreJob {
 public:
  CommitJob() : StoreJob(Type::kCommit) {}

  absl::Status RunTask() override;

  struct ToSync {
    Segment* segment = nullptr;
    absl::Status status;
  };

  DiskFiles* files = nullptr;
  std::string directory;
  JournalWriter* journal = nullptr;
  bool sync_directory = false;
  uint64_t generation = 0;
  std::vector<ToSync> segments;
  std::vector<LogEntry> entries;  // afterwards: those that count

 private:
  void LeaveOutFailed();
};

// One slice of a checkpoint, or its end.
class CheckpointJob final : public StoreJob {
 public:
  CheckpointJob() : StoreJob(Type::kCheckpoint) {}

  absl::Status RunTask() override { return finish ? writer->Finish() : writer->Append(entries); }

  CheckpointWriter* writer = nullptr;
  bool finish = false;
  std::vector<LogEntry> entries;
};

// Copies a record to another segment after verifying it.
class CopyJob final : public StoreJob {
 public:
  CopyJob() : StoreJob(Type::kCopy) {}

  absl::Status RunTask() override;

  RecordId id;
  StoreUuid uuid{};
  uint64_t seq = 0;
  Segment* from = nullptr;
  Segment* to = nullptr;
  uint32_t from_pages = 0;
  uint32_t to_pages = 0;
  uint32_t length_pages = 0;
  bool with_segment_header = false;
  uint32_t header_crc = 0;
  bool writing = false;  // what an error belongs to: reading, or writing
};

class UnlinkJob final : public StoreJob {
 public:
  UnlinkJob() : StoreJob(Type::kUnlink) {}

  absl::Status RunTask() override { return files->Unlink(path); }

  DiskFiles* files = nullptr;
  std::string path;
  Segment* segment = nullptr;
};

// Whether the device works again: a page written to a file of its own, synced, read back, removed.
class ProbeJob final : public StoreJob {
 public:
  ProbeJob() : StoreJob(Type::kProbe) {}

  absl::Status RunTask() override;

  DiskFiles* files = nullptr;
  std::string path;
  bool direct = false;
  uint64_t number = 0;  // differs from probe to probe, and so does the page
  std::string directory;
  StoreUuid uuid{};
};

// Measures allocated and free bytes.
class SpaceJob final : public StoreJob {
 public:
  SpaceJob() : StoreJob(Type::kSpace) {}

  absl::Status RunTask() override;

  DiskFiles* files = nullptr;
  std::string root;
  std::string directory;
  StoreListing own;
  uint64_t other_bytes = 0;
  FreeSpaceInfo space;
  uint64_t covered_bytes = 0;  // given places, and surely written before
};

}  // namespace spindle::kv::disk
