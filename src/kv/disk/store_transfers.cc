// Loads, fetches and stores.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "kv/disk/store_impl.h"

namespace spindle::kv::disk {
namespace {

// A ticket is (generation, place in the pool of jobs).
constexpr uint64_t kPlaceBits = 17;
constexpr uint64_t kPlaceMask = (uint64_t{1} << kPlaceBits) - 1;
// Open segment files; beyond, idle ones are closed.
constexpr uint32_t kMaxOpenSegments = 512;

bool Aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kAlignment == 0;
}

void SetTokens(std::span<const TokenId> tokens, RecordFields* fields) {
  fields->num_tokens = static_cast<uint32_t>(tokens.size());
  fields->tokens.fill(0);
  std::copy(tokens.begin(), tokens.end(), fields->tokens.begin());
}

absl::Status Switched(TierState state) {
  return absl::UnavailableError("disk tier is " + std::string(StateName(state)));
}

}  // namespace

TransferJob* DiskStore::Impl::TakeJob() {
  if (free_jobs_.empty()) {
    SPINDLE_CHECK(jobs_.size() < kPlaceMask);
    jobs_.push_back(std::make_unique<TransferJob>(stripe_header_bytes_));
    jobs_.back()->ticket = jobs_.size() - 1;
    free_jobs_.push_back(jobs_.back().get());
  }
  TransferJob* const job = free_jobs_.back();
  free_jobs_.pop_back();
  job->ticket = (++ticket_generation_ << kPlaceBits) | (job->ticket & kPlaceMask);
  job->tag = 0;
  job->ack = Ack::kWritten;
  job->deadline = TimePoint::max();
  job->given_up = false;
  job->early_status = absl::OkStatus();
  job->failure = LoadFailure::kIo;
  job->fields = RecordFields{};
  job->fields.numerics_class = identity_.numerics_class;
  job->segment = nullptr;
  return job;
}

void DiskStore::Impl::Retire(TransferJob* job) {
  job->status = absl::OkStatus();
  job->memory = AlignedBuffer();
  free_jobs_.push_back(job);
}

bool DiskStore::Impl::TakesLoads() const {
  const TierState now = state(clock_.Now());
  return now == TierState::kOk || now == TierState::kReadOnly;
}

bool DiskStore::Impl::ContainsOrStoring(const RecordId& id) const {
  return Contains(id) || std::any_of(stores_.begin(), stores_.end(), [&](const TransferJob* job) {
           return job->fields.id == id;
         });
}

void DiskStore::Impl::CloseIdleSegment() {
  for (const auto& [number, segment] : segments_) {
    if (segment->file != nullptr && segment->num_users == 0 && !segment->dirty &&
        segment.get() != active_) {
      segment->file = nullptr;
      --num_open_;
      return;
    }
  }
}

absl::Status DiskStore::Impl::OpenSegment(Segment& segment) {
  if (segment.file != nullptr) {
    return absl::OkStatus();
  }
  if (num_open_ >= kMaxOpenSegments) {
    CloseIdleSegment();
  }
  SPINDLE_ASSIGN_OR_RETURN(segment.file,
                           files_.Open(PathOf(segment), OpenMode::kRead, options_.direct));
  ++num_open_;
  return absl::OkStatus();
}

// A job for the record's place, not yet submitted.
absl::StatusOr<TransferJob*> DiskStore::Impl::StartRead(const RecordId& id) {
  if (!TakesLoads()) {
    FailLoad(LoadFailure::kOff);
    return Switched(state(clock_.Now()));
  }
  const EntryIdx entry = index_.Find(id);
  if (entry == kNoEntry) {
    FailLoad(LoadFailure::kNotFound);
    return absl::NotFoundError("no such record on disk");
  }
  if (loads_.size() >= options_.max_loads) {
    FailLoad(LoadFailure::kBusy);
    return absl::ResourceExhaustedError("disk tier: " + std::to_string(loads_.size()) +
                                        " loads are running");
  }
  const IndexEntry& at = index_.Get(entry);
  Segment& segment = SegmentOf(at.segment);
  if (absl::Status status = OpenSegment(segment); !status.ok()) {
    FailLoad(LoadFailure::kMissing);
    if (absl::IsNotFound(status)) {
      stats_.tombstones += index_.DropSegment(segment.number);
      AddChange({.op = LogEntry::Op::kDropSegment, .segment = segment.number}, 0);
      segment.exact = false;
    }
    OnError(DeviceError::kOpen, status);
    return absl::UnavailableError(status.message());
  }
  TransferJob* const job = TakeJob();
  job->fields.id = id;
  job->segment = &segment;
  job->offset_pages = at.offset_pages;
  job->length_pages = at.length_pages;
  job->header_crc = at.header_crc;
  return job;
}

absl::StatusOr<Ticket> DiskStore::Impl::SubmitLoad(const LoadRequest& request) {
  SPINDLE_CHECK(HoldsStripe(request.id.kind) && request.tokens.size() <= kStripeTokens);
  SPINDLE_CHECK(request.destination.size() == identity_.geometry.stripe_bytes() &&
                Aligned(request.destination.data()));
  SPINDLE_ASSIGN_OR_RETURN(TransferJob* const job, StartRead(request.id));
  job->op = Completion::Op::kLoad;
  job->tag = request.tag;
  job->deadline = request.deadline;
  next_deadline_ = std::min(next_deadline_, request.deadline);
  RecordFields& fields = job->fields;
  fields.parent = request.parent;
  fields.num_extents = identity_.geometry.num_layers;
  fields.payload_bytes = request.destination.size();
  SetTokens(request.tokens, &fields);
  job->payload = request.destination;
  job->PrepareLoad();
  ++job->segment->num_users;
  loads_.push_back(job);
  SubmitJob(job);
  return job->ticket;
}

absl::StatusOr<Ticket> DiskStore::Impl::SubmitFetch(const RecordId& id, uint64_t tag) {
  SPINDLE_CHECK(!HoldsStripe(id.kind));
  SPINDLE_ASSIGN_OR_RETURN(TransferJob* const job, StartRead(id));
  job->op = Completion::Op::kFetch;
  job->tag = tag;
  job->PrepareFetch();
  ++job->segment->num_users;
  loads_.push_back(job);
  SubmitJob(job);
  return job->ticket;
}

// Whether a store may start now.
absl::Status DiskStore::Impl::AdmitStore(const RecordId& id, uint64_t record_bytes) {
  const TierState now = state(clock_.Now());
  if (now == TierState::kDegraded || now == TierState::kOff) {
    SkipStore(StoreSkip::kOff);
    return Switched(now);
  }
  if (now == TierState::kReadOnly) {
    SkipStore(StoreSkip::kNoSpace);
    return absl::ResourceExhaustedError("disk tier: stores rest, the device or quota was full");
  }
  if (id.kind == RecordKind::kStripe && ContainsOrStoring(id)) {
    SkipStore(StoreSkip::kPresent);
    return absl::AlreadyExistsError("the stripe is on disk already");
  }
  if (store_bytes_ + record_bytes > options_.max_store_bytes ||
      stores_.size() >= options_.max_stores) {
    SkipStore(StoreSkip::kBackpressure);
    return absl::ResourceExhaustedError("disk tier: " + std::to_string(store_bytes_) +
                                        " bytes wait to be stored");
  }
  const bool fits = space_known_ && UsedBytes() + record_bytes + kAlignment <= CapacityBytes() &&
                    free_bytes_ >= unmeasured_ + record_bytes + FreeFloor();
  if (!fits) {
    SkipStore(StoreSkip::kNoSpace);
    force_collect_ = true;
    return absl::ResourceExhaustedError(
        "disk tier: no space for " + std::to_string(record_bytes) + " bytes; used " +
        std::to_string(UsedBytes()) + " of " + std::to_string(CapacityBytes()) + ", " +
        std::to_string(free_bytes_) + " bytes of the file system are free");
  }
  return absl::OkStatus();
}

// Room for a record at the end of the active segment; a new one when that is full.
absl::StatusOr<DiskStore::Impl::Place> DiskStore::Impl::TakePlace(uint64_t record_bytes) {
  if (active_ != nullptr && (active_->suspect || active_->end + record_bytes > segment_bytes_)) {
    active_ = nullptr;
  }
  const bool fresh = active_ == nullptr;
  if (fresh) {
    if (next_segment_ > kMaxSegment) {
      return absl::ResourceExhaustedError(directory_ + ": no segment numbers are left");
    }
    auto segment = std::make_unique<Segment>();
    segment->number = next_segment_++;
    SPINDLE_ASSIGN_OR_RETURN(segment->file,
                             files_.Open(PathOf(*segment), OpenMode::kCreate, options_.direct));
    segment->end = kAlignment;
    segment->name_durable = false;
    segment_used_ += kAlignment;
    ++num_open_;
    active_ = segment.get();
    segments_.emplace(segment->number, std::move(segment));
  }
  const Place place{active_, static_cast<uint32_t>(active_->end / kAlignment), fresh};
  active_->end += record_bytes;
  segment_used_ += record_bytes;
  written_since_ += record_bytes;
  unmeasured_ += record_bytes;
  return place;
}

// REQUIRES: fields, payload, tag and ack are set.
absl::StatusOr<Ticket> DiskStore::Impl::StartStore(TransferJob* job) {
  const uint64_t record_bytes = RecordBytes(job->fields);
  const absl::StatusOr<Place> place = TakePlace(record_bytes);
  if (!place.ok()) {
    Retire(job);
    const bool full = absl::IsResourceExhausted(place.status());
    SkipStore(full ? StoreSkip::kNoSpace : StoreSkip::kIo);
    OnError(full ? DeviceError::kWriteFull : DeviceError::kOpen, place.status());
    return place.status();
  }
  job->op = Completion::Op::kStore;
  job->segment = place->segment;
  job->offset_pages = place->offset_pages;
  job->length_pages = static_cast<uint32_t>(record_bytes / kAlignment);
  job->fields.seq = next_seq_++;
  job->PrepareStore(uuid_, place->fresh);
  ++job->segment->num_users;
  ++job->segment->num_writers;
  job->segment->dirty = true;
  store_bytes_ += job->bytes;
  stores_.push_back(job);
  SubmitJob(job);
  return job->ticket;
}

absl::StatusOr<Ticket> DiskStore::Impl::SubmitStore(const StoreRequest& request) {
  SPINDLE_CHECK(HoldsStripe(request.id.kind));
  SPINDLE_CHECK(request.payload.size() == identity_.geometry.stripe_bytes() &&
                Aligned(request.payload.data()));
  const uint32_t num_layers = identity_.geometry.num_layers;
  SPINDLE_RETURN_IF_ERROR(AdmitStore(request.id, HeaderBytes(num_layers) + request.payload.size()));
  TransferJob* const job = TakeJob();
  RecordFields& fields = job->fields;
  fields.id = request.id;
  fields.flags = request.flags;
  fields.ordinal = request.ordinal;
  fields.parent = request.parent;
  fields.method = request.method;
  fields.checksum = request.checksum;
  fields.payload_bytes = request.payload.size();
  fields.num_extents = num_layers;
  SetTokens(request.tokens, &fields);
  SPINDLE_CHECK(CheckRecordFields(fields).ok());
  // A write does not change it; iovec has no const form.
  job->payload = {const_cast<uint8_t*>(request.payload.data()), request.payload.size()};
  job->ack = request.ack;
  job->tag = request.tag;
  return StartStore(job);
}

absl::StatusOr<Ticket> DiskStore::Impl::SubmitPut(const RecordId& id,
                                                  std::span<const uint8_t> bytes,
                                                  Ack ack,
                                                  uint64_t tag) {
  SPINDLE_CHECK(!HoldsStripe(id.kind));
  if (bytes.empty() || bytes.size() > kMaxPayloadBytes) {
    return absl::InvalidArgumentError("disk record: payload must have 1..2^30 bytes, got " +
                                      std::to_string(bytes.size()));
  }
  SPINDLE_RETURN_IF_ERROR(AdmitStore(id, HeaderBytes(1) + RoundUp(bytes.size())));
  TransferJob* const job = TakeJob();
  job->fields.id = id;
  job->fields.payload_bytes = bytes.size();
  job->memory = AlignedBuffer(bytes.size());
  std::memcpy(job->memory.data(), bytes.data(), bytes.size());
  std::memset(job->memory.data() + bytes.size(), 0, job->memory.size() - bytes.size());
  job->payload = job->memory.span().first(bytes.size());
  job->ack = ack;
  job->tag = tag;
  return StartStore(job);
}

// The load's result does not count any more: its last completion now if it has not begun, else a
// notice (deadline only), and the last one when the device is done.
void DiskStore::Impl::GiveUp(TransferJob* job, const absl::Status& status, LoadFailure cause) {
  if (job->given_up) {
    return;
  }
  job->given_up = true;
  job->early_status = status;
  FailLoad(cause);
  if (queue_->TryCancel(job)) {
    --num_running_;
    job->status = status;
    --job->segment->num_users;
    std::erase(loads_, job);
    outputs_.push_back({job, true});
  } else if (cause == LoadFailure::kDeadline) {
    outputs_.push_back({job, false});
  }
}

void DiskStore::Impl::Cancel(Ticket ticket) {
  const auto found = std::find_if(
      loads_.begin(), loads_.end(), [&](const TransferJob* job) { return job->ticket == ticket; });
  if (found != loads_.end()) {
    GiveUp(*found, absl::CancelledError("load cancelled"), LoadFailure::kCancelled);
  }
}

void DiskStore::Impl::ExpireLoads(TimePoint now) {
  if (now < next_deadline_) {
    return;
  }
  next_deadline_ = TimePoint::max();
  const std::vector<TransferJob*> running = loads_;  // GiveUp removes from it
  for (TransferJob* const job : running) {
    if (job->given_up) {
      continue;
    }
    if (job->deadline <= now) {
      GiveUp(job, absl::DeadlineExceededError("load was late"), LoadFailure::kDeadline);
    } else {
      next_deadline_ = std::min(next_deadline_, job->deadline);
    }
  }
}

bool DiskStore::Impl::SamePlace(EntryIdx entry,
                                const Segment& segment,
                                uint32_t offset_pages) const {
  return entry != kNoEntry && index_.Get(entry).segment == segment.number &&
         index_.Get(entry).offset_pages == offset_pages;
}

void DiskStore::Impl::HandleTransfer(TransferJob* job) {
  --job->segment->num_users;
  if (job->op == Completion::Op::kStore) {
    HandleWrite(job);
  } else {
    HandleRead(job);
  }
}

void DiskStore::Impl::Tombstone(const TransferJob& job) {
  const EntryIdx entry = index_.Find(job.fields.id);
  if (SamePlace(entry, *job.segment, job.offset_pages)) {
    index_.Erase(entry);
    AddChange({.op = LogEntry::Op::kErase, .id = job.fields.id}, 0);
    ++stats_.tombstones;
  }
}

void DiskStore::Impl::HandleRead(TransferJob* job) {
  std::erase(loads_, job);
  ++stats_.reads;
  stats_.device_read_bytes += job->done_bytes;
  stats_.short_reads += job->num_short;
  if (absl::IsDataLoss(job->status)) {
    // Without a cause from the checks it was the transfer that stayed short.
    if (job->failure == LoadFailure::kIo) {
      job->failure = LoadFailure::kShort;
      CountError(DeviceError::kRead);
    } else {
      CountError(DeviceError::kReadDamage);
    }
    Tombstone(*job);
  } else if (!job->status.ok()) {
    job->segment->suspect = true;
    OnError(DeviceError::kRead, job->status);
  }
  if (job->given_up) {
    job->status = job->early_status;  // counted when it was given up
  } else if (!job->status.ok()) {
    FailLoad(job->failure);
  } else {
    const size_t kind = KindIdx(job->fields.id.kind);
    ++stats_.loads[kind];
    stats_.loaded_bytes[kind] += job->fields.payload_bytes;
    Touch(job->fields.id);
  }
  outputs_.push_back({job, true});
}

void DiskStore::Impl::HandleWrite(TransferJob* job) {
  std::erase(stores_, job);
  --job->segment->num_writers;
  store_bytes_ -= job->bytes;
  ++stats_.writes;
  stats_.device_written_bytes += job->done_bytes;
  stats_.short_writes += job->num_short;
  if (!job->status.ok()) {
    job->segment->suspect = true;
    job->segment->exact = false;
    const DeviceError error = WriteError(job->status);
    SkipStore(error == DeviceError::kWriteFull ? StoreSkip::kNoSpace : StoreSkip::kIo);
    OnError(error, job->status);
    outputs_.push_back({job, true});
    return;
  }
  room_made_ = false;
  const LogEntry put{.op = LogEntry::Op::kPut,
                     .id = job->fields.id,
                     .seq = job->fields.seq,
                     .segment = job->segment->number,
                     .offset_pages = job->offset_pages,
                     .length_pages = job->length_pages,
                     .header_crc = job->header_crc,
                     .last_use = index_.use_clock() + 1};
  // Stores of one id may end in any order; the later request wins.
  const EntryIdx existing = index_.Find(put.id);
  const bool current = existing == kNoEntry || index_.Get(existing).seq < put.seq;
  if (current) {
    index_.Put(put, false);
    AddChange(put, job->bytes);
  }
  const size_t kind = KindIdx(put.id.kind);
  ++stats_.stores[kind];
  stats_.stored_bytes[kind] += job->fields.payload_bytes;
  if (job->ack == Ack::kDurable && current && !health_.degraded()) {
    job->generation = generation_;
    waiting_durable_.push_back(job);
    return;
  }
  if (job->ack == Ack::kDurable && current) {
    job->status = MaybeNotDurable();
  }
  outputs_.push_back({job, true});
}

size_t DiskStore::Impl::Poll(std::span<Completion> out) {
  queue_->Drive();
  Reap();
  size_t count = 0;
  while (count < out.size() && !outputs_.empty()) {
    const Output output = outputs_.front();
    outputs_.pop_front();
    TransferJob* const job = output.job;
    Completion& completion = out[count++];
    completion = Completion{};
    completion.op = job->op;
    completion.final = output.final;
    completion.ticket = job->ticket;
    completion.tag = job->tag;
    completion.status = output.final ? job->status : job->early_status;
    if (!output.final) {
      continue;
    }
    completion.finished_at = job->finished_at;
    if (job->op != Completion::Op::kStore && job->status.ok()) {
      completion.method = job->fields.method;
      completion.checksum = job->fields.checksum;
      completion.ordinal = job->fields.ordinal;
      completion.flags = job->fields.flags;
    }
    if (job->op == Completion::Op::kFetch && job->status.ok()) {
      completion.payload = job->payload;
      completion.memory = std::move(job->memory);
    }
    Retire(job);
  }
  PublishStats();
  return count;
}

bool DiskStore::Impl::Erase(const RecordId& id) {
  const EntryIdx entry = index_.Find(id);
  if (entry == kNoEntry) {
    return false;
  }
  index_.Erase(entry);
  AddChange({.op = LogEntry::Op::kErase, .id = id}, 0);
  return true;
}

void DiskStore::Impl::Touch(const RecordId& id) {
  if (const EntryIdx entry = index_.Find(id); entry != kNoEntry) {
    index_.Touch(entry);
  }
}

void DiskStore::Impl::ForEach(RecordKind kind,
                              const std::function<void(const RecordId&)>& visit) const {
  index_.Scan(0, kNoEntry, [&](EntryIdx entry) {
    if (index_.Get(entry).kind == kind) {
      visit(index_.Get(entry).id());
    }
  });
}

}  // namespace spindle::kv::disk
