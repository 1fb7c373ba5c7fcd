// Group commit and checkpoint.
#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "kv/disk/store_impl.h"
#include "kv/disk/store_jobs.h"

namespace spindle::kv::disk {
namespace {

// Places of the index that one step of a checkpoint looks at: under a millisecond of the engine
// thread.
constexpr uint32_t kCheckpointSlice = 8192;
// Part of the capacity that the journal may take.
constexpr uint64_t kJournalShareInverse = 16;
// Rest after a checkpoint that failed.
constexpr std::chrono::seconds kCheckpointPause{60};
// Longest rest after a commit that failed; the first is the interval of commits, then it doubles.
constexpr std::chrono::seconds kLongestCommitWait{10};

}  // namespace

void DiskStore::Impl::AddChange(const LogEntry& change, uint64_t data_bytes) {
  if (pending_.empty()) {
    pending_since_ = clock_.Now();
  }
  pending_.push_back(change);
  pending_bytes_ += data_bytes;
}

bool DiskStore::Impl::CommitDue(TimePoint now) const {
  // A clock that was set back must not lengthen a rest.
  const bool retry = now - commit_failed_ >= commit_wait_ || now < commit_failed_;
  return !pending_.empty() && !commit_running_ && !health_.degraded() && retry &&
         (flushing_ || pending_bytes_ >= options_.commit_bytes ||
          now - pending_since_ >= options_.commit_interval ||
          now < pending_since_ ||  // the clock was set back
          checkpoint_step_ == CheckpointStep::kSettle);
}

void DiskStore::Impl::StartCommit() {
  if (commit_job_ == nullptr) {
    commit_job_ = std::make_unique<CommitJob>();
  }
  CommitJob& job = *commit_job_;
  job.files = &files_;
  job.directory = directory_;
  job.journal = &journal_;
  job.sync_directory = false;
  job.generation = generation_++;
  job.segments.clear();
  for (const auto& [number, segment] : segments_) {
    if (segment->dirty && segment->file != nullptr) {
      job.sync_directory = job.sync_directory || !segment->name_durable;
      job.segments.push_back({segment.get(), absl::OkStatus()});
      ++segment->num_users;
      // Writes that run now may end after the sync: they make it dirty again when they end.
      segment->dirty = segment->num_writers > 0;
    }
  }
  job.entries.clear();
  std::swap(job.entries, pending_);
  pending_bytes_ = 0;
  commit_running_ = true;
  SubmitJob(&job);
}

// Nothing that was written since the last good sync of the segment can be relied on, whatever a
// later sync says.
void DiskStore::Impl::FailSegment(Segment& segment, const absl::Status& status) {
  segment.suspect = true;
  std::erase_if(pending_, [&](const LogEntry& change) {
    return change.op == LogEntry::Op::kPut && change.segment == segment.number;
  });
  EntryIdx entry = index_.Live(segment.number).first;
  while (entry != kNoEntry) {
    const IndexEntry& at = index_.Get(entry);
    const EntryIdx next = at.segment_next;
    if (!at.durable) {
      // The journal may hold an earlier place of the record.
      AddChange({.op = LogEntry::Op::kErase, .id = at.id()}, 0);
      index_.Erase(entry);
      ++stats_.tombstones;
    }
    entry = next;
  }
  ReleaseDurable(&segment, status);
  OnError(DeviceError::kSync, status);
}

// Completes stores that wait for a commit: those of `segment`, or all that are covered by one.
void DiskStore::Impl::ReleaseDurable(const Segment* segment, const absl::Status& status) {
  std::erase_if(waiting_durable_, [&](TransferJob* job) {
    if (segment != nullptr ? job->segment != segment : job->generation > committed_generation_) {
      return false;
    }
    job->status = status;
    outputs_.push_back({job, true});
    return true;
  });
}

void DiskStore::Impl::HandleCommit(CommitJob* job) {
  commit_running_ = false;
  for (CommitJob::ToSync& sync : job->segments) {
    --sync.segment->num_users;
    if (sync.status.ok()) {
      sync.segment->name_durable = sync.segment->name_durable || job->status.ok();
    } else {
      FailSegment(*sync.segment, sync.status);
    }
  }
  if (!job->status.ok()) {
    ++stats_.commit_failures;
    if (flush_error_.ok()) {
      flush_error_ = job->status;
    }
    log::Warn("kv_disk_commit_failed", {{"error", std::string(job->status.message())}});
    OnError(LogError(job->status), job->status);
    // The segments were synced, but their names may not be; the changes try again with a new
    // journal.
    for (const CommitJob::ToSync& sync : job->segments) {
      sync.segment->dirty = sync.segment->dirty || !sync.segment->name_durable;
    }
    pending_.insert(pending_.begin(), job->entries.begin(), job->entries.end());
    pending_since_ = commit_failed_ = clock_.Now();
    commit_wait_ = std::max<Duration>(options_.commit_interval,
                                      std::min<Duration>(2 * commit_wait_, kLongestCommitWait));
    return;
  }
  ++stats_.commits;
  commit_wait_ = Duration::zero();
  stats_.journal_bytes = journal_.bytes();
  committed_generation_ = job->generation;
  for (const LogEntry& change : job->entries) {
    if (change.op != LogEntry::Op::kPut) {
      continue;
    }
    const EntryIdx entry = index_.Find(change.id);
    if (entry != kNoEntry && index_.Get(entry).seq == change.seq &&
        index_.Get(entry).segment == change.segment &&
        index_.Get(entry).offset_pages == change.offset_pages) {
      index_.MarkDurable(entry);
    }
  }
  ReleaseDurable(nullptr, absl::OkStatus());
}

// A checkpoint is written in slices while the store works on; changes meanwhile go to a new journal
// that is replayed over it. Only what is durable is written, and the end waits until a commit has
// covered all changes that were pending at the end of the scan: so nothing that the older journals
// hold is missing when they are removed.
void DiskStore::Impl::StepCheckpoint(TimePoint now) {
  if (checkpoint_running_ || health_.degraded()) {
    return;
  }
  const uint64_t journal_limit =
      std::min(options_.checkpoint_journal_bytes, options_.capacity_bytes / kJournalShareInverse);
  switch (checkpoint_step_) {
    case CheckpointStep::kNone:
      if (commit_running_ || now < checkpoint_retry_ ||
          (!checkpoint_wanted_ && journal_.bytes() < journal_limit)) {
        return;
      }
      checkpoint_wanted_ = false;
      checkpoint_writer_ =
          std::make_unique<CheckpointWriter>(files_, directory_, uuid_, journal_.Rotate());
      if (checkpoint_job_ == nullptr) {
        checkpoint_job_ = std::make_unique<CheckpointJob>();
      }
      checkpoint_job_->writer = checkpoint_writer_.get();
      checkpoint_job_->finish = false;
      checkpoint_cursor_ = 0;
      checkpoint_step_ = CheckpointStep::kScan;
      [[fallthrough]];
    case CheckpointStep::kScan: {
      std::vector<LogEntry>& entries = checkpoint_job_->entries;
      entries.clear();
      checkpoint_cursor_ = index_.Scan(checkpoint_cursor_, kCheckpointSlice, [&](EntryIdx entry) {
        if (index_.Get(entry).durable) {
          entries.push_back(index_.Get(entry).AsPut());
        }
      });
      if (checkpoint_cursor_ == kNoEntry) {
        checkpoint_step_ = CheckpointStep::kSettle;
        settle_generation_ = pending_.empty() ? generation_ - 1 : generation_;
      }
      break;
    }
    case CheckpointStep::kSettle:
      // A commit that failed put its changes back: they count from then on.
      if (committed_generation_ < settle_generation_ && !Settled()) {
        return;
      }
      checkpoint_job_->finish = true;
      checkpoint_step_ = CheckpointStep::kFinish;
      break;
    case CheckpointStep::kFinish:
      return;
  }
  checkpoint_running_ = true;
  SubmitJob(checkpoint_job_.get());
}

void DiskStore::Impl::HandleCheckpoint(CheckpointJob* job) {
  checkpoint_running_ = false;
  if (job->status.ok() && !job->finish) {
    return;
  }
  checkpoint_step_ = CheckpointStep::kNone;
  checkpoint_writer_ = nullptr;
  if (job->status.ok()) {
    ++stats_.checkpoints;
    return;
  }
  checkpoint_wanted_ = true;
  checkpoint_retry_ = clock_.Now() + kCheckpointPause;
  log::Warn("kv_disk_checkpoint_failed", {{"error", std::string(job->status.message())}});
  OnError(LogError(job->status), job->status);
}

}  // namespace spindle::kv::disk
