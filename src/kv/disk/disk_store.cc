#include "kv/disk/disk_store.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "kv/disk/store_impl.h"
#include "kv/disk/store_jobs.h"

namespace spindle::kv::disk {
namespace {

// Journals at Open beyond which a checkpoint is due whatever their size.
constexpr uint64_t kMaxJournals = 4;

std::unique_ptr<IoQueue> MakeQueue(const DiskOptions& options,
                                   DiskFiles& files,
                                   const Clock& clock,
                                   std::function<void()> wake) {
  const IoQueueOptions queue_options{.read_depth = options.read_depth,
                                     .write_depth = options.write_depth,
                                     .clock = clock,
                                     .wake = std::move(wake)};
  if (options.io_mode == IoMode::kInline) {
    return NewInlineQueue(clock);
  }
  if (options.io_mode == IoMode::kAuto && files.has_descriptors()) {
    absl::StatusOr<std::unique_ptr<IoQueue>> ring = NewRingQueue(queue_options);
    if (ring.ok()) {
      return *std::move(ring);
    }
    log::Info("kv_disk_no_io_uring", {{"reason", std::string(ring.status().message())}});
  }
  return NewThreadQueue(queue_options);
}

absl::Status Broken(const std::string& what) {
  return absl::InternalError("disk store: " + what);
}

}  // namespace

DiskStore::Impl::Impl(const DiskOptions& options,
                      StoreFolder folder,
                      const StoreListing& listing,
                      const RecoveryReport& report,
                      DiskIndex index,
                      DiskFiles& files,
                      const Clock& clock,
                      std::unique_ptr<IoQueue> queue)
    : options_(options),
      directory_(folder.directory),
      lock_(std::move(folder.lock)),
      identity_(folder.superblock.identity),
      uuid_(folder.superblock.uuid),
      segment_bytes_(folder.superblock.segment_bytes),
      stripe_header_bytes_(HeaderBytes(identity_.geometry.num_layers)),
      report_(report),
      files_(files),
      clock_(clock),
      queue_(std::move(queue)),
      index_(std::move(index)),
      next_segment_(report.max_segment + 1),
      next_seq_(report.max_seq + 1),
      journal_(
          files, directory_, uuid_, report.last_journal, report.last_frames, report.max_log + 1),
      health_(options_) {
  for (const SegmentFile& file : listing.segments) {
    auto segment = std::make_unique<Segment>();
    segment->number = file.number;
    segment->end = file.bytes;
    segment_used_ += file.bytes;
    segments_.emplace(file.number, std::move(segment));
  }
  checkpoint_wanted_ = report.num_journals > kMaxJournals || report.bad_checkpoints > 0 ||
                       report.journal_bytes >= options.checkpoint_journal_bytes;
  stats_.recovered_entries = index_.size();
  stats_.recovery_dropped = report.dropped_entries;
}

DiskStore::Impl::~Impl() {
  Close().IgnoreError();  // a caller who wants to know calls Close
}

void DiskStore::Impl::SubmitJob(StoreJob* job) {
  ++num_running_;
  queue_->Submit(job);
}

void DiskStore::Impl::Reap() {
  while (IoJob* const job = queue_->TakeFinished()) {
    --num_running_;
    Handle(static_cast<StoreJob*>(job));
  }
}

void DiskStore::Impl::Handle(StoreJob* job) {
  switch (job->type) {
    case StoreJob::Type::kTransfer:
      HandleTransfer(static_cast<TransferJob*>(job));
      return;
    case StoreJob::Type::kCommit:
      HandleCommit(static_cast<CommitJob*>(job));
      return;
    case StoreJob::Type::kCheckpoint:
      HandleCheckpoint(static_cast<CheckpointJob*>(job));
      return;
    case StoreJob::Type::kCopy:
      HandleCopy(static_cast<CopyJob*>(job));
      return;
    case StoreJob::Type::kUnlink:
      HandleUnlink(static_cast<UnlinkJob*>(job));
      return;
    case StoreJob::Type::kSpace:
      HandleSpace(static_cast<SpaceJob*>(job));
      return;
    case StoreJob::Type::kProbe:
      HandleProbe(static_cast<ProbeJob*>(job));
      return;
  }
}

void DiskStore::Impl::Tick() {
  if (closed_) {
    return;
  }
  const TimePoint now = clock_.Now();
  queue_->Drive();
  Reap();
  ExpireLoads(now);
  StepProbe(now);
  StepCollector(now);
  if (CommitDue(now)) {
    StartCommit();
  }
  StepCheckpoint(now);
  PublishStats();
}

std::optional<TimePoint> DiskStore::Impl::NextTick() const {
  const TimePoint now = clock_.Now();
  TimePoint next = next_deadline_;
  if (const auto change = health_.NextChange(now); change.has_value() && !probe_running_) {
    next = std::min(next, *change);
  }
  if (!pending_.empty() && !commit_running_ && !health_.degraded()) {
    next = std::min(
        next, std::max(commit_failed_ + commit_wait_, pending_since_ + options_.commit_interval));
  }
  if (checkpoint_step_ != CheckpointStep::kNone && !checkpoint_running_ && !health_.degraded()) {
    next = now;
  }
  return next == TimePoint::max() ? std::nullopt : std::optional(next);
}

absl::Status DiskStore::Impl::Flush() {
  flushing_ = true;
  flush_error_ = absl::OkStatus();
  commit_wait_ = Duration::zero();
  for (;;) {
    Tick();
    const bool idle = loads_.empty() && stores_.empty() && Settled();
    if (idle || health_.degraded() || closed_ || !flush_error_.ok()) {
      break;
    }
    if (num_running_ > 0) {
      queue_->WaitFinished();
    }
  }
  // What the device is still at belongs to the callers' memory.
  while (!loads_.empty() || !stores_.empty()) {
    queue_->WaitFinished();
    Reap();
  }
  flushing_ = false;
  PublishStats();
  if (flush_error_.ok() && health_.degraded()) {
    return absl::UnavailableError("disk tier is degraded: records may not be durable");
  }
  return flush_error_;
}

absl::Status DiskStore::Impl::Close() {
  if (closed_) {
    return absl::OkStatus();
  }
  absl::Status status = Flush();
  const uint64_t before = stats_.checkpoints;
  checkpoint_wanted_ = status.ok() && stats_.commits > 0;
  // A copy in progress may add changes; they are part of the checkpoint or of the last commit.
  flushing_ = true;
  while (status.ok() && !health_.degraded() &&
         ((checkpoint_wanted_ && clock_.Now() >= checkpoint_retry_) || num_running_ > 0 ||
          !Settled() || checkpoint_step_ != CheckpointStep::kNone)) {
    Tick();
    if (num_running_ > 0) {
      queue_->WaitFinished();
    }
    status = flush_error_;
    if (stats_.checkpoints > before) {
      break;
    }
  }
  while (num_running_ > 0) {
    queue_->WaitFinished();
    Reap();
  }
  closed_ = true;
  lock_ = nullptr;
  PublishStats();
  return status;
}

void DiskStore::Impl::PublishStats() {
  DiskStats& stats = stats_;
  stats.state = state(clock_.Now());
  stats.ring_active = queue_->uses_ring();
  stats.direct_active = direct_active_;
  stats.io_depth = queue_->depth();
  stats.entries = index_.size();
  stats.index_bytes = index_.memory_bytes();
  stats.segments = segments_.size();
  stats.capacity_bytes = CapacityBytes();
  stats.other_bytes = other_bytes_;
  stats.live_bytes = index_.live_bytes();
  stats.used_bytes = segment_used_;
  stats.allocated_bytes = allocated_bytes_ + written_since_;
  stats.free_bytes = free_bytes_ - std::min(free_bytes_, unmeasured_);
  stats.loads_pending = loads_.size();
  stats.stores_pending = stores_.size();
  stats.store_bytes_pending = store_bytes_;
  stats.undurable_entries = pending_.size();
  stats.quarantined_segments = static_cast<uint64_t>(std::count_if(
      segments_.begin(), segments_.end(), [](const auto& s) { return s.second->quarantined; }));
  MutexLock lock(stats_mutex_);
  published_ = stats;
}

DiskStats DiskStore::Impl::Stats() const {
  MutexLock lock(stats_mutex_);
  return published_;
}

absl::Status DiskStore::Impl::CheckIntegrity() const {
  uint64_t entries = 0;
  uint64_t live_bytes = 0;
  absl::Status status;
  index_.Scan(0, kNoEntry, [&](EntryIdx place) {
    const IndexEntry& entry = index_.Get(place);
    ++entries;
    live_bytes += entry.length();
    const auto segment = segments_.find(entry.segment);
    if (segment == segments_.end() || segment->second->dropping) {
      status = Broken("an entry points into segment " + std::to_string(entry.segment) +
                      ", which is gone");
    } else if (entry.offset() + entry.length() > segment->second->end) {
      status = Broken("an entry ends behind segment " + std::to_string(entry.segment));
    } else if (index_.Find(entry.id()) != place) {
      status = Broken("an entry is not found by its key");
    }
  });
  SPINDLE_RETURN_IF_ERROR(status);
  if (entries != index_.size() || live_bytes != index_.live_bytes()) {
    return Broken("totals of the index are wrong");
  }
  SPINDLE_ASSIGN_OR_RETURN(const StoreListing listing, ListStore(files_, directory_));
  uint64_t used = 0;
  for (const auto& item : segments_) {
    const uint32_t number = item.first;
    const Segment* const segment = item.second.get();
    used += segment->end;
    const auto file = std::find_if(listing.segments.begin(),
                                   listing.segments.end(),
                                   [&](const SegmentFile& f) { return f.number == number; });
    const uint64_t bytes = file == listing.segments.end() ? 0 : file->bytes;
    if (segment->num_writers == 0 && segment->exact && !segment->unlinking &&
        bytes != segment->end) {
      return Broken("segment " + std::to_string(number) + " has " + std::to_string(bytes) +
                    " bytes, counted are " + std::to_string(segment->end));
    }
  }
  return used == segment_used_ ? absl::OkStatus() : Broken("used bytes are miscounted");
}

absl::StatusOr<std::unique_ptr<DiskStore>> DiskStore::Open(const DiskOptions& options,
                                                           const StoreIdentity& identity,
                                                           DiskFiles& files,
                                                           const Clock& clock,
                                                           std::function<void()> wake) {
  SPINDLE_RETURN_IF_ERROR(ValidateOptions(options));
  SPINDLE_RETURN_IF_ERROR(ValidateGeometry(identity.geometry));
  SPINDLE_ASSIGN_OR_RETURN(StoreFolder folder,
                           ResolveStore(files, options.path, identity, options.segment_bytes));
  SPINDLE_ASSIGN_OR_RETURN(const StoreListing listing, ListStore(files, folder.directory));
  for (const std::string& name : listing.temporary) {
    files.Unlink(folder.directory + "/" + name).IgnoreError();  // in nobody's way
  }
  DiskIndex index;
  SPINDLE_ASSIGN_OR_RETURN(
      const RecoveryReport report,
      RecoverIndex(files, folder.directory, listing, folder.superblock.uuid, &index));
  if (report.incomplete) {
    log::Warn("kv_disk_index_damaged", {{"directory", folder.directory}});
  }
  for (const LostEntries& lost : report.lost) {
    log::Warn("kv_disk_records_lost",
              {{"file", folder.directory + "/" + SegmentName(lost.segment)},
               {"records", lost.entries},
               {"why", lost.missing ? "the file is missing" : "the file is too short"}});
  }
  auto impl = std::make_unique<Impl>(options,
                                     std::move(folder),
                                     listing,
                                     report,
                                     std::move(index),
                                     files,
                                     clock,
                                     MakeQueue(options, files, clock, std::move(wake)));
  SPINDLE_RETURN_IF_ERROR(impl->LookAtFolder());
  impl->PublishStats();
  return std::unique_ptr<DiskStore>(new DiskStore(std::move(impl)));
}

DiskStore::DiskStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

DiskStore::~DiskStore() = default;

bool DiskStore::Contains(const RecordId& id) const {
  return impl_->Contains(id);
}

bool DiskStore::TakesLoads() const {
  return impl_->TakesLoads();
}

bool DiskStore::ContainsOrStoring(const RecordId& id) const {
  return impl_->ContainsOrStoring(id);
}

absl::StatusOr<Ticket> DiskStore::SubmitLoad(const LoadRequest& request) {
  return impl_->SubmitLoad(request);
}

absl::StatusOr<Ticket> DiskStore::SubmitFetch(const RecordId& id, uint64_t tag) {
  return impl_->SubmitFetch(id, tag);
}

absl::StatusOr<Ticket> DiskStore::SubmitStore(const StoreRequest& request) {
  return impl_->SubmitStore(request);
}

absl::StatusOr<Ticket> DiskStore::SubmitPut(const RecordId& id,
                                            std::span<const uint8_t> bytes,
                                            Ack ack,
                                            uint64_t tag) {
  return impl_->SubmitPut(id, bytes, ack, tag);
}

void DiskStore::Cancel(Ticket ticket) {
  impl_->Cancel(ticket);
}

size_t DiskStore::Poll(std::span<Completion> out) {
  return impl_->Poll(out);
}

bool DiskStore::Erase(const RecordId& id) {
  return impl_->Erase(id);
}

void DiskStore::Retain(const Digest& stripe_key) {
  impl_->Retain(stripe_key);
}

bool DiskStore::Release(const Digest& stripe_key) {
  return impl_->Release(stripe_key);
}

uint64_t DiskStore::RetainedBytes() const {
  return impl_->RetainedBytes();
}

void DiskStore::Touch(const RecordId& id) {
  impl_->Touch(id);
}

void DiskStore::ForEach(RecordKind kind, const std::function<void(const RecordId&)>& visit) const {
  impl_->ForEach(kind, visit);
}

void DiskStore::Tick() {
  impl_->Tick();
}

std::optional<TimePoint> DiskStore::NextTick() const {
  return impl_->NextTick();
}

absl::Status DiskStore::Flush() {
  return impl_->Flush();
}

absl::Status DiskStore::Collect(uint64_t target_bytes) {
  return impl_->Collect(target_bytes);
}

absl::Status DiskStore::Close() {
  return impl_->Close();
}

DiskStats DiskStore::Stats() const {
  return impl_->Stats();
}

const RecoveryReport& DiskStore::recovery() const {
  return impl_->recovery();
}

const std::string& DiskStore::directory() const {
  return impl_->directory();
}

absl::Status DiskStore::CheckIntegrity() const {
  return impl_->CheckIntegrity();
}

}  // namespace spindle::kv::disk
