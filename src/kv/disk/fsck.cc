#include "kv/disk/fsck.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "kv/disk/aligned_buffer.h"
#include "kv/disk/disk_index.h"
#include "kv/disk/log_files.h"

namespace spindle::kv::disk {
namespace {

constexpr size_t kMaxProblems = 100;

class Walk {
 public:
  Walk(DiskFiles& files,
       const std::string& directory,
       const std::function<void(double)>& progress,
       const DiskIndex& index,
       FsckReport* report)
      : files_(files), directory_(directory), progress_(progress), index_(index), report_(report) {}

  absl::Status Segment(const SegmentFile& segment, uint64_t all_bytes);
  // Entries that no record was found for; also those whose record is damaged.
  [[nodiscard]] std::vector<RecordId> BadEntries();

  // Records by sequence number, the newest of each id.
  [[nodiscard]] const DiskIndex& by_seq() const { return by_seq_; }

 private:
  // Bytes to go on by: of the record, or one page.
  absl::StatusOr<uint64_t> Record(DiskFile& file, uint32_t segment, uint64_t at, uint64_t end);

  void Problem(const std::string& text) {
    if (report_->problems.size() < kMaxProblems) {
      report_->problems.push_back(text);
    }
  }

  DiskFiles& files_;
  const std::string& directory_;
  const std::function<void(double)>& progress_;
  const DiskIndex& index_;
  FsckReport* const report_;
  DiskIndex by_seq_;
  std::vector<bool> seen_;     // by entry: a record at its place
  std::vector<bool> damaged_;  // by entry
  AlignedBuffer buffer_{kAlignment};
};

void Set(std::vector<bool>* flags, EntryIdx entry) {
  if (flags->size() <= entry) {
    flags->resize(entry + 1);
  }
  (*flags)[entry] = true;
}

bool IsSet(const std::vector<bool>& flags, EntryIdx entry) {
  return entry < flags.size() && flags[entry];
}

absl::StatusOr<uint64_t> Walk::Record(DiskFile& file, uint32_t segment, uint64_t at, uint64_t end) {
  SPINDLE_RETURN_IF_ERROR(ReadFully(file, at, buffer_.span().first(kAlignment)));
  const uint64_t header_bytes = PeekHeaderBytes(buffer_.span().first(kAlignment));
  if (header_bytes == 0 || at + header_bytes > end) {
    return 0;
  }
  if (buffer_.size() < header_bytes) {
    buffer_ = AlignedBuffer(header_bytes);
  }
  SPINDLE_RETURN_IF_ERROR(ReadFully(file, at, buffer_.span().first(header_bytes)));
  const absl::StatusOr<RecordFields> fields = DecodeRecordHeader(buffer_.span());
  if (!fields.ok() || at + RecordBytes(*fields) > end) {
    return 0;
  }
  const uint64_t record_bytes = RecordBytes(*fields);
  if (buffer_.size() < record_bytes) {
    buffer_ = AlignedBuffer(record_bytes);
  }
  const std::span<uint8_t> record = buffer_.span().first(record_bytes);
  SPINDLE_RETURN_IF_ERROR(ReadFully(file, at, record));
  report_->bytes += record_bytes;
  const std::span<const uint8_t> payload = record.subspan(header_bytes, fields->payload_bytes);
  absl::Status status = VerifyPayload(record, *fields, payload);
  if (status.ok() && ChecksumOf(payload) != fields->checksum) {
    status = absl::DataLossError("content checksum is wrong");
  }
  const LogEntry put{.op = LogEntry::Op::kPut,
                     .id = fields->id,
                     .seq = fields->seq,
                     .segment = segment,
                     .offset_pages = static_cast<uint32_t>(at / kAlignment),
                     .length_pages = static_cast<uint32_t>(record_bytes / kAlignment),
                     .header_crc = HeaderCrc(record)};
  const EntryIdx entry = index_.Find(put.id);
  const bool referenced = entry != kNoEntry && index_.Get(entry).segment == segment &&
                          index_.Get(entry).offset_pages == put.offset_pages &&
                          index_.Get(entry).header_crc == put.header_crc;
  if (referenced) {
    Set(status.ok() ? &seen_ : &damaged_, entry);
  }
  if (!status.ok()) {
    Problem(At(file.path(), at) + ": " + std::string(status.message()) +
            (referenced ? "" : " (not in the index)"));
    return record_bytes;
  }
  ++report_->records;
  report_->unreferenced += referenced ? 0 : 1;
  const EntryIdx newest = by_seq_.Find(put.id);
  if (newest == kNoEntry || by_seq_.Get(newest).seq <= put.seq) {
    by_seq_.Put(put, true);
  }
  return record_bytes;
}

absl::Status Walk::Segment(const SegmentFile& segment, uint64_t all_bytes) {
  const std::string path = directory_ + "/" + SegmentName(segment.number);
  SPINDLE_ASSIGN_OR_RETURN(const std::unique_ptr<DiskFile> file,
                           files_.Open(path, OpenMode::kRead, false));
  SPINDLE_ASSIGN_OR_RETURN(const uint64_t end, file->Size());
  ++report_->segments;
  if (end < kAlignment) {
    return absl::OkStatus();  // made just before a crash
  }
  SPINDLE_RETURN_IF_ERROR(ReadFully(*file, 0, buffer_.span().first(kAlignment)));
  if (absl::Status status = CheckSegmentHeader(
          buffer_.span().first(kAlignment), report_->superblock.uuid, segment.number);
      !status.ok()) {
    Problem(path + ": " + std::string(status.message()));
  }
  const uint64_t before = report_->bytes;
  uint64_t at = kAlignment;
  while (at + kAlignment <= end) {
    SPINDLE_ASSIGN_OR_RETURN(const uint64_t bytes, Record(*file, segment.number, at, end));
    if (bytes == 0) {
      ++report_->gap_pages;
      report_->bytes += kAlignment;
    }
    at += std::max(bytes, kAlignment);
    if (progress_) {
      progress_(std::min(1.0,
                         static_cast<double>(report_->bytes) /
                             static_cast<double>(std::max<uint64_t>(all_bytes, 1))));
    }
  }
  report_->bytes = before + end;
  return absl::OkStatus();
}

std::vector<RecordId> Walk::BadEntries() {
  std::vector<RecordId> bad;
  index_.Scan(0, kNoEntry, [&](EntryIdx place) {
    const IndexEntry& entry = index_.Get(place);
    ++report_->entries;
    if (IsSet(damaged_, place)) {
      ++report_->damaged;
      bad.push_back(entry.id());
    } else if (!IsSet(seen_, place)) {
      ++report_->missing;
      bad.push_back(entry.id());
      Problem(At(directory_ + "/" + SegmentName(entry.segment), entry.offset()) +
              ": no record where the index has a " + std::string(KindName(entry.kind)));
    }
  });
  return bad;
}

absl::Status WriteIndex(DiskFiles& files,
                        const std::string& directory,
                        const StoreUuid& uuid,
                        uint64_t number,
                        const DiskIndex& index) {
  CheckpointWriter writer(files, directory, uuid, number);
  std::vector<LogEntry> entries;
  EntryIdx place = 0;
  do {
    entries.clear();
    place = index.Scan(place, kMaxFrameEntries, [&](EntryIdx entry) {
      entries.push_back(index.Get(entry).AsPut());
    });
    SPINDLE_RETURN_IF_ERROR(writer.Append(entries));
  } while (place != kNoEntry);
  return writer.Finish();
}

}  // namespace

absl::StatusOr<FsckReport> Fsck(DiskFiles& files,
                                const std::string& directory,
                                bool repair,
                                const std::function<void(double)>& progress) {
  FsckReport report;
  std::unique_ptr<DiskLock> lock;
  if (repair) {
    SPINDLE_ASSIGN_OR_RETURN(lock, files.Lock(directory + "/" + kLockName));
  }
  SPINDLE_ASSIGN_OR_RETURN(report.superblock, ReadSuperblock(files, directory));
  SPINDLE_ASSIGN_OR_RETURN(const StoreListing listing, ListStore(files, directory));
  DiskIndex index;
  SPINDLE_ASSIGN_OR_RETURN(report.recovery,
                           RecoverIndex(files, directory, listing, report.superblock.uuid, &index));
  for (const LostEntries& lost : report.recovery.lost) {
    report.problems.push_back(directory + "/" + SegmentName(lost.segment) + ": " +
                              (lost.missing ? "missing" : "too short") + ", " +
                              std::to_string(lost.entries) + " entries of the index are lost");
  }
  report.problems.resize(std::min(report.problems.size(), kMaxProblems));
  uint64_t all_bytes = 0;
  for (const SegmentFile& segment : listing.segments) {
    all_bytes += segment.bytes;
  }
  Walk walk(files, directory, progress, index, &report);
  for (const SegmentFile& segment : listing.segments) {
    SPINDLE_RETURN_IF_ERROR(walk.Segment(segment, all_bytes));
  }
  const std::vector<RecordId> bad = walk.BadEntries();
  if (!repair || (report.clean() && report.recovery.bad_checkpoints == 0)) {
    return report;
  }
  for (const RecordId& id : bad) {
    index.Erase(index.Find(id));
  }
  SPINDLE_RETURN_IF_ERROR(WriteIndex(files,
                                     directory,
                                     report.superblock.uuid,
                                     report.recovery.max_log + 1,
                                     report.recovery.incomplete ? walk.by_seq() : index));
  report.repaired = true;
  return report;
}

}  // namespace spindle::kv::disk
