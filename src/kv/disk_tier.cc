#include "kv/disk_tier.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/status_macros.h"

namespace spindle::kv {

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
      waker_(std::move(waker)),
      disk_(std::move(disk)),
      loader_(host, *disk_, clock),
      writer_({.min_tokens_at_once = options.min_tokens_to_store_at_once,
               .max_waiting = options.max_waiting_stores},
              host,
              *disk_) {}

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
  return std::unique_ptr<DiskTier>(
      new DiskTier(options, std::move(waker), std::move(disk), clock, host));
}

void DiskTier::OnWake(std::function<void()> wake) {
  waker_->Set(std::move(wake));
}

uint32_t DiskTier::MatchDisk(std::span<const Digest> keys, uint32_t num_host) const {
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
         loader_.LoadSeconds(num_stripes) < 0.8 * tokens / prefill_tokens_per_second;
}

absl::StatusOr<LoadId> DiskTier::BeginLoad(BudgetGroupId group,
                                           const PrefixChain& chain,
                                           uint32_t num_host,
                                           uint32_t num_disk,
                                           double prefill_tokens_per_second) {
  return loader_.Begin(group, chain, num_host, num_disk, prefill_tokens_per_second);
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
}

void DiskTier::DeliverAll() {
  std::array<disk::Completion, 16> completions;
  size_t count = 0;
  do {
    count = disk_->Poll(completions);
    for (size_t i = 0; i < count; ++i) {
      if (completions[i].op == disk::Completion::Op::kStore) {
        writer_.Deliver(completions[i]);
      } else {
        loader_.Deliver(completions[i]);
      }
    }
  } while (count == completions.size());
}

std::optional<TimePoint> DiskTier::NextAdvance() const {
  const std::optional<TimePoint> tick = disk_->NextTick();
  const std::optional<TimePoint> deadline = loader_.NextDeadline();
  if (tick.has_value() && deadline.has_value()) {
    return std::min(*tick, *deadline);
  }
  return tick.has_value() ? tick : deadline;
}

bool DiskTier::HoldsHostStripes() const {
  return loader_.HoldsStripes() || writer_.HoldsStripes();
}

absl::Status DiskTier::Close() {
  waker_->Set(nullptr);
  loader_.CutAll();
  writer_.DropWaiting();
  const absl::Status status = disk_->Close();
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
          .stores_gated = stores.gated.load(),
          .stores_dropped = stores.dropped.load(),
          .load_bytes_per_second = loads.bytes_per_second.load()};
}

absl::Status DiskTier::CheckIntegrity() const {
  SPINDLE_RETURN_IF_ERROR(loader_.CheckIntegrity());
  SPINDLE_RETURN_IF_ERROR(writer_.CheckIntegrity());
  return disk_->CheckIntegrity();
}

}  // namespace spindle::kv
