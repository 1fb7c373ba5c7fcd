#include "kv/stripe_loader.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/status_macros.h"

namespace spindle::kv {
namespace {

// Before the first load: a slow disk.
constexpr double kAssumedLoadRate = 200e6;
// Beyond the expected time, where no request waits.
constexpr double kPatienceSeconds = 10;
constexpr double kRateWeight = 0.3;  // of the newest load in the moving average
constexpr std::chrono::seconds kRateLifetime{60};

// An id is (generation, place).
uint32_t PlaceOf(LoadId id) {
  return static_cast<uint32_t>(id.value());
}

}  // namespace

StripeLoader::~StripeLoader() {
  for (const Load& load : loads_) {
    if (load.id != 0) {
      host_.Close(load.sequence);
    }
  }
}

const StripeLoader::Load& StripeLoader::Get(LoadId id) const {
  SPINDLE_CHECK(PlaceOf(id) < loads_.size() && loads_[PlaceOf(id)].id == id.value());
  return loads_[PlaceOf(id)];
}

StripeLoader::Load& StripeLoader::Get(LoadId id) {
  return const_cast<Load&>(std::as_const(*this).Get(id));
}

double StripeLoader::MeasuredRate() const {
  const bool valid = clock_.Now() - rate_observed_at_ < kRateLifetime;
  return valid ? counters_.bytes_per_second.load() : 0;
}

double StripeLoader::LoadSeconds(uint32_t num_stripes) const {
  const double measured = MeasuredRate();
  return static_cast<double>(num_stripes) * static_cast<double>(host_.geometry().stripe_bytes()) /
         (measured > 0 ? measured : kAssumedLoadRate);
}

bool StripeLoader::IsDone(LoadId id) const {
  const Load& load = Get(id);
  return load.sealed == load.end && load.tail_state != Load::Tail::kWaiting &&
         load.tail_state != Load::Tail::kInFlight;
}

const uint8_t* StripeLoader::TailData(LoadId id) const {
  const Load& load = Get(id);
  return load.tail_state == Load::Tail::kArrived && load.sealed == load.end
             ? host_.View(load.sequence).stripes[load.end]
             : nullptr;
}

std::span<const TokenId> StripeLoader::TailTokens(LoadId id) const {
  return Get(id).tail.tokens;
}

uint32_t StripeLoader::StripesHeld(LoadId id) const {
  const Load& load = Get(id);
  return load.first + static_cast<uint32_t>(load.stripes.size()) +
         (load.tail_state == Load::Tail::kNone ? 0 : 1);
}

bool StripeLoader::IsLoading(const Digest& key) const {
  return std::ranges::any_of(loads_, [&key](const Load& load) {
    const auto wanted = std::span(load.chain.keys).subspan(load.sealed, load.end - load.sealed);
    return load.id != 0 && std::ranges::find(wanted, key) != wanted.end();
  });
}

Duration StripeLoader::TimeAllowed(uint32_t num_stripes, std::optional<double> prefill_rate) const {
  const double tokens = static_cast<double>(num_stripes) * kStripeTokens;
  double seconds = 4 * LoadSeconds(num_stripes);
  if (!prefill_rate.has_value()) {
    seconds += kPatienceSeconds;
  } else if (*prefill_rate > 0) {
    seconds = std::min(seconds, 0.5 * tokens / *prefill_rate);
  }
  const double least = 0.050 + 0.020 * tokens / 1024;
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::max(seconds, least)));
}

StripeLoader::Load& StripeLoader::NewLoad() {
  auto place = std::ranges::find(loads_, uint64_t{0}, &Load::id);
  if (place == loads_.end()) {
    loads_.emplace_back();
    place = loads_.end() - 1;
  }
  *place = Load();
  place->id = ++num_loads_ << 32 | static_cast<uint64_t>(place - loads_.begin());
  return *place;
}

absl::StatusOr<LoadId> StripeLoader::Begin(const Request& request) {
  const uint32_t num_host = request.num_host;
  const uint32_t end = num_host + request.num_disk;
  SPINDLE_CHECK(end <= request.chain.keys.size());
  const SequenceId sequence =
      host_.Open(request.group, request.chain.keys.first(num_host), num_host, PrefixUse::kHold);
  const uint32_t num_tail =
      request.tail.has_value() ? static_cast<uint32_t>(request.tail->tokens.size()) : 0;
  if (absl::Status status =
          host_.Extend(sequence, end * static_cast<uint32_t>(kStripeTokens) + num_tail);
      !status.ok()) {
    host_.Close(sequence);
    return status;
  }
  Load& load = NewLoad();
  load.sequence = sequence;
  load.chain = OwnedChain(request.chain, end);
  load.first = load.submitted = load.sealed = num_host;
  load.end = end;
  load.started = clock_.Now();
  load.deadline = load.started + TimeAllowed(request.num_disk, request.prefill_tokens_per_second);
  load.stripes.resize(request.num_disk);
  if (request.tail.has_value()) {
    load.tail = *request.tail;
    load.tail_state = Load::Tail::kWaiting;
  }
  ++counters_.begun;
  const LoadId id(load.id);
  Submit(PlaceOf(id));
  return id;
}

void StripeLoader::Submit(uint32_t place) {
  Load& load = loads_[place];
  const SequenceView view = host_.View(load.sequence);
  while (load.submitted < load.end) {
    const uint32_t ordinal = load.submitted;
    const absl::StatusOr<disk::Ticket> ticket =
        disk_.SubmitLoad({.id = StripeRecordId(load.chain.keys[ordinal]),
                          .parent = load.chain.Parent(ordinal),
                          .tokens = load.chain.Tokens(ordinal),
                          .destination = {view.stripes[ordinal], host_.geometry().stripe_bytes()},
                          .deadline = load.deadline,
                          .tag = StripeTag{place, ordinal}.Pack()});
    if (absl::IsResourceExhausted(ticket.status())) {
      return;  // later
    }
    if (!ticket.ok()) {
      Cut(load, ordinal);
      return;
    }
    load.stripes[ordinal - load.first].ticket = *ticket;
    ++load.in_flight;
    ++load.submitted;
  }
  SubmitTail(place);
}

void StripeLoader::SubmitTail(uint32_t place) {
  Load& load = loads_[place];
  if (load.tail_state != Load::Tail::kWaiting) {
    return;
  }
  const Digest& parent = load.end == 0 ? load.chain.root : load.chain.keys[load.end - 1];
  const absl::StatusOr<disk::Ticket> ticket =
      disk_.SubmitLoad({.id = TailRecordId(parent, load.tail.sub_id),
                        .parent = parent,
                        .tokens = load.tail.tokens,
                        .destination = {host_.View(load.sequence).stripes[load.end],
                                        host_.geometry().stripe_bytes()},
                        .deadline = load.deadline,
                        .tag = StripeTag{place, kTailOrdinal}.Pack()});
  if (ticket.ok()) {
    load.tail_ticket = *ticket;
    load.tail_state = Load::Tail::kInFlight;
    ++load.in_flight;
  } else if (!absl::IsResourceExhausted(ticket.status())) {
    load.tail_state = Load::Tail::kLost;
  }
}

void StripeLoader::LoseTail(Load& load) {
  if (load.tail_state == Load::Tail::kInFlight) {
    disk_.Cancel(load.tail_ticket);
  }
  if (load.tail_state != Load::Tail::kNone) {
    load.tail_state = Load::Tail::kLost;
  }
}

// Nothing behind stripe `end` is wanted any more.
void StripeLoader::Cut(Load& load, uint32_t end) {
  if (end >= load.end) {
    return;
  }
  LoseTail(load);
  const uint32_t wanted = std::exchange(load.end, std::max(end, load.sealed));
  for (uint32_t ordinal = load.end; ordinal < load.submitted; ++ordinal) {
    const Load::Stripe& stripe = load.stripes[ordinal - load.first];
    if (!stripe.arrived) {
      disk_.Cancel(stripe.ticket);
    }
  }
  if (!load.ended) {
    ++counters_.cut;
    counters_.lost_tokens += (wanted - load.end) * kStripeTokens;
  }
}

void StripeLoader::Deliver(const disk::Completion& completion) {
  const auto [place, ordinal] = StripeTag::Unpack(completion.tag);
  Load& load = loads_[place];
  SPINDLE_CHECK(load.id != 0 && ordinal >= load.first);
  if (!completion.final) {
    Cut(load, load.sealed);
    if (ordinal == kTailOrdinal) {
      LoseTail(load);
    }
    return;
  }
  --load.in_flight;
  if (ordinal == kTailOrdinal) {
    if (load.tail_state == Load::Tail::kInFlight) {
      load.tail_state = completion.status.ok() ? Load::Tail::kArrived : Load::Tail::kLost;
    }
    FinishIfEnded(load);
    return;
  }
  Load::Stripe& stripe = load.stripes[ordinal - load.first];
  stripe.arrived = true;
  load.last_arrival = std::max(load.last_arrival, completion.finished_at);
  stripe.checksum = completion.checksum;
  if (!completion.status.ok()) {
    Cut(load, ordinal);
  }
  SealArrived(load);
  FinishIfEnded(load);
}

void StripeLoader::SealArrived(Load& load) {
  if (load.sealed == load.end) {
    return;
  }
  while (load.sealed < load.end && load.stripes[load.sealed - load.first].arrived) {
    const uint32_t ordinal = load.sealed++;
    host_.Commit(load.sequence, load.sealed * static_cast<uint32_t>(kStripeTokens));
    host_.Seal(load.sequence,
               ordinal,
               load.chain.keys[ordinal],
               &load.stripes[ordinal - load.first].checksum);
    counters_.loaded_tokens += kStripeTokens;
  }
  if (load.sealed == load.end) {
    ObserveRate(load);
  }
}

void StripeLoader::ObserveRate(const Load& load) {
  const double seconds = std::max(ToSeconds(load.last_arrival - load.started), 1e-6);
  const double rate = static_cast<double>((load.end - load.first)) *
                      static_cast<double>(host_.geometry().stripe_bytes()) / seconds;
  const double before = MeasuredRate();
  rate_observed_at_ = clock_.Now();
  counters_.bytes_per_second = before > 0 ? before + kRateWeight * (rate - before) : rate;
}

void StripeLoader::End(LoadId id) {
  Load& load = Get(id);
  load.ended = true;
  Cut(load, load.sealed);
  LoseTail(load);
  FinishIfEnded(load);
}

// The device may still write into the stripes of a load that has ended.
void StripeLoader::FinishIfEnded(Load& load) {
  if (load.ended && load.in_flight == 0) {
    host_.Close(load.sequence);
    load = Load();
  }
}

void StripeLoader::Advance() {
  const TimePoint now = clock_.Now();
  for (uint32_t place = 0; place < loads_.size(); ++place) {
    Load& load = loads_[place];
    if (load.id == 0) {
      continue;
    }
    if (now >= load.deadline && !IsDone(LoadId(load.id))) {
      Cut(load, load.sealed);
      LoseTail(load);
    }
    Submit(place);
  }
}

void StripeLoader::CutAll() {
  for (Load& load : loads_) {
    if (load.id != 0) {
      Cut(load, load.sealed);
      LoseTail(load);
    }
  }
}

std::optional<TimePoint> StripeLoader::NextDeadline() const {
  std::optional<TimePoint> next;
  for (const Load& load : loads_) {
    const bool waits = load.id != 0 && !IsDone(LoadId(load.id));
    if (waits && (!next.has_value() || load.deadline < *next)) {
      next = load.deadline;
    }
  }
  return next;
}

bool StripeLoader::HoldsStripes() const {
  return std::ranges::any_of(loads_, [](const Load& load) { return load.id != 0; });
}

absl::Status StripeLoader::CheckIntegrity() const {
  for (const Load& load : loads_) {
    const uint32_t num_stripes = static_cast<uint32_t>(load.stripes.size());
    if (load.sealed < load.first || load.sealed > load.end || load.end > load.first + num_stripes ||
        load.submitted > load.first + num_stripes || load.in_flight > num_stripes + 1) {
      return absl::InternalError("disk tier: the counts of a load contradict each other");
    }
    if (load.ended && load.in_flight == 0) {
      return absl::InternalError("disk tier: a load has ended, but still holds stripes");
    }
  }
  return absl::OkStatus();
}

}  // namespace spindle::kv
