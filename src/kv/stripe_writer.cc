#include "kv/stripe_writer.h"

#include <algorithm>

#include "base/status_macros.h"

namespace spindle::kv {
namespace {

constexpr uint32_t kGatePlaces = uint32_t{1} << 16;
// Stripes of a short prefix are written from this use on.
constexpr uint32_t kMinUses = 2;

}  // namespace

StripeWriter::StripeWriter(const Options& options, KvStore& host, disk::DiskStore& disk)
    : options_(options), host_(host), disk_(disk), gate_(kGatePlaces) {}

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

void StripeWriter::Submit(uint32_t place) {
  Store& store = stores_[place];
  for (; store.next < store.end; ++store.next) {
    const uint32_t ordinal = store.next;
    const disk::RecordId id = StripeRecordId(store.chain.keys[ordinal]);
    if (disk_.ContainsOrStoring(id)) {
      continue;
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
      continue;
    }
    if (absl::IsAlreadyExists(ticket.status())) {
      continue;
    }
    // A full queue empties; a full or failed device does not soon.
    if (!absl::IsResourceExhausted(ticket.status()) ||
        disk_.Stats().state != disk::TierState::kOk) {
      Drop(store);
    }
    break;
  }
  FinishIfWritten(store);
}

void StripeWriter::Drop(Store& store) {
  if (store.next < store.end) {
    store.next = store.end;
    ++counters_.dropped;
  }
}

void StripeWriter::Deliver(const disk::Completion& completion) {
  Store& store = stores_[StripeTag::Unpack(completion.tag).place];
  SPINDLE_CHECK(store.active && store.in_flight > 0);
  --store.in_flight;
  FinishIfWritten(store);
}

void StripeWriter::FinishIfWritten(Store& store) {
  if (store.active && store.next == store.end && store.in_flight == 0) {
    host_.Close(store.sequence);
    store = Store();
  }
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
    if (store.active) {
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
    if (store.active && store.next == store.end && store.in_flight == 0) {
      return absl::InternalError("disk tier: a store is written, but still pins stripes");
    }
  }
  return absl::OkStatus();
}

}  // namespace spindle::kv
