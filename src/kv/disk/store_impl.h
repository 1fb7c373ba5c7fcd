// Inside of DiskStore, split over five files by concern: disk_store.cc (open, close, statistics),
// store_transfers.cc (loads and stores), store_commits.cc (group commit, checkpoint),
// store_collector.cc (space, garbage collection), store_health.cc (errors, outages, probes).
// Engine-thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kv/disk/disk_index.h"
#include "kv/disk/disk_store.h"
#include "kv/disk/io_queue.h"
#include "kv/disk/log_files.h"
#include "kv/disk/store_directory.h"
#include "kv/disk/tier_health.h"
#include "kv/disk/transfer_job.h"

namespace spindle::kv::disk {

class CommitJob;
class CheckpointJob;
class CopyJob;
class UnlinkJob;
class SpaceJob;
class ProbeJob;

// What a failed write counts as.
[[nodiscard]] inline DeviceError WriteError(const absl::Status& status) {
  return absl::IsResourceExhausted(status) ? DeviceError::kWriteFull : DeviceError::kWrite;
}

[[nodiscard]] inline DeviceError LogError(const absl::Status& status) {
  return absl::IsResourceExhausted(status) ? DeviceError::kLogFull : DeviceError::kLog;
}

// The end of a store that waits for a commit which will not come soon.
[[nodiscard]] inline absl::Status MaybeNotDurable() {
  return absl::UnavailableError("disk tier is degraded: the record may not be durable");
}

class DiskStore::Impl {
 public:
  Impl(const DiskOptions& options,
       StoreFolder folder,
       const StoreListing& listing,
       const RecoveryReport& report,
       DiskIndex index,
       DiskFiles& files,
       const Clock& clock,
       std::unique_ptr<IoQueue> queue);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // See DiskStore.
  [[nodiscard]] bool Contains(const RecordId& id) const { return index_.Find(id) != kNoEntry; }

  [[nodiscard]] bool ContainsOrStoring(const RecordId& id) const;
  absl::StatusOr<Ticket> SubmitLoad(const LoadRequest& request);
  absl::StatusOr<Ticket> SubmitFetch(const RecordId& id, uint64_t tag);
  absl::StatusOr<Ticket> SubmitStore(const StoreRequest& request);
  absl::StatusOr<Ticket> SubmitPut(const RecordId& id,
                                   std::span<const uint8_t> bytes,
                                   Ack ack,
                                   uint64_t tag);
  void Cancel(Ticket ticket);
  size_t Poll(std::span<Completion> out);
  bool Erase(const RecordId& id);

  void Retain(const Digest& stripe_key) { index_.Retain(stripe_key); }

  bool Release(const Digest& stripe_key) { return index_.Release(stripe_key); }

  [[nodiscard]] uint64_t RetainedBytes() const {
    return index_.num_retained() * (stripe_header_bytes_ + identity_.geometry.stripe_bytes());
  }

  [[nodiscard]] bool TakesLoads() const;
  void Touch(const RecordId& id);
  void ForEach(RecordKind kind, const std::function<void(const RecordId&)>& visit) const;
  void Tick();
  [[nodiscard]] std::optional<TimePoint> NextTick() const;
  absl::Status Flush();
  absl::Status Close();
  absl::Status Collect(uint64_t target_bytes);
  [[nodiscard]] DiskStats Stats() const SPINDLE_EXCLUDES(stats_mutex_);
  [[nodiscard]] absl::Status CheckIntegrity() const;

  [[nodiscard]] const RecoveryReport& recovery() const { return report_; }

  [[nodiscard]] const std::string& directory() const { return directory_; }

  // Measures space, and whether direct I/O is to be had, while nothing else runs; called by Open.
  // ERRORS: those of the file layer.
  [[nodiscard]] absl::Status LookAtFolder();
  void PublishStats() SPINDLE_EXCLUDES(stats_mutex_);

 private:
  struct Place {
    Segment* segment;
    uint32_t offset_pages;
    bool fresh;  // the first record of its segment
  };

  // What Poll hands out; the job belongs to the output until its final completion.
  struct Output {
    TransferJob* job;
    bool final;
  };

  // Life of jobs.
  void SubmitJob(StoreJob* job);
  void Reap();
  void Handle(StoreJob* job);
  TransferJob* TakeJob();
  void Retire(TransferJob* job);

  // store_transfers.cc
  absl::StatusOr<TransferJob*> StartRead(const RecordId& id);
  absl::Status AdmitStore(const RecordId& id, uint64_t record_bytes);
  absl::StatusOr<Ticket> StartStore(TransferJob* job);
  absl::StatusOr<Place> TakePlace(uint64_t record_bytes);
  absl::Status OpenSegment(Segment& segment);
  void CloseIdleSegment();
  void HandleTransfer(TransferJob* job);
  void HandleRead(TransferJob* job);
  void HandleWrite(TransferJob* job);
  void Tombstone(const TransferJob& job);

  void FailLoad(LoadFailure cause) { ++stats_.load_failures[static_cast<size_t>(cause)]; }

  void SkipStore(StoreSkip cause) { ++stats_.stores_skipped[static_cast<size_t>(cause)]; }

  void GiveUp(TransferJob* job, const absl::Status& status, LoadFailure cause);
  void ExpireLoads(TimePoint now);
  [[nodiscard]] bool SamePlace(EntryIdx entry, const Segment& segment, uint32_t offset_pages) const;

  // store_commits.cc
  void AddChange(const LogEntry& change, uint64_t data_bytes);
  [[nodiscard]] bool CommitDue(TimePoint now) const;
  void StartCommit();
  void HandleCommit(CommitJob* job);
  void FailSegment(Segment& segment, const absl::Status& status);
  void ReleaseDurable(const Segment* segment, const absl::Status& status);
  void StepCheckpoint(TimePoint now);
  void HandleCheckpoint(CheckpointJob* job);

  [[nodiscard]] bool Settled() const { return pending_.empty() && !commit_running_; }

  // store_collector.cc
  void StepCollector(TimePoint now);
  [[nodiscard]] bool NeedsSpace() const;
  Segment* PickVictim();
  [[nodiscard]] bool MayYield(const Segment& segment) const;
  void StartCollecting(Segment& victim);
  void StepCopies();
  void HandleCopy(CopyJob* job);
  void SpareVictim();
  void DropVictim();
  void UnlinkDropped();
  void HandleUnlink(UnlinkJob* job);
  void HandleSpace(SpaceJob* job);
  [[nodiscard]] uint64_t UsedBytes() const;
  [[nodiscard]] uint64_t CapacityBytes() const;
  [[nodiscard]] uint64_t FreeFloor() const;
  // Given a place, and perhaps not yet written.
  [[nodiscard]] uint64_t InFlightBytes() const;

  // store_health.cc
  [[nodiscard]] TierState state(TimePoint now) const;

  void CountError(DeviceError error) { ++stats_.device_errors[static_cast<size_t>(error)]; }

  // Counts an error, and does what it calls for: stores rest when there is no space, too many of
  // the others switch the tier off.
  void OnError(DeviceError error, const absl::Status& status);
  void PauseStores(const absl::Status& cause);
  void Degrade(const absl::Status& error);
  void StepProbe(TimePoint now);
  void HandleProbe(ProbeJob* job);

  [[nodiscard]] std::string PathOf(const Segment& segment) const {
    return directory_ + "/" + SegmentName(segment.number);
  }

  [[nodiscard]] Segment& SegmentOf(uint32_t number) { return *segments_.at(number); }

  // Constant after construction.
  const DiskOptions options_;
  const std::string directory_;
  std::unique_ptr<DiskLock> lock_;  // until Close
  const StoreIdentity identity_;
  const StoreUuid uuid_;
  const uint64_t segment_bytes_;
  const uint64_t stripe_header_bytes_;
  const RecoveryReport report_;
  DiskFiles& files_;
  const Clock& clock_;
  std::unique_ptr<IoQueue> queue_;

  DiskIndex index_;
  std::map<uint32_t, std::unique_ptr<Segment>> segments_;
  Segment* active_ = nullptr;  // records are appended here
  uint32_t next_segment_;
  uint64_t next_seq_;
  bool direct_active_ = false;  // the file system does direct I/O
  uint32_t num_open_ = 0;       // segments with an open file
  uint64_t segment_used_ = 0;   // sum of their ends

  // Requests.
  std::vector<std::unique_ptr<TransferJob>> jobs_;
  std::vector<TransferJob*> free_jobs_;
  std::vector<TransferJob*> loads_;   // running, any order
  std::vector<TransferJob*> stores_;  // running, any order
  std::deque<Output> outputs_;
  uint64_t ticket_generation_ = 0;
  uint64_t store_bytes_ = 0;  // of running stores
  TimePoint next_deadline_ = TimePoint::max();
  uint32_t num_running_ = 0;  // jobs in the queue, of any type

  // Commits. `generation_` numbers the commit that the pending changes will be part of.
  JournalWriter journal_;
  std::vector<LogEntry> pending_;
  uint64_t pending_bytes_ = 0;
  TimePoint pending_since_{};
  TimePoint commit_failed_{};  // the last one did, then
  Duration commit_wait_{};     // until the next is tried; zero after a good one
  uint64_t generation_ = 1;
  uint64_t committed_generation_ = 0;
  bool commit_running_ = false;
  bool flushing_ = false;
  absl::Status flush_error_;
  std::vector<TransferJob*> waiting_durable_;
  std::unique_ptr<CommitJob> commit_job_;

  // Checkpoint.
  enum class CheckpointStep : uint8_t { kNone, kScan, kSettle, kFinish };
  CheckpointStep checkpoint_step_ = CheckpointStep::kNone;
  bool checkpoint_wanted_ = false;
  bool checkpoint_running_ = false;  // its job
  EntryIdx checkpoint_cursor_ = 0;
  uint64_t settle_generation_ = 0;
  TimePoint checkpoint_retry_ = TimePoint::min();
  std::unique_ptr<CheckpointWriter> checkpoint_writer_;
  std::unique_ptr<CheckpointJob> checkpoint_job_;

  // Space and collection.
  bool collecting_ = false;  // between the watermarks
  Segment* victim_ = nullptr;
  std::vector<RecordId> to_copy_;
  bool copy_running_ = false;
  std::unique_ptr<CopyJob> copy_job_;
  std::unique_ptr<UnlinkJob> unlink_job_;
  std::unique_ptr<SpaceJob> space_job_;
  bool space_running_ = false;
  bool space_known_ = false;
  bool force_collect_ = false;  // the device was full: make room whatever the watermarks say
  bool room_made_ = false;      // records were dropped for room, and no store has succeeded since
  TimePoint space_measured_{};
  uint64_t written_since_ = 0;  // bytes given places since the measurement
  // The same, with those that had places before it and may have been written after it: what the
  // free bytes may lack.
  uint64_t unmeasured_ = 0;
  uint64_t allocated_bytes_ = 0;
  uint64_t other_bytes_ = 0;
  uint64_t free_bytes_ = 0;
  uint64_t total_bytes_ = 0;

  // Health.
  bool closed_ = false;
  TierHealth health_;
  std::unique_ptr<ProbeJob> probe_job_;
  bool probe_running_ = false;

  DiskStats stats_;  // the counters; gauges are filled in by PublishStats
  mutable Mutex stats_mutex_;
  DiskStats published_ SPINDLE_GUARDED_BY(stats_mutex_);
};

}  // namespace spindle::kv::disk
