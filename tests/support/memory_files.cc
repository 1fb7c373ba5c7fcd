#include "support/memory_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <utility>

#include "base/status_macros.h"

namespace spindle::test {

using kv::disk::At;
using kv::disk::DirectoryEntry;
using kv::disk::DiskFile;
using kv::disk::DiskLock;
using kv::disk::ErrnoStatus;
using kv::disk::FreeSpaceInfo;
using kv::disk::kAlignment;
using kv::disk::OpenMode;

namespace {

constexpr uint64_t kSectorBytes = 512;

std::string FolderOf(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

void Apply(std::vector<uint8_t>* bytes, uint64_t offset, std::span<const uint8_t> written) {
  if (bytes->size() < offset + written.size()) {
    bytes->resize(offset + written.size());
  }
  std::copy(written.begin(), written.end(), bytes->begin() + static_cast<ptrdiff_t>(offset));
}

}  // namespace

class MemoryFile final : public DiskFile {
 public:
  MemoryFile(MemoryFiles& files, std::string path, MemoryFiles::NodePtr node, bool direct)
      : DiskFile(std::move(path)), files_(files), node_(std::move(node)), direct_(direct) {}

  absl::StatusOr<size_t> ReadAt(uint64_t offset, std::span<const iovec> parts) override {
    CheckBorders(offset, parts);
    return files_.Read(*node_, offset, parts);
  }

  absl::StatusOr<size_t> WriteAt(uint64_t offset, std::span<const iovec> parts) override {
    CheckBorders(offset, parts);
    return files_.Write(*node_, offset, parts);
  }

  absl::Status Sync() override {
    MutexLock lock(files_.mutex_);
    files_.Record({.kind = MemoryFiles::Event::Kind::kSync, .file = node_->number});
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Size() override {
    MutexLock lock(files_.mutex_);
    return node_->bytes.size();
  }

  [[nodiscard]] bool direct() const override { return direct_; }

 private:
  // What O_DIRECT insists on.
  void CheckBorders(uint64_t offset, std::span<const iovec> parts) const {
    if (!direct_) {
      return;
    }
    SPINDLE_CHECK(offset % kAlignment == 0);
    for (const iovec& part : parts) {
      SPINDLE_CHECK(part.iov_len % kAlignment == 0 &&
                    reinterpret_cast<uintptr_t>(part.iov_base) % kAlignment == 0);
    }
  }

  MemoryFiles& files_;
  const MemoryFiles::NodePtr node_;
  const bool direct_;
};

namespace {

// Tells the file system when it goes.
class MemoryLock final : public DiskLock {
 public:
  explicit MemoryLock(std::function<void()> release) : release_(std::move(release)) {}

  ~MemoryLock() override { release_(); }

 private:
  const std::function<void()> release_;
};

}  // namespace

void MemoryFiles::Record(Event event) {
  if (recording_) {
    events_.push_back(std::move(event));
  }
}

absl::StatusOr<size_t> MemoryFiles::Read(const Node& node,
                                         uint64_t offset,
                                         std::span<const iovec> parts) const {
  MutexLock lock(mutex_);
  size_t moved = 0;
  for (const iovec& part : parts) {
    if (offset + moved >= node.bytes.size()) {
      break;
    }
    const size_t count = std::min<size_t>(part.iov_len, node.bytes.size() - offset - moved);
    std::copy_n(node.bytes.begin() + static_cast<ptrdiff_t>(offset + moved),
                count,
                static_cast<uint8_t*>(part.iov_base));
    moved += count;
  }
  return moved;
}

absl::StatusOr<size_t> MemoryFiles::Write(Node& node,
                                          uint64_t offset,
                                          std::span<const iovec> parts) {
  MutexLock lock(mutex_);
  std::vector<uint8_t> bytes;
  for (const iovec& part : parts) {
    const auto* begin = static_cast<const uint8_t*>(part.iov_base);
    bytes.insert(bytes.end(), begin, begin + part.iov_len);
  }
  const uint64_t end = offset + bytes.size();
  const uint64_t growth = end > node.bytes.size() ? end - node.bytes.size() : 0;
  if (used_ + growth > capacity_) {
    return ErrnoStatus(ENOSPC, At("memory", offset));
  }
  used_ += growth;
  Apply(&node.bytes, offset, bytes);
  const size_t moved = bytes.size();
  Record({.kind = Event::Kind::kWrite,
          .file = node.number,
          .offset = offset,
          .bytes = std::move(bytes)});
  return moved;
}

absl::StatusOr<std::unique_ptr<DiskFile>> MemoryFiles::Open(const std::string& path,
                                                            OpenMode mode,
                                                            bool direct) {
  MutexLock lock(mutex_);
  auto found = names_.find(path);
  if (mode == OpenMode::kCreate) {
    if (found != names_.end()) {
      return ErrnoStatus(EEXIST, path);
    }
    if (!directories_.contains(FolderOf(path))) {
      return ErrnoStatus(ENOENT, path);
    }
    found = names_.emplace(path, std::make_shared<Node>(Node{next_node_++, {}})).first;
    Record({.kind = Event::Kind::kCreate, .file = found->second->number, .path = path});
  } else if (found == names_.end()) {
    return ErrnoStatus(ENOENT, path);
  }
  return std::make_unique<MemoryFile>(*this, path, found->second, direct);
}

absl::StatusOr<std::vector<DirectoryEntry>> MemoryFiles::List(const std::string& directory) {
  MutexLock lock(mutex_);
  if (!directories_.contains(directory)) {
    return ErrnoStatus(ENOENT, directory);
  }
  std::vector<DirectoryEntry> entries;
  for (const auto& [path, node] : names_) {
    if (FolderOf(path) == directory) {
      entries.push_back({.name = path.substr(directory.size() + 1),
                         .bytes = node->bytes.size(),
                         .allocated_bytes = kv::disk::RoundUp(node->bytes.size())});
    }
  }
  for (const std::string& path : directories_) {
    if (path != directory && FolderOf(path) == directory) {
      entries.push_back({.name = path.substr(directory.size() + 1), .is_directory = true});
    }
  }
  return entries;
}

absl::Status MemoryFiles::MakeDirectory(const std::string& directory) {
  MutexLock lock(mutex_);
  for (size_t slash = directory.find('/', 1); slash != std::string::npos;
       slash = directory.find('/', slash + 1)) {
    directories_.insert(directory.substr(0, slash));
  }
  directories_.insert(directory);
  return absl::OkStatus();
}

absl::Status MemoryFiles::SyncDirectory(const std::string& directory) {
  MutexLock lock(mutex_);
  Record({.kind = Event::Kind::kSyncDirectory, .path = directory});
  return absl::OkStatus();
}

absl::Status MemoryFiles::Rename(const std::string& from, const std::string& to) {
  MutexLock lock(mutex_);
  const auto found = names_.find(from);
  if (found == names_.end()) {
    return ErrnoStatus(ENOENT, from);
  }
  Record({.kind = Event::Kind::kRename, .file = found->second->number, .path = from, .to = to});
  names_[to] = found->second;
  names_.erase(from);
  return absl::OkStatus();
}

absl::Status MemoryFiles::Unlink(const std::string& path) {
  MutexLock lock(mutex_);
  const auto found = names_.find(path);
  if (found == names_.end()) {
    return ErrnoStatus(ENOENT, path);
  }
  used_ -= found->second->bytes.size();
  Record({.kind = Event::Kind::kUnlink, .file = found->second->number, .path = path});
  names_.erase(found);
  return absl::OkStatus();
}

absl::StatusOr<FreeSpaceInfo> MemoryFiles::FreeSpace(const std::string& /*directory*/) {
  MutexLock lock(mutex_);
  return FreeSpaceInfo{.free_bytes = capacity_ - std::min(used_, capacity_),
                       .total_bytes = capacity_};
}

absl::StatusOr<std::unique_ptr<DiskLock>> MemoryFiles::Lock(const std::string& path) {
  MutexLock lock(mutex_);
  if (!locked_.insert(path).second) {
    return absl::FailedPreconditionError(path + ": in use by process 1");
  }
  return std::make_unique<MemoryLock>([this, path] {
    MutexLock release(mutex_);
    locked_.erase(path);
  });
}

std::array<uint8_t, 16> MemoryFiles::UniqueId() {
  MutexLock lock(mutex_);
  return {++next_id_, 0x5e, 0xed};
}

void MemoryFiles::StartRecording() {
  MutexLock lock(mutex_);
  recording_ = true;
  events_.clear();
  start_.clear();
  for (const auto& [path, node] : names_) {
    start_.emplace(path, std::make_shared<Node>(*node));
  }
}

size_t MemoryFiles::num_events() const {
  MutexLock lock(mutex_);
  return events_.size();
}

std::vector<uint8_t>& MemoryFiles::Bytes(const std::string& path) {
  MutexLock lock(mutex_);
  const auto found = names_.find(path);
  SPINDLE_CHECK(found != names_.end());
  return found->second->bytes;
}

std::vector<std::string> MemoryFiles::Paths() const {
  MutexLock lock(mutex_);
  std::vector<std::string> paths;
  for (const auto& [path, node] : names_) {
    paths.push_back(path);
  }
  return paths;
}

void MemoryFiles::SetCapacity(uint64_t bytes) {
  MutexLock lock(mutex_);
  capacity_ = bytes;
}

std::unique_ptr<MemoryFiles> MemoryFiles::CrashAt(size_t num_events,
                                                  Unsynced unsynced,
                                                  std::mt19937_64& random) const {
  MutexLock lock(mutex_);
  const auto keep = [&] {
    switch (unsynced) {
      case Unsynced::kLost:
        return false;
      case Unsynced::kKept:
        return true;
      case Unsynced::kReordered:
      case Unsynced::kTorn:
        return (random() & 1) != 0;
    }
    return false;
  };
  std::map<uint32_t, std::vector<uint8_t>> durable;      // content by file
  std::map<uint32_t, std::vector<const Event*>> writes;  // not synced, by file
  std::map<std::string, uint32_t> names;                 // durable
  std::vector<const Event*> changes;                     // of names, not synced
  for (const auto& [path, node] : start_) {
    durable[node->number] = node->bytes;
    names[path] = node->number;
  }
  const auto change_name = [&](const Event& event) {
    if (event.kind == Event::Kind::kCreate) {
      names[event.path] = event.file;
    } else {
      // Only where the name still means this file: an earlier change may be lost.
      if (const auto at = names.find(event.path); at != names.end() && at->second == event.file) {
        names.erase(at);
      }
      if (event.kind == Event::Kind::kRename) {
        names[event.to] = event.file;
      }
    }
  };
  for (size_t i = 0; i < num_events; ++i) {
    const Event& event = events_[i];
    switch (event.kind) {
      case Event::Kind::kWrite:
        writes[event.file].push_back(&event);
        break;
      case Event::Kind::kSync:
        for (const Event* write : writes[event.file]) {
          Apply(&durable[event.file], write->offset, write->bytes);
        }
        writes.erase(event.file);
        break;
      case Event::Kind::kSyncDirectory:
        std::erase_if(changes, [&](const Event* change) {
          if (FolderOf(change->path) != event.path) {
            return false;
          }
          change_name(*change);
          return true;
        });
        break;
      case Event::Kind::kCreate:
      case Event::Kind::kRename:
      case Event::Kind::kUnlink:
        changes.push_back(&event);
        break;
    }
  }
  for (const auto& [file, list] : writes) {
    for (const Event* write : list) {
      if (unsynced != Unsynced::kTorn) {
        if (keep()) {
          Apply(&durable[file], write->offset, write->bytes);
        }
        continue;
      }
      for (uint64_t at = 0; at < write->bytes.size(); at += kSectorBytes) {
        if (keep()) {
          Apply(&durable[file],
                write->offset + at,
                std::span(write->bytes)
                    .subspan(at, std::min<uint64_t>(kSectorBytes, write->bytes.size() - at)));
        }
      }
    }
  }
  for (const Event* change : changes) {
    if (keep()) {
      change_name(*change);
    }
  }
  auto crashed = std::make_unique<MemoryFiles>();
  MutexLock crashed_lock(crashed->mutex_);
  crashed->directories_ = directories_;
  crashed->next_id_ = 100;
  for (const auto& [path, file] : names) {
    auto node = std::make_shared<Node>(Node{crashed->next_node_++, durable[file]});
    crashed->used_ += node->bytes.size();
    crashed->names_.emplace(path, std::move(node));
  }
  return crashed;
}

}  // namespace spindle::test
