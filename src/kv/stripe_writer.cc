#include "kv/stripe_writer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/status_macros.h"

namespace spindle::kv {
namespace {

// Stripes of a short prefix are written from this use on.
constexpr uint32_t kMinUses = 2;
// How long a store may wait for space or the queue, and how often it asks again meanwhile.
constexpr std::chrono::seconds kLongestStall{10};
constexpr std::chrono::milliseconds kRetryInterval{50};

// Leaves nothing of other sequences in a stripe of which `num_rows` rows are in use.
void ClearRowsBehind(const KvGeometry& geometry, uint32_t num_rows, uint8_t* stripe) {
  for (uint32_t layer = 0; layer < geometry.num_layers; ++layer) {
    for (uint32_t head = 0; head < geometry.num_kv_heads; ++head) {
      for (uint32_t lane = num_rows; lane < kStripeTokens; ++lane) {
        uint8_t* const row =
            stripe + geometry.row_offset(layer, lane) + head * geometry.head_bytes();
        std::memset(row, 0, geometry.row_bytes());
        std::memset(row + geometry.v_offset(), 0, geometry.row_bytes());
      }
    }
  }
}

}  // namespace

StripeWriter::StripeWriter(const Options& options,
                           KvStore& host,
                           disk::DiskStore& disk,
                           const Clock& clock)
    : options_(options), host_(host), disk_(disk), clock_(clock), gate_(kGatePlaces) {}

StripeWriter::~StripeWriter() {
  for (const Store& store : stores_) {
    if (store.active) {
      host_.Close(store.sequence);
    }
  }
}

void StripeWriter::CountUse(const PrefixChain& prompt) {
  for (const Digest& key : prompt.keys) {
    gate_.CountUse(key);
  }
}

bool StripeWriter::WorthStoring(const PrefixChain& chain, uint32_t ordinal) const {
  return chain.keys.size() * kStripeTokens >= options_.min_tokens_at_once ||
         gate_.Uses(chain.keys[ordinal]) >= kMinUses;
}

uint32_t StripeWriter::Vacant() {
  const auto place = std::ranges::find(stores_, false, &Store::active);
  const auto index = static_cast<uint32_t>(place - stores_.begin());
  if (place == stores_.end() && index < options_.max_waiting) {
    stores_.emplace_back();
  }
  return index;
}

void StripeWriter::Offer(const PrefixChain& chain) {
  // Only what others could find is worth keeping: cached stripes, tails excluded.
  const uint32_t num_cached = host_.MatchPrefix(chain.keys);
  uint32_t first = num_cached;
  uint32_t end = 0;
  for (uint32_t i = 0; i < num_cached; ++i) {
    const disk::RecordId id = StripeRecordId(chain.keys[i]);
    if (disk_.ContainsOrStoring(id)) {
      disk_.Touch(id);
    } else if (WorthStoring(chain, i)) {
      first = std::min(first, i);
      end = i + 1;
    } else {
      ++counters_.gated;
      break;  // what lies behind could not be reached
    }
  }
  if (first >= end) {
    return;
  }
  const uint32_t place = Vacant();
  if (place == options_.max_waiting) {
    ++counters_.dropped;
    return;
  }
  Store& store = stores_[place];
  store.active = true;
  store.chain = OwnedChain(chain, end);
  store.sequence = host_.Open(BudgetGroupId(), chain.keys.first(end), end, PrefixUse::kHold);
  store.next = first;
  store.end = end;
  Submit(place);
}

bool StripeWriter::Save(SaveRequest&& request) {
  const uint32_t place = Vacant();
  if (place == options_.max_waiting) {
    ++counters_.dropped;
    return false;
  }
  Store& store = stores_[place];
  store.active = true;
  store.sequence = request.sequence;
  store.chain = std::move(request.chain);
  store.end = store.num_written = static_cast<uint32_t>(store.chain.keys.size());
  store.save_tag = request.tag;
  if (request.tail.has_value()) {
    store.tail = *std::move(request.tail);
    store.tail_state = Store::Tail::kWaiting;
    ClearRowsBehind(host_.geometry(),
                    static_cast<uint32_t>(store.tail.tokens.size()),
                    host_.View(store.sequence).stripes[store.end]);
  }
  Submit(place);
  return true;
}

std::vector<StripeWriter::SaveResult> StripeWriter::TakeSaved() {
  return std::exchange(saved_, {});
}

void StripeWriter::Submit(uint32_t place) {
  Store& store = stores_[place];
  while (store.next < store.end && SubmitStripe(place, store.next)) {
    ++store.next;
    store.stalled_since.reset();
  }
  SubmitTail(place);
  FinishIfWritten(store);
}

bool StripeWriter::SubmitStripe(uint32_t place, uint32_t ordinal) {
  Store& store = stores_[place];
  const disk::RecordId id = StripeRecordId(store.chain.keys[ordinal]);
  if (disk_.ContainsOrStoring(id)) {
    return true;
  }
  const SealedStripe stripe = host_.Sealed(store.sequence, ordinal);
  const absl::StatusOr<disk::Ticket> ticket =
      disk_.SubmitStore({.id = id,
                         .parent = store.chain.Parent(ordinal),
                         .method = kDenseMethod,
                         .checksum = stripe.checksum,
                         .ordinal = ordinal,
                         .tokens = store.chain.Tokens(ordinal),
                         .payload = {stripe.data, host_.geometry().stripe_bytes()},
                         .tag = StripeTag{place, ordinal}.Pack()});
  if (ticket.ok()) {
    ++store.in_flight;
    return true;
  }
  if (absl::IsAlreadyExists(ticket.status())) {
    return true;
  }
  Refused(store, ticket.status());
  return false;
}

void StripeWriter::SubmitTail(uint32_t place) {
  Store& store = stores_[place];
  if (store.tail_state != Store::Tail::kWaiting || store.next < store.end) {
    return;
  }
  const uint8_t* const data = host_.View(store.sequence).stripes[store.end];
  const std::span<const uint8_t> payload(data, host_.geometry().stripe_bytes());
  const Digest& parent = store.chain.Parent(store.end);
  const absl::StatusOr<disk::Ticket> ticket =
      disk_.SubmitStore({.id = TailRecordId(parent, store.tail.sub_id),
                         .parent = parent,
                         .method = kDenseMethod,
                         .checksum = disk::ChecksumOf(payload),
                         .ordinal = store.end,
                         .tokens = store.tail.tokens,
                         .payload = payload,
                         .tag = StripeTag{place, kTailOrdinal}.Pack()});
  if (ticket.ok()) {
    ++store.in_flight;
    store.tail_state = Store::Tail::kInFlight;
    return;
  }
  Refused(store, ticket.status());
}

void StripeWriter::Refused(Store& store, const absl::Status& status) {
  const TimePoint now = clock_.Now();
  const TimePoint since = store.stalled_since.value_or(now);
  store.stalled_since = since;
  // A full queue empties; a full or failed device does not soon.
  if (!absl::IsResourceExhausted(status) || disk_.Stats().state != disk::TierState::kOk ||
      now - since >= kLongestStall) {
    Drop(store);
  }
}

void StripeWriter::Drop(Store& store) {
  if (!store.waits()) {
    return;
  }
  store.num_written = std::min(store.num_written, store.next);
  store.next = store.end;
  if (store.tail_state == Store::Tail::kWaiting) {
    store.tail_state = Store::Tail::kNone;
  }
  ++counters_.dropped;
}

void StripeWriter::Deliver(const disk::Completion& completion) {
  const auto [place, ordinal] = StripeTag::Unpack(completion.tag);
  Store& store = stores_[place];
  SPINDLE_CHECK(store.active && store.in_flight > 0);
  --store.in_flight;
  if (ordinal == kTailOrdinal) {
    store.tail_state = completion.status.ok() ? Store::Tail::kWritten : Store::Tail::kNone;
  } else if (!completion.status.ok()) {
    store.num_written = std::min(store.num_written, ordinal);
  }
  FinishIfWritten(store);
}

// A stripe that another store had begun to write was passed over, and may have failed.
bool StripeWriter::CheckWritten(Store& store) {
  for (; store.num_checked < store.num_written; ++store.num_checked) {
    const disk::RecordId id = StripeRecordId(store.chain.keys[store.num_checked]);
    if (disk_.Contains(id)) {
      continue;
    }
    if (disk_.ContainsOrStoring(id)) {
      return false;
    }
    store.num_written = store.num_checked;
    break;
  }
  return true;
}

void StripeWriter::FinishIfWritten(Store& store) {
  if (!store.active || store.waits() || store.in_flight > 0 || !CheckWritten(store)) {
    return;
  }
  if (store.save_tag.has_value()) {
    const bool whole = store.num_written == store.end;
    saved_.push_back({.tag = *store.save_tag,
                      .num_stripes = store.num_written,
                      .tail = whole && store.tail_state == Store::Tail::kWritten});
  }
  host_.Close(store.sequence);
  store = Store();
}

std::optional<TimePoint> StripeWriter::NextRetry() const {
  if (!saved_.empty()) {
    return clock_.Now();
  }
  const bool stalled = std::ranges::any_of(stores_, [](const Store& store) {
    return store.active && store.stalled_since.has_value() && store.in_flight == 0;
  });
  return stalled ? std::optional(clock_.Now() + kRetryInterval) : std::nullopt;
}

void StripeWriter::Advance() {
  for (uint32_t place = 0; place < stores_.size(); ++place) {
    if (stores_[place].active) {
      Submit(place);
    }
  }
}

void StripeWriter::DropWaiting() {
  for (Store& store : stores_) {
    const bool advances = store.save_tag.has_value() && store.in_flight > 0;
    if (store.active && !advances) {
      Drop(store);
      FinishIfWritten(store);
    }
  }
}

bool StripeWriter::HoldsStripes() const {
  return std::ranges::any_of(stores_, &Store::active);
}

absl::Status StripeWriter::CheckIntegrity() const {
  for (const Store& store : stores_) {
    if (store.active && !store.waits() && store.in_flight == 0 &&
        store.num_checked == store.num_written) {
      return absl::InternalError("disk tier: a store is written, but still pins stripes");
    }
  }
  return absl::OkStatus();
}

}  // namespace spindle::kv
