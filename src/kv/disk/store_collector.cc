// Space: measuring it, making room, and what happens when there is none.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "kv/disk/store_impl.h"
#include "kv/disk/store_jobs.h"

namespace spindle::kv::disk {
namespace {

// Live share of a segment up to which its live records are copied rather than dropped.
constexpr uint64_t kCopyShareInverse = 5;

// The record cannot be read any more, so there is nothing to keep.
bool IsLost(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status);
}

}  // namespace

uint64_t DiskStore::Impl::UsedBytes() const {
  return std::max(segment_used_, allocated_bytes_ + written_since_);
}

uint64_t DiskStore::Impl::CapacityBytes() const {
  return options_.capacity_bytes - std::min(options_.capacity_bytes, other_bytes_);
}

uint64_t DiskStore::Impl::FreeFloor() const {
  return std::max(
      options_.min_free_bytes,
      static_cast<uint64_t>(options_.min_free_fraction * static_cast<double>(total_bytes_)));
}

bool DiskStore::Impl::NeedsSpace() const {
  const double used = static_cast<double>(UsedBytes());
  const double capacity = static_cast<double>(CapacityBytes());
  return used > (collecting_ ? options_.low_watermark : options_.high_watermark) * capacity ||
         (space_known_ && free_bytes_ < unmeasured_ + FreeFloor());
}

uint64_t DiskStore::Impl::InFlightBytes() const {
  return store_bytes_ + (copy_running_ ? copy_job_->length_pages * kAlignment : 0);
}

// A sealed segment without live records, else the one whose content is worth least.
Segment* DiskStore::Impl::PickVictim() {
  Segment* best = nullptr;
  double best_worth = std::numeric_limits<double>::infinity();
  Segment* last = nullptr;
  const TimePoint now = clock_.Now();
  for (const auto& [number, segment] : segments_) {
    const bool spared = segment->spared_since.has_value() && now >= *segment->spared_since &&
                        now - *segment->spared_since < options_.full_pause;
    if (segment->dropping || segment->quarantined || segment->num_writers > 0 || spared) {
      continue;
    }
    if (segment.get() == active_) {
      last = active_;
      continue;
    }
    const SegmentLive live = index_.Live(number);
    // Copying nearly all of it would free next to nothing, again and again.
    if (live.kept_bytes * kCopyShareInverse > segment->end * (kCopyShareInverse - 1)) {
      continue;
    }
    const double age = 1.0 + static_cast<double>(index_.use_clock() - live.last_use);
    const double worth = static_cast<double>(live.bytes) / age;
    if (worth < best_worth) {
      best_worth = worth;
      best = segment.get();
    }
  }
  return best != nullptr ? best : last;
}

// Whether a full device gets this segment. It may be full of what others wrote, so that room made
// here does not help: one segment with records, and not all that there are. Nor what must be kept:
// there is no room for copies.
bool DiskStore::Impl::MayYield(const Segment& segment) const {
  const SegmentLive live = index_.Live(segment.number);
  return &segment != active_ && live.kept_bytes == 0 &&
         (live.bytes == 0 || (!room_made_ && live.bytes < index_.live_bytes()));
}

void DiskStore::Impl::StepCollector(TimePoint now) {
  if (health_.degraded()) {
    return;
  }
  // Not side by side: nobody could say whether the free bytes count the file that goes.
  if (!space_running_) {
    UnlinkDropped();
  }
  const bool stale = !space_known_ || unmeasured_ > 0 || force_collect_;
  if (!space_running_ && stale &&
      (now - space_measured_ >= options_.space_interval || now < space_measured_) &&
      std::none_of(segments_.begin(), segments_.end(), [](const auto& item) {
        return item.second->unlinking;
      })) {
    if (space_job_ == nullptr) {
      space_job_ = std::make_unique<SpaceJob>();
      space_job_->files = &files_;
      space_job_->root = options_.path;
      space_job_->directory = directory_;
    }
    space_running_ = true;
    space_job_->covered_bytes = unmeasured_ - std::min(unmeasured_, InFlightBytes());
    SubmitJob(space_job_.get());
  }
  if (victim_ != nullptr) {
    StepCopies();
    return;
  }
  // One drop at a time, so that its effect is known before the next is chosen.
  if (std::any_of(segments_.begin(), segments_.end(), [](const auto& item) {
        return item.second->dropping && !item.second->quarantined;
      })) {
    return;
  }
  collecting_ = NeedsSpace();
  if (collecting_ || force_collect_) {
    force_collect_ = false;
    Segment* const victim = PickVictim();
    if (victim != nullptr && (collecting_ || MayYield(*victim))) {
      room_made_ = room_made_ || index_.Live(victim->number).bytes > 0;
      StartCollecting(*victim);
    }
  }
}

void DiskStore::Impl::StartCollecting(Segment& victim) {
  if (&victim == active_) {
    active_ = nullptr;
  }
  victim_ = &victim;
  to_copy_.clear();
  const SegmentLive live = index_.Live(victim.number);
  const bool copy_all = live.bytes * kCopyShareInverse <= victim.end;
  for (EntryIdx entry = live.first; entry != kNoEntry; entry = index_.Get(entry).segment_next) {
    if (copy_all || MustKeep(index_.Get(entry))) {
      to_copy_.push_back(index_.Get(entry).id());
    }
  }
  StepCopies();
}

absl::Status DiskStore::Impl::Collect(uint64_t target_bytes) {
  flushing_ = true;
  flush_error_ = absl::OkStatus();
  commit_wait_ = Duration::zero();
  uint64_t before = std::numeric_limits<uint64_t>::max();
  for (;;) {
    Tick();
    const bool busy = victim_ != nullptr || num_running_ > 0 || !Settled() ||
                      std::any_of(segments_.begin(), segments_.end(), [](const auto& item) {
                        return item.second->dropping && !item.second->quarantined;
                      });
    if (!flush_error_.ok() || health_.degraded() || closed_) {
      break;
    }
    if (!busy) {
      Segment* const victim = PickVictim();
      if (victim == nullptr || segment_used_ >= before) {
        break;
      }
      const SegmentLive live = index_.Live(victim->number);
      if (live.bytes * kCopyShareInverse > victim->end && segment_used_ <= target_bytes) {
        break;
      }
      before = segment_used_;
      StartCollecting(*victim);
    }
    if (num_running_ > 0) {
      queue_->WaitFinished();
    }
  }
  flushing_ = false;
  PublishStats();
  return health_.degraded() ? absl::UnavailableError("disk tier is degraded") : flush_error_;
}

// Starts the next copy, or drops the victim when all are done. Rests while the tier is off.
void DiskStore::Impl::StepCopies() {
  if (copy_running_ || health_.degraded()) {
    return;
  }
  while (!to_copy_.empty()) {
    const EntryIdx entry = index_.Find(to_copy_.back());
    to_copy_.pop_back();
    if (entry == kNoEntry || index_.Get(entry).segment != victim_->number) {
      continue;
    }
    const IndexEntry& at = index_.Get(entry);
    const absl::Status opened = OpenSegment(*victim_);
    const absl::StatusOr<Place> place =
        opened.ok() ? TakePlace(at.length()) : absl::StatusOr<Place>(opened);
    if (!place.ok()) {
      if (MustKeep(at) && !IsLost(place.status())) {
        SpareVictim();
        return;
      }
      continue;
    }
    if (copy_job_ == nullptr) {
      copy_job_ = std::make_unique<CopyJob>();
      copy_job_->uuid = uuid_;
    }
    CopyJob& job = *copy_job_;
    job.id = at.id();
    job.seq = at.seq;
    job.from = victim_;
    job.to = place->segment;
    job.from_pages = at.offset_pages;
    job.to_pages = place->offset_pages;
    job.length_pages = at.length_pages;
    job.header_crc = at.header_crc;
    job.with_segment_header = place->fresh;
    ++job.from->num_users;
    ++job.to->num_users;
    ++job.to->num_writers;
    job.to->dirty = true;
    copy_running_ = true;
    SubmitJob(&job);
    return;
  }
  DropVictim();
}

void DiskStore::Impl::HandleCopy(CopyJob* job) {
  copy_running_ = false;
  --job->from->num_users;
  --job->to->num_users;
  --job->to->num_writers;
  if (!job->status.ok()) {
    job->to->suspect = true;
    job->to->exact = false;
    if (absl::IsDataLoss(job->status)) {
      CountError(DeviceError::kReadDamage);
    } else if (!job->writing) {
      OnError(DeviceError::kRead, job->status);
    } else {
      OnError(WriteError(job->status), job->status);
    }
    const EntryIdx entry = index_.Find(job->id);
    if (SamePlace(entry, *job->from, job->from_pages) && MustKeep(index_.Get(entry)) &&
        !IsLost(job->status)) {
      SpareVictim();
      return;
    }
  } else {
    ++stats_.copied_records;
    const uint64_t bytes = job->length_pages * kAlignment;
    stats_.device_read_bytes += bytes;
    stats_.device_written_bytes += bytes;
    const EntryIdx entry = index_.Find(job->id);
    if (SamePlace(entry, *job->from, job->from_pages)) {
      LogEntry put = index_.Get(entry).AsPut();
      put.segment = job->to->number;
      put.offset_pages = job->to_pages;
      index_.Put(put, false);
      AddChange(put, bytes);
    }
  }
  StepCopies();
}

// Something in it that is kept cannot be moved now: on a full device the place is missing.
void DiskStore::Impl::SpareVictim() {
  to_copy_.clear();
  std::exchange(victim_, nullptr)->spared_since = clock_.Now();
}

// Phase one: gone from the index. The file goes when a commit has made that durable and nobody
// reads it any more.
void DiskStore::Impl::DropVictim() {
  Segment& segment = *std::exchange(victim_, nullptr);
  const uint64_t dropped = index_.DropSegment(segment.number);
  stats_.collected_records += dropped;
  ++stats_.collected_segments;
  AddChange({.op = LogEntry::Op::kDropSegment, .segment = segment.number}, 0);
  segment.dropping = true;
  segment.drop_generation = generation_;
}

void DiskStore::Impl::UnlinkDropped() {
  for (const auto& [number, segment] : segments_) {
    if (!segment->dropping || segment->unlinking || segment->quarantined ||
        segment->num_users > 0 || committed_generation_ < segment->drop_generation) {
      continue;
    }
    if (unlink_job_ == nullptr) {
      unlink_job_ = std::make_unique<UnlinkJob>();
      unlink_job_->files = &files_;
    }
    if (segment->file != nullptr) {
      segment->file = nullptr;
      --num_open_;
    }
    segment->dirty = false;
    segment->unlinking = true;
    unlink_job_->path = PathOf(*segment);
    unlink_job_->segment = segment.get();
    SubmitJob(unlink_job_.get());
    return;
  }
}

void DiskStore::Impl::HandleUnlink(UnlinkJob* job) {
  Segment& segment = *job->segment;
  segment.unlinking = false;
  if (!job->status.ok() && !absl::IsNotFound(job->status)) {
    segment.quarantined = true;
    CountError(DeviceError::kUnlink);
    log::Warn("kv_disk_quarantine",
              {{"file", job->path}, {"error", std::string(job->status.message())}});
    return;
  }
  segment_used_ -= segment.end;
  allocated_bytes_ -= std::min(allocated_bytes_, segment.end);
  free_bytes_ += segment.end;
  const uint32_t number = segment.number;
  segments_.erase(number);
}

void DiskStore::Impl::HandleSpace(SpaceJob* job) {
  space_running_ = false;
  space_measured_ = clock_.Now();
  if (!job->status.ok()) {
    ++stats_.space_failures;
    if (space_known_) {
      log::Warn("kv_disk_space_unknown",
                {{"directory", directory_}, {"error", std::string(job->status.message())}});
    }
    space_known_ = false;
    OnError(DeviceError::kSpace, job->status);
    return;
  }
  space_known_ = true;
  allocated_bytes_ = job->own.allocated_bytes;
  other_bytes_ = job->other_bytes;
  free_bytes_ = job->space.free_bytes;
  total_bytes_ = job->space.total_bytes;
  written_since_ = 0;
  unmeasured_ -= job->covered_bytes;
  for (const auto& item : segments_) {
    Segment* const segment = item.second.get();
    if (segment->exact || segment->num_users > 0 || segment == active_) {
      continue;
    }
    const auto file = std::find_if(
        job->own.segments.begin(), job->own.segments.end(), [&](const SegmentFile& listed) {
          return listed.number == segment->number;
        });
    segment_used_ -= segment->end;
    segment->end = file == job->own.segments.end() ? 0 : file->bytes;
    segment_used_ += segment->end;
    segment->exact = true;
  }
}

absl::Status DiskStore::Impl::LookAtFolder() {
  SpaceJob job;
  job.files = &files_;
  job.root = options_.path;
  job.directory = directory_;
  job.status = job.RunTask();
  HandleSpace(&job);
  SPINDLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<DiskFile> file,
      files_.Open(directory_ + "/" + kSuperblockName, OpenMode::kRead, options_.direct));
  direct_active_ = file->direct();
  return absl::OkStatus();
}

}  // namespace spindle::kv::disk
