#include "kv/disk_tier.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/status_macros.h"

namespace spindle::kv {
namespace {

// Loading must take less than this part of the time that computing takes.
constexpr double kWorthShare = 0.8;

}  // namespace

void DiskTier::Waker::Set(std::function<void()> wake) {
  MutexLock lock(mutex_);
  wake_ = std::move(wake);
}

void DiskTier::Waker::Wake() {
  MutexLock lock(mutex_);
  if (wake_) {
    wake_();
  }
}

DiskTier::DiskTier(const DiskTierOptions& options,
                   std::unique_ptr<Waker> waker,
                   std::unique_ptr<disk::DiskStore> disk,
                   const Clock& clock,
                   KvStore& host)
    : options_(options),
      host_(host),
      waker_(std::move(waker)),
      disk_(std::move(disk)),
      loader_(host, *disk_, clock),
      writer_({.min_tokens_at_once = options.min_tokens_to_store_at_once,
               .max_waiting = options.max_waiting_stores},
              host,
              *disk_,
              clock),
      sessions_(options.sessions, host, *disk_, loader_, writer_) {}

DiskTier::~DiskTier() {
  static_cast<void>(Close());
}

absl::StatusOr<std::unique_ptr<DiskTier>> DiskTier::Open(const DiskTierOptions& options,
                                                         const disk::DiskOptions& disk_options,
                                                         const disk::StoreIdentity& identity,
                                                         disk::DiskFiles& files,
                                                         const Clock& clock,
                                                         KvStore& host) {
  auto waker = std::make_unique<Waker>();
  SPINDLE_ASSIGN_OR_RETURN(
      std::unique_ptr<disk::DiskStore> disk,
      disk::DiskStore::Open(
          disk_options, identity, files, clock, [waker = waker.get()] { waker->Wake(); }));
  std::unique_ptr<DiskTier> tier(
      new DiskTier(options, std::move(waker), std::move(disk), clock, host));
  SPINDLE_RETURN_IF_ERROR(tier->sessions_.Recover(files, disk_options.path));
  return tier;
}

void DiskTier::OnWake(std::function<void()> wake) {
  waker_->Set(std::move(wake));
}

uint32_t DiskTier::MatchDisk(std::span<const Digest> keys, uint32_t num_host) const {
  if (!disk_->TakesLoads()) {
    return 0;
  }
  uint32_t end = num_host;
  while (end < keys.size() && disk_->Contains(StripeRecordId(keys[end]))) {
    ++end;
  }
  return end - num_host;
}

bool DiskTier::IsLoading(const Digest& key) const {
  return loader_.IsLoading(key);
}

bool DiskTier::WorthLoading(uint32_t num_stripes, double prefill_tokens_per_second) const {
  const double tokens = static_cast<double>(num_stripes) * kStripeTokens;
  if (tokens < options_.min_tokens_to_load) {
    return false;
  }
  return prefill_tokens_per_second <= 0 ||
         loader_.LoadSeconds(num_stripes) < kWorthShare * tokens / prefill_tokens_per_second;
}

bool DiskTier::WorthLoadingTail(uint32_t num_tokens, double prefill_tokens_per_second) const {
  return prefill_tokens_per_second <= 0 ||
         loader_.LoadSeconds(1) < kWorthShare * num_tokens / prefill_tokens_per_second;
}

absl::StatusOr<LoadId> DiskTier::BeginLoad(const StripeLoader::Request& request) {
  return loader_.Begin(request);
}

bool DiskTier::IsDone(LoadId load) const {
  return loader_.IsDone(load);
}

uint32_t DiskTier::StripesHeld(LoadId load) const {
  return loader_.StripesHeld(load);
}

void DiskTier::EndLoad(LoadId load) {
  loader_.End(load);
}

void DiskTier::CountUse(const PrefixChain& prompt) {
  writer_.CountUse(prompt);
}

void DiskTier::Offer(const PrefixChain& chain) {
  writer_.Offer(chain);
}

void DiskTier::Advance() {
  disk_->Tick();
  DeliverAll();
  loader_.Advance();
  writer_.Advance();
  TakeSaved();
  sessions_.Advance();
}

void DiskTier::DeliverAll() {
  std::array<disk::Completion, 16> completions;
  size_t count = 0;
  do {
    count = disk_->Poll(completions);
    for (size_t i = 0; i < count; ++i) {
      if ((completions[i].tag & SessionKeeper::kTagBit) != 0) {
        sessions_.Deliver(completions[i]);
      } else if (completions[i].op == disk::Completion::Op::kStore) {
        writer_.Deliver(completions[i]);
      } else {
        loader_.Deliver(completions[i]);
      }
    }
  } while (count == completions.size());
}

void DiskTier::TakeSaved() {
  for (const StripeWriter::SaveResult& result : writer_.TakeSaved()) {
    if ((result.tag & SessionKeeper::kTagBit) != 0) {
      sessions_.OnSaved(result);
      continue;
    }
    SpillState& spill = spills_.at(result.tag);
    spill.written = true;
    spill.has_tail = result.tail;
    ++spills_written_;
    spilled_stripes_ += result.num_stripes + (result.tail ? 1 : 0);
    if (spill.abandoned) {
      EndSpill(SpillId(result.tag));
    }
  }
}

std::optional<SpillId> DiskTier::Spill(StripeWriter::SaveRequest&& request) {
  const disk::DiskStats stats = disk_->Stats();
  const uint64_t bytes =
      (request.chain.keys.size() + 1) * static_cast<uint64_t>(host_.geometry().stripe_bytes());
  if (stats.state != disk::TierState::kOk ||
      stats.store_bytes_pending + bytes > options_.max_spill_bytes) {
    return std::nullopt;
  }
  const uint64_t number = ++num_spills_;
  SpillState spill{.parent =
                       request.chain.Parent(static_cast<uint32_t>(request.chain.keys.size()))};
  if (request.tail.has_value()) {
    // Numbers of sessions are as good as random: these small ones are none of them.
    request.tail->sub_id = number;
    spill.tail = *request.tail;
  }
  request.tag = number;
  if (!writer_.Save(std::move(request))) {
    return std::nullopt;
  }
  spills_.emplace(number, std::move(spill));
  return SpillId(number);
}

const OpenTail* DiskTier::SpilledTail(SpillId id) const {
  const SpillState& spill = spills_.at(id.value());
  return spill.has_tail ? &spill.tail : nullptr;
}

void DiskTier::EndSpill(SpillId id) {
  const auto found = spills_.find(id.value());
  SPINDLE_CHECK(found != spills_.end());
  SpillState& spill = found->second;
  if (!spill.written) {
    spill.abandoned = true;
    return;
  }
  if (spill.has_tail) {
    disk_->Erase(TailRecordId(spill.parent, spill.tail.sub_id));
  }
  spills_.erase(found);
}

std::optional<TimePoint> DiskTier::NextAdvance() const {
  std::optional<TimePoint> next;
  for (const auto& time : {disk_->NextTick(), loader_.NextDeadline(), writer_.NextRetry()}) {
    if (time.has_value() && (!next.has_value() || *time < *next)) {
      next = time;
    }
  }
  return next;
}

void DiskTier::ReleaseHostStripes() {
  static_cast<void>(sessions_.ReleaseHost());
  writer_.DropWaiting();
}

bool DiskTier::HoldsHostStripes() const {
  return loader_.HoldsStripes() || writer_.HoldsStripes();
}

absl::Status DiskTier::Close() {
  waker_->Set(nullptr);
  loader_.CutAll();
  ReleaseHostStripes();
  absl::Status status;
  while (status.ok() && sessions_.saving()) {
    writer_.Advance();
    writer_.DropWaiting();  // what could not be handed over now
    status = disk_->Flush();
    DeliverAll();
    TakeSaved();
  }
  status.Update(disk_->Close());
  DeliverAll();
  return status;
}

DiskTierStats DiskTier::Stats() const {
  const StripeLoader::Counters& loads = loader_.counters();
  const StripeWriter::Counters& stores = writer_.counters();
  return {.disk = disk_->Stats(),
          .loads = loads.begun.load(),
          .loads_cut = loads.cut.load(),
          .loaded_tokens = loads.loaded_tokens.load(),
          .lost_tokens = loads.lost_tokens.load(),
          .stores_gated = stores.gated.load(),
          .stores_dropped = stores.dropped.load(),
          .load_bytes_per_second = loads.bytes_per_second.load(),
          .tail_tokens = tail_tokens_.load(),
          .spills = spills_written_.load(),
          .spilled_stripes = spilled_stripes_.load(),
          .sessions = sessions_.Stats()};
}

absl::Status DiskTier::CheckIntegrity() const {
  SPINDLE_RETURN_IF_ERROR(loader_.CheckIntegrity());
  SPINDLE_RETURN_IF_ERROR(writer_.CheckIntegrity());
  return disk_->CheckIntegrity();
}

}  // namespace spindle::kv
