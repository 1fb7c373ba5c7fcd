#include "kv/disk/log_files.h"

#include <array>
#include <utility>

#include "base/status_macros.h"
#include "kv/disk/store_directory.h"

namespace spindle::kv::disk {
namespace {

constexpr char kTemporarySuffix[] = ".tmp";

std::vector<uint8_t> HeaderPage(const LogHeader& header) {
  std::vector<uint8_t> page(kAlignment);
  EncodeLogHeader(header, std::span<uint8_t, kAlignment>(page));
  return page;
}

}  // namespace

std::string JournalName(uint64_t number) {
  return "journal-" + std::to_string(number) + ".log";
}

std::string CheckpointName(uint64_t number) {
  return "index-" + std::to_string(number) + ".ckpt";
}

absl::StatusOr<LogContent> ReadLog(DiskFiles& files,
                                   const std::string& path,
                                   const StoreUuid& uuid,
                                   const std::function<void(std::span<const LogEntry>)>& take) {
  SPINDLE_ASSIGN_OR_RETURN(const std::unique_ptr<DiskFile> file,
                           files.Open(path, OpenMode::kRead, false));
  LogContent content;
  SPINDLE_ASSIGN_OR_RETURN(content.file_bytes, file->Size());
  std::vector<uint8_t> bytes(kAlignment);
  SPINDLE_RETURN_IF_ERROR(ReadFully(*file, 0, bytes));
  SPINDLE_ASSIGN_OR_RETURN(content.header, DecodeLogHeader(bytes));
  if (content.header.uuid != uuid) {
    return absl::DataLossError(path + ": a log of another store");
  }
  std::vector<LogEntry> entries;
  uint64_t at = kAlignment;
  while (at + kAlignment <= content.file_bytes && !content.last) {
    bytes.resize(kAlignment);
    SPINDLE_RETURN_IF_ERROR(ReadFully(*file, at, bytes));
    const absl::StatusOr<FrameHeader> frame = DecodeFrameHeader(content.header, bytes);
    if (!frame.ok() || frame->index != content.num_frames ||
        at + FrameBytes(frame->num_entries) > content.file_bytes) {
      break;
    }
    bytes.resize(FrameBytes(frame->num_entries));
    SPINDLE_RETURN_IF_ERROR(
        ReadFully(*file, at + kAlignment, std::span(bytes).subspan(kAlignment)));
    entries.clear();
    if (!DecodeFrame(content.header, bytes, &entries).ok()) {
      break;
    }
    take(entries);
    ++content.num_frames;
    content.last = frame->last;
    at += bytes.size();
  }
  content.cut = at < content.file_bytes;
  return content;
}

JournalWriter::JournalWriter(DiskFiles& files,
                             std::string directory,
                             const StoreUuid& uuid,
                             uint64_t previous,
                             uint64_t previous_frames,
                             uint64_t next_number)
    : files_(files),
      directory_(std::move(directory)),
      header_{.type = LogType::kJournal, .uuid = uuid, .number = previous},
      num_frames_(previous_frames),
      next_number_(next_number) {}

absl::StatusOr<std::unique_ptr<DiskFile>> JournalWriter::Create(const std::string& path,
                                                                const LogHeader& header) {
  SPINDLE_ASSIGN_OR_RETURN(std::unique_ptr<DiskFile> file,
                           files_.Open(path, OpenMode::kCreate, false));
  SPINDLE_RETURN_IF_ERROR(WriteFully(*file, 0, HeaderPage(header)));
  SPINDLE_RETURN_IF_ERROR(file->Sync());
  SPINDLE_RETURN_IF_ERROR(files_.SyncDirectory(directory_));
  return file;
}

absl::Status JournalWriter::Start() {
  const LogHeader header{.type = LogType::kJournal,
                         .uuid = header_.uuid,
                         .number = next_number_,
                         .previous = header_.number,
                         .previous_frames = num_frames_};
  // The number is used up even if this fails, so that no file is written over.
  const std::string path = directory_ + "/" + JournalName(next_number_++);
  absl::StatusOr<std::unique_ptr<DiskFile>> file = Create(path, header);
  if (!file.ok()) {
    files_.Unlink(path).IgnoreError();  // of no use, and a full device has no room for many
    return file.status();
  }
  file_ = *std::move(file);
  header_ = header;
  num_frames_ = 0;
  end_ = kAlignment;
  return absl::OkStatus();
}

absl::Status JournalWriter::Append(std::span<const LogEntry> entries) {
  if (file_ == nullptr) {
    SPINDLE_RETURN_IF_ERROR(Start());
  }
  buffer_.clear();
  uint64_t num_frames = num_frames_;
  for (size_t at = 0; at < entries.size(); at += kMaxFrameEntries) {
    const std::span<const LogEntry> part =
        entries.subspan(at, std::min<size_t>(kMaxFrameEntries, entries.size() - at));
    const FrameHeader frame{.index = num_frames++,
                            .num_entries = static_cast<uint32_t>(part.size())};
    EncodeFrame(header_, frame, part, &buffer_);
  }
  absl::Status status = WriteFully(*file_, end_, buffer_);
  if (status.ok()) {
    status = file_->Sync();
  }
  if (!status.ok()) {
    file_ = nullptr;
    return status;
  }
  num_frames_ = num_frames;
  end_ += buffer_.size();
  bytes_ += buffer_.size();
  return absl::OkStatus();
}

uint64_t JournalWriter::Rotate() {
  file_ = nullptr;
  bytes_ = 0;
  return next_number_;
}

CheckpointWriter::CheckpointWriter(DiskFiles& files,
                                   std::string directory,
                                   const StoreUuid& uuid,
                                   uint64_t number)
    : files_(files),
      directory_(std::move(directory)),
      header_{.type = LogType::kCheckpoint, .uuid = uuid, .number = number} {}

absl::Status CheckpointWriter::Write() {
  SPINDLE_RETURN_IF_ERROR(WriteFully(*file_, end_, buffer_));
  end_ += buffer_.size();
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Append(std::span<const LogEntry> entries) {
  if (file_ == nullptr) {
    const std::string path = directory_ + "/" + CheckpointName(header_.number) + kTemporarySuffix;
    files_.Unlink(path).IgnoreError();  // left by a checkpoint that failed, or absent
    SPINDLE_ASSIGN_OR_RETURN(file_, files_.Open(path, OpenMode::kCreate, false));
    buffer_ = HeaderPage(header_);
  }
  const FrameHeader frame{.index = num_frames_++,
                          .num_entries = static_cast<uint32_t>(entries.size())};
  EncodeFrame(header_, frame, entries, &buffer_);
  return Write();
}

absl::Status CheckpointWriter::Finish() {
  if (file_ == nullptr) {
    SPINDLE_RETURN_IF_ERROR(Append({}));
  }
  EncodeFrame(header_, {.index = num_frames_, .num_entries = 0, .last = true}, {}, &buffer_);
  SPINDLE_RETURN_IF_ERROR(Write());
  SPINDLE_RETURN_IF_ERROR(file_->Sync());
  const std::string path = directory_ + "/" + CheckpointName(header_.number);
  SPINDLE_RETURN_IF_ERROR(files_.Rename(path + kTemporarySuffix, path));
  SPINDLE_RETURN_IF_ERROR(files_.SyncDirectory(directory_));
  SPINDLE_ASSIGN_OR_RETURN(const StoreListing listing, ListStore(files_, directory_));
  for (const uint64_t number : listing.checkpoints) {
    if (number < header_.number) {
      files_.Unlink(directory_ + "/" + CheckpointName(number)).IgnoreError();
    }
  }
  for (const uint64_t number : listing.journals) {
    if (number < header_.number) {
      files_.Unlink(directory_ + "/" + JournalName(number)).IgnoreError();
    }
  }
  return absl::OkStatus();
}

}  // namespace spindle::kv::disk
