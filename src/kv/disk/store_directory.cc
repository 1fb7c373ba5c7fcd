#include "kv/disk/store_directory.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "kv/disk/log_files.h"

namespace spindle::kv::disk {
namespace {

// Names tried for one identity: the first, then -2, -3 …
constexpr int kMaxNames = 8;
// Of journals and checkpoints: far beyond any, and far below where numbers begin again.
constexpr uint64_t kMaxLog = uint64_t{1} << 62;
// Hex digits of the fingerprint in a folder's name.
constexpr size_t kNameDigits = 32;

// The number between prefix and suffix of a file name.
std::optional<uint64_t> NumberOf(std::string_view name,
                                 std::string_view prefix,
                                 std::string_view suffix,
                                 int base) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix) ||
      name.size() <= prefix.size() + suffix.size()) {
    return std::nullopt;
  }
  name.remove_prefix(prefix.size());
  name.remove_suffix(suffix.size());
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number, base);
  if (error != std::errc() || end != name.data() + name.size()) {
    return std::nullopt;
  }
  return number;
}

absl::Status Named(const absl::Status& status, const std::string& path) {
  return absl::Status(status.code(), path + ": " + std::string(status.message()));
}

// The bytes are wrong, in contrast to bytes that cannot be read now.
bool IsDamage(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsDataLoss(status) ||
         absl::IsUnimplemented(status);
}

absl::Status WriteSuperblock(DiskFiles& files,
                             const std::string& directory,
                             const Superblock& block) {
  std::vector<uint8_t> page(kAlignment);
  EncodeSuperblock(block, std::span<uint8_t, kAlignment>(page));
  const std::string path = directory + "/" + kSuperblockName;
  const std::string temporary = path + ".tmp";
  files.Unlink(temporary).IgnoreError();  // left by a crash, or absent
  {
    SPINDLE_ASSIGN_OR_RETURN(const std::unique_ptr<DiskFile> file,
                             files.Open(temporary, OpenMode::kCreate, false));
    SPINDLE_RETURN_IF_ERROR(WriteFully(*file, 0, page));
    SPINDLE_RETURN_IF_ERROR(file->Sync());
  }
  SPINDLE_RETURN_IF_ERROR(files.Rename(temporary, path));
  return files.SyncDirectory(directory);
}

// What it holds stays, and counts against the cap.
void PassOver(const std::string& directory, const std::string& why) {
  log::Warn("kv_disk_store_passed_over", {{"directory", directory}, {"why", why}});
}

// Replays checkpoints from the newest to the first whole one.
absl::Status LoadCheckpoint(DiskFiles& files,
                            const std::string& directory,
                            const StoreListing& listing,
                            const StoreUuid& uuid,
                            RecoveryReport* report,
                            DiskIndex* index) {
  for (size_t i = listing.checkpoints.size(); i-- > 0;) {
    const uint64_t number = listing.checkpoints[i];
    DiskIndex candidate;
    const auto take = [&](std::span<const LogEntry> entries) {
      for (const LogEntry& entry : entries) {
        candidate.Apply(entry);
        report->max_seq = std::max(report->max_seq, entry.seq);
      }
    };
    const absl::StatusOr<LogContent> content =
        ReadLog(files, directory + "/" + CheckpointName(number), uuid, take);
    if (content.ok() && content->last && content->header.type == LogType::kCheckpoint &&
        content->header.number == number) {
      *index = std::move(candidate);
      report->checkpoint = number;
      return absl::OkStatus();
    }
    if (!content.ok() && !IsDamage(content.status())) {
      return content.status();
    }
    ++report->bad_checkpoints;
  }
  return absl::OkStatus();
}

// Replays the journals behind the checkpoint up to the first gap.
absl::Status ReplayJournals(DiskFiles& files,
                            const std::string& directory,
                            const StoreListing& listing,
                            const StoreUuid& uuid,
                            RecoveryReport* report,
                            DiskIndex* index) {
  std::map<uint64_t, uint64_t> replayed;  // number and frames
  for (const uint64_t number : listing.journals) {
    if (number < report->checkpoint) {
      continue;
    }
    const std::string path = directory + "/" + JournalName(number);
    std::vector<LogEntry> entries;
    const absl::StatusOr<LogContent> content =
        ReadLog(files, path, uuid, [&](std::span<const LogEntry> frame) {
          entries.insert(entries.end(), frame.begin(), frame.end());
        });
    if (!content.ok() && !IsDamage(content.status())) {
      return content.status();
    }
    if (!content.ok() || content->header.type != LogType::kJournal ||
        content->header.number != number) {
      // Nothing was acknowledged in a journal without a header; whether one with a damaged header
      // is missed, the next one says.
      report->cut = true;
      continue;
    }
    const LogHeader& header = content->header;
    const bool first = header.previous == 0 || header.previous < report->checkpoint;
    const auto previous = replayed.find(header.previous);
    if (!first && (previous == replayed.end() || previous->second < header.previous_frames)) {
      report->incomplete = true;
      if (!replayed.empty() || report->checkpoint != 0) {
        return absl::OkStatus();
      }
      // All that came before is gone; what is left is as good as any.
    }
    for (const LogEntry& entry : entries) {
      index->Apply(entry);
      report->max_seq = std::max(report->max_seq, entry.seq);
      report->max_segment = std::max(report->max_segment, entry.segment);
    }
    replayed[number] = content->num_frames;
    ++report->num_journals;
    report->journal_bytes += content->file_bytes;
    report->last_journal = number;
    report->last_frames = content->num_frames;
    report->cut = content->cut;
  }
  return absl::OkStatus();
}

// Drops entries that the files cannot hold.
void CheckAgainstFiles(const StoreListing& listing, RecoveryReport* report, DiskIndex* index) {
  for (const uint32_t number : index->Segments()) {
    const auto file = std::lower_bound(
        listing.segments.begin(),
        listing.segments.end(),
        number,
        [](const SegmentFile& segment, uint32_t wanted) { return segment.number < wanted; });
    if (file == listing.segments.end() || file->number != number) {
      report->lost.push_back(
          {.segment = number, .entries = index->DropSegment(number), .missing = true});
      report->dropped_entries += report->lost.back().entries;
      continue;
    }
    LostEntries lost{.segment = number};
    EntryIdx entry = index->Live(number).first;
    while (entry != kNoEntry) {
      const IndexEntry& at = index->Get(entry);
      const EntryIdx next = at.segment_next;
      if (at.offset() + at.length() > file->bytes) {
        index->Erase(entry);
        ++lost.entries;
      }
      entry = next;
    }
    if (lost.entries > 0) {
      report->dropped_entries += lost.entries;
      report->lost.push_back(lost);
    }
  }
}

}  // namespace

std::string SegmentName(uint32_t number) {
  std::array<char, 8> digits{};
  digits.fill('0');
  std::array<char, 8> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number, 16).ptr;
  std::copy_backward(text.data(), end, digits.data() + digits.size());
  return "seg-" + std::string(digits.data(), digits.size()) + ".kv";
}

absl::StatusOr<StoreListing> ListStore(DiskFiles& files, const std::string& directory) {
  SPINDLE_ASSIGN_OR_RETURN(const std::vector<DirectoryEntry> entries, files.List(directory));
  StoreListing listing;
  for (const DirectoryEntry& entry : entries) {
    if (entry.is_directory) {
      continue;
    }
    listing.bytes += entry.bytes;
    listing.allocated_bytes += entry.allocated_bytes;
    if (entry.name == kSuperblockName) {
      listing.superblock = true;
    } else if (entry.name.ends_with(".tmp")) {
      listing.temporary.push_back(entry.name);
    } else if (const auto segment = NumberOf(entry.name, "seg-", ".kv", 16);
               segment.has_value() && *segment >= 1 && *segment <= kMaxSegment &&
               entry.name == SegmentName(static_cast<uint32_t>(*segment))) {
      listing.segments.push_back({.number = static_cast<uint32_t>(*segment),
                                  .bytes = entry.bytes,
                                  .allocated_bytes = entry.allocated_bytes});
    } else if (const auto journal = NumberOf(entry.name, "journal-", ".log", 10);
               journal.has_value() && *journal <= kMaxLog && entry.name == JournalName(*journal)) {
      listing.journals.push_back(*journal);
    } else if (const auto checkpoint = NumberOf(entry.name, "index-", ".ckpt", 10);
               checkpoint.has_value() && *checkpoint <= kMaxLog &&
               entry.name == CheckpointName(*checkpoint)) {
      listing.checkpoints.push_back(*checkpoint);
    }
  }
  std::sort(listing.segments.begin(),
            listing.segments.end(),
            [](const SegmentFile& a, const SegmentFile& b) { return a.number < b.number; });
  std::sort(listing.journals.begin(), listing.journals.end());
  std::sort(listing.checkpoints.begin(), listing.checkpoints.end());
  return listing;
}

absl::StatusOr<Superblock> ReadSuperblock(DiskFiles& files, const std::string& directory) {
  const std::string path = directory + "/" + kSuperblockName;
  SPINDLE_ASSIGN_OR_RETURN(const std::unique_ptr<DiskFile> file,
                           files.Open(path, OpenMode::kRead, false));
  std::vector<uint8_t> page(kAlignment);
  SPINDLE_RETURN_IF_ERROR(ReadFully(*file, 0, page));
  absl::StatusOr<Superblock> block = DecodeSuperblock(page);
  if (!block.ok()) {
    return Named(block.status(), path);
  }
  return block;
}

absl::StatusOr<StoreFolder> ResolveStore(DiskFiles& files,
                                         const std::string& root,
                                         const StoreIdentity& identity,
                                         uint64_t segment_bytes) {
  SPINDLE_RETURN_IF_ERROR(files.MakeDirectory(root));
  const std::string name = ToHex(identity.fingerprint).substr(0, kNameDigits);
  for (int attempt = 1; attempt <= kMaxNames; ++attempt) {
    const std::string directory =
        root + "/" + name + (attempt == 1 ? "" : "-" + std::to_string(attempt));
    SPINDLE_RETURN_IF_ERROR(files.MakeDirectory(directory));
    absl::StatusOr<Superblock> found = ReadSuperblock(files, directory);
    if (found.ok() ? !SameIdentity(found->identity, identity) : !absl::IsNotFound(found.status())) {
      PassOver(directory,
               found.ok() ? "a store of another model" : std::string(found.status().message()));
      continue;
    }
    if (!found.ok()) {
      SPINDLE_ASSIGN_OR_RETURN(const StoreListing listing, ListStore(files, directory));
      if (!listing.segments.empty() || !listing.journals.empty() || !listing.checkpoints.empty()) {
        PassOver(directory, "files of a store without its superblock");
        continue;
      }
    }
    SPINDLE_ASSIGN_OR_RETURN(std::unique_ptr<DiskLock> lock,
                             files.Lock(directory + "/" + kLockName));
    // Another process may have made the store before we got the lock.
    found = ReadSuperblock(files, directory);
    if (absl::IsNotFound(found.status())) {
      found = Superblock{
          .identity = identity, .segment_bytes = segment_bytes, .uuid = files.UniqueId()};
      SPINDLE_RETURN_IF_ERROR(WriteSuperblock(files, directory, *found));
      SPINDLE_RETURN_IF_ERROR(files.SyncDirectory(root));
    }
    if (!found.ok()) {
      return found.status();
    }
    return StoreFolder{directory, *std::move(found), std::move(lock)};
  }
  return absl::FailedPreconditionError(root + "/" + name + ": this name and " +
                                       std::to_string(kMaxNames - 1) +
                                       " more are taken by stores of another format or model");
}

absl::StatusOr<std::vector<FoundStore>> FindStores(DiskFiles& files, const std::string& root) {
  SPINDLE_ASSIGN_OR_RETURN(const std::vector<DirectoryEntry> entries, files.List(root));
  std::vector<FoundStore> stores;
  for (const DirectoryEntry& entry : entries) {
    if (!entry.is_directory && entry.name == kSuperblockName) {
      return std::vector<FoundStore>{{root, ReadSuperblock(files, root)}};
    }
    if (entry.is_directory) {
      const std::string directory = root + "/" + entry.name;
      stores.push_back({directory, ReadSuperblock(files, directory)});
    }
  }
  std::sort(stores.begin(), stores.end(), [](const FoundStore& a, const FoundStore& b) {
    return a.directory < b.directory;
  });
  return stores;
}

absl::StatusOr<RecoveryReport> RecoverIndex(DiskFiles& files,
                                            const std::string& directory,
                                            const StoreListing& listing,
                                            const StoreUuid& uuid,
                                            DiskIndex* index) {
  RecoveryReport report;
  SPINDLE_RETURN_IF_ERROR(LoadCheckpoint(files, directory, listing, uuid, &report, index));
  SPINDLE_RETURN_IF_ERROR(ReplayJournals(files, directory, listing, uuid, &report, index));
  // A checkpoint gets its name when it is durable, and what it stands for is removed then.
  report.incomplete = report.incomplete || report.bad_checkpoints > 0;
  CheckAgainstFiles(listing, &report, index);
  if (!listing.segments.empty()) {
    report.max_segment = std::max(report.max_segment, listing.segments.back().number);
  }
  for (const std::vector<uint64_t>* numbers : {&listing.journals, &listing.checkpoints}) {
    if (!numbers->empty()) {
      report.max_log = std::max(report.max_log, numbers->back());
    }
  }
  return report;
}

}  // namespace spindle::kv::disk
