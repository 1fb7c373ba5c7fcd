// What the device gets wrong, and when the tier may be used again.
#include <string>

#include "base/log.h"
#include "kv/disk/store_impl.h"
#include "kv/disk/store_jobs.h"

namespace spindle::kv::disk {

TierState DiskStore::Impl::state(TimePoint now) const {
  return closed_ ? TierState::kOff : health_.state(now);
}

void DiskStore::Impl::OnError(DeviceError error, const absl::Status& status) {
  CountError(error);
  if (absl::IsResourceExhausted(status)) {
    PauseStores(status);
  } else if (health_.CountError(clock_.Now())) {
    Degrade(status);
  }
}

void DiskStore::Impl::PauseStores(const absl::Status& cause) {
  if (health_.PauseStores(clock_.Now())) {
    log::Warn("kv_disk_full", {{"error", std::string(cause.message())}});
  }
  force_collect_ = true;
}

// Changes that no commit covers yet stay pending: a commit follows when the tier is back.
void DiskStore::Impl::Degrade(const absl::Status& error) {
  ++stats_.outages;
  log::Warn("kv_disk_degraded",
            {{"errors", options_.max_errors},
             {"directory", directory_},
             {"error", std::string(error.message())},
             {"probe_after_seconds", ToSeconds(health_.probe_wait())}});
  for (TransferJob* const job : waiting_durable_) {
    job->status = MaybeNotDurable();
    outputs_.push_back({job, true});
  }
  waiting_durable_.clear();
}

void DiskStore::Impl::StepProbe(TimePoint now) {
  if (probe_running_ || !health_.ProbeDue(now)) {
    return;
  }
  if (probe_job_ == nullptr) {
    probe_job_ = std::make_unique<ProbeJob>();
    probe_job_->files = &files_;
    probe_job_->directory = directory_;
    probe_job_->uuid = uuid_;
    probe_job_->path = directory_ + "/" + kProbeName;
    probe_job_->direct = options_.direct;
  }
  ++probe_job_->number;
  probe_running_ = true;
  SubmitJob(probe_job_.get());
}

void DiskStore::Impl::HandleProbe(ProbeJob* job) {
  probe_running_ = false;
  const TimePoint now = clock_.Now();
  const bool full = absl::IsResourceExhausted(job->status);
  if (!job->status.ok()) {
    CountError(DeviceError::kProbe);
    if (!full) {
      health_.ProbeFailed(now);
      log::Warn("kv_disk_probe_failed",
                {{"error", std::string(job->status.message())},
                 {"probe_after_seconds", ToSeconds(health_.probe_wait())}});
      return;
    }
  }
  ++stats_.recoveries;
  health_.ProbePassed(now);
  log::Info("kv_disk_recovered", {{"directory", directory_}});
  if (full) {
    PauseStores(job->status);  // a full device answers: loads go on
  }
}

}  // namespace spindle::kv::disk
