#include "kv/disk/store_jobs.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/status_macros.h"

namespace spindle::kv::disk {

void CommitJob::LeaveOutFailed() {
  std::erase_if(entries, [&](const LogEntry& entry) {
    return entry.op == LogEntry::Op::kPut &&
           std::any_of(segments.begin(), segments.end(), [&](const ToSync& sync) {
             return !sync.status.ok() && sync.segment->number == entry.segment;
           });
  });
}

absl::Status CommitJob::RunTask() {
  bool all_synced = true;
  for (ToSync& sync : segments) {
    sync.status = sync.segment->file->Sync();
    all_synced = all_synced && sync.status.ok();
  }
  if (!all_synced) {
    LeaveOutFailed();
  }
  if (sync_directory) {
    SPINDLE_RETURN_IF_ERROR(files->SyncDirectory(directory));
  }
  return entries.empty() ? absl::OkStatus() : journal->Append(entries);
}

absl::Status CopyJob::RunTask() {
  writing = false;
  const uint64_t record_bytes = length_pages * kAlignment;
  const uint64_t page = kAlignment;  // in front: a segment header, or unused
  AlignedBuffer buffer(page + record_bytes);
  const std::span<uint8_t> record = buffer.span().subspan(page);
  SPINDLE_RETURN_IF_ERROR(ReadFully(*from->file, from_pages * kAlignment, record));
  SPINDLE_ASSIGN_OR_RETURN(const RecordFields fields, DecodeRecordHeader(record));
  if (fields.id != id || HeaderCrc(record) != header_crc || RecordBytes(fields) != record_bytes) {
    return absl::DataLossError(At(from->file->path(), from_pages * kAlignment) +
                               ": holds another record");
  }
  SPINDLE_RETURN_IF_ERROR(VerifyPayload(
      record, fields, record.subspan(HeaderBytes(fields.num_extents), fields.payload_bytes)));
  writing = true;
  if (!with_segment_header) {
    return WriteFully(*to->file, to_pages * kAlignment, record);
  }
  EncodeSegmentHeader(uuid, to->number, std::span<uint8_t, kAlignment>(buffer.data(), kAlignment));
  return WriteFully(*to->file, to_pages * kAlignment - kAlignment, buffer.span());
}

absl::Status ProbeJob::RunTask() {
  SPINDLE_ASSIGN_OR_RETURN(const Superblock superblock, ReadSuperblock(*files, directory));
  if (superblock.uuid != uuid) {
    return absl::NotFoundError(directory + ": another store has taken this one's place");
  }
  files->Unlink(path).IgnoreError();  // left by a probe that failed, or absent
  const AlignedBuffer written(kAlignment);
  const AlignedBuffer read(kAlignment);
  for (uint64_t i = 0; i < kAlignment / sizeof(uint64_t); ++i) {
    const uint64_t word = (number << 16) + i;
    std::memcpy(written.data() + i * sizeof(word), &word, sizeof(word));
  }
  {
    SPINDLE_ASSIGN_OR_RETURN(const std::unique_ptr<DiskFile> probe,
                             files->Open(path, OpenMode::kCreate, direct));
    SPINDLE_RETURN_IF_ERROR(WriteFully(*probe, 0, written.span()));
    SPINDLE_RETURN_IF_ERROR(probe->Sync());
    SPINDLE_RETURN_IF_ERROR(ReadFully(*probe, 0, read.span()));
  }
  if (std::memcmp(written.data(), read.data(), kAlignment) != 0) {
    return absl::DataLossError(path + ": other bytes were read than written");
  }
  return files->Unlink(path);
}

absl::Status SpaceJob::RunTask() {
  SPINDLE_ASSIGN_OR_RETURN(own, ListStore(*files, directory));
  if (!own.superblock) {
    return absl::NotFoundError(directory + ": the store is gone");
  }
  SPINDLE_ASSIGN_OR_RETURN(space, files->FreeSpace(directory));
  SPINDLE_ASSIGN_OR_RETURN(const std::vector<DirectoryEntry> entries, files->List(root));
  other_bytes = 0;
  for (const DirectoryEntry& entry : entries) {
    const std::string other = root + "/" + entry.name;
    if (!entry.is_directory || other == directory) {
      continue;
    }
    SPINDLE_ASSIGN_OR_RETURN(const StoreListing listing, ListStore(*files, other));
    other_bytes += std::max(listing.bytes, listing.allocated_bytes);
  }
  return absl::OkStatus();
}

}  // namespace spindle::kv::disk
