// A small geometry, made-up stripes, and a store that runs on the test's own thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/hash.h"
#include "kv/disk/aligned_buffer.h"
#include "kv/disk/disk_store.h"
#include "support/memory_files.h"

namespace spindle::kv::disk {

inline constexpr char kRoot[] = "/store";

// Two layers of one head: an extent of 4 KiB, a stripe of 8 KiB, a record of 12 KiB.
inline StoreIdentity SmallIdentity(uint8_t model = 1) {
  StoreIdentity identity;
  identity.fingerprint.fill(model);
  identity.geometry = {.num_layers = 2, .num_kv_heads = 1, .head_dim = 16, .type = DType::kBF16};
  identity.numerics_class = 7;
  return identity;
}

inline DiskOptions SmallOptions(IoMode mode = IoMode::kInline) {
  DiskOptions options;
  options.path = kRoot;
  options.segment_bytes = 128 << 10;
  options.capacity_bytes = uint64_t{64} << 20;
  options.min_free_bytes = 0;
  options.min_free_fraction = 0;
  options.io_mode = mode;
  return options;
}

// A stripe with content, key and tokens that follow from `number`; its parent is the one before.
class TestStripe {
 public:
  explicit TestStripe(uint64_t number,
                      const KvGeometry& geometry = SmallIdentity().geometry,
                      uint32_t num_tokens = kStripeTokens)
      : number_(number), payload_(geometry.stripe_bytes()) {
    id.key = Key(number);
    if (num_tokens < kStripeTokens) {
      id.kind = RecordKind::kOpenTail;
    }
    for (uint32_t i = 0; i < num_tokens; ++i) {
      tokens.push_back(static_cast<TokenId>((number * 131 + i * 7) % 49152));
    }
    uint64_t state = number * 0x9e3779b97f4a7c15 + 1;
    for (size_t i = 0; i < payload_.size(); i += 8) {
      state = state * 6364136223846793005 + 1442695040888963407;
      std::memcpy(payload_.data() + i, &state, 8);
    }
  }

  static Digest Key(uint64_t number) { return Sha256().Number(number).Finish(); }

  [[nodiscard]] std::span<const uint8_t> payload() const { return payload_.span(); }

  [[nodiscard]] std::span<uint8_t> mutable_payload() { return payload_.span(); }

  [[nodiscard]] StoreRequest Store(Ack ack = Ack::kWritten) const {
    StoreRequest request;
    request.id = id;
    request.parent = Key(number_ - 1);
    request.method.fill(static_cast<uint8_t>(number_));
    request.checksum = ChecksumOf(payload());
    request.ordinal = static_cast<uint32_t>(number_);
    request.tokens = tokens;
    request.payload = payload();
    request.ack = ack;
    request.tag = number_;
    return request;
  }

  [[nodiscard]] LoadRequest Load(std::span<uint8_t> destination) const {
    LoadRequest request;
    request.id = id;
    request.parent = Key(number_ - 1);
    request.tokens = tokens;
    request.destination = destination;
    request.tag = number_;
    return request;
  }

  [[nodiscard]] bool Equals(std::span<const uint8_t> bytes) const {
    return std::equal(bytes.begin(), bytes.end(), payload_.span().begin(), payload_.span().end());
  }

  RecordId id;
  std::vector<TokenId> tokens;

 private:
  uint64_t number_;
  AlignedBuffer payload_;
};

// Opens, or fails the test.
inline std::unique_ptr<DiskStore> OpenStore(DiskFiles& files,
                                            const Clock& clock,
                                            const DiskOptions& options = SmallOptions(),
                                            const StoreIdentity& identity = SmallIdentity()) {
  absl::StatusOr<std::unique_ptr<DiskStore>> store =
      DiskStore::Open(options, identity, files, clock, nullptr);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

// Polls until the final completion of `ticket`; completions of others are dropped.
inline Completion WaitFor(DiskStore& store, Ticket ticket) {
  std::array<Completion, 4> batch;
  for (int round = 0; round < 10'000'000; ++round) {
    const size_t count = store.Poll(batch);
    for (size_t i = 0; i < count; ++i) {
      if (batch[i].ticket == ticket && batch[i].final) {
        return std::move(batch[i]);
      }
    }
    store.Tick();
  }
  ADD_FAILURE() << "no completion of ticket " << ticket;
  return {};
}

inline absl::Status StoreNow(DiskStore& store, const TestStripe& stripe) {
  const absl::StatusOr<Ticket> ticket = store.SubmitStore(stripe.Store());
  return ticket.ok() ? WaitFor(store, *ticket).status : ticket.status();
}

// Loads and compares; kInternal when an OK load brought other bytes.
inline absl::Status LoadNow(DiskStore& store, const TestStripe& stripe) {
  const AlignedBuffer destination(stripe.payload().size());
  const absl::StatusOr<Ticket> ticket = store.SubmitLoad(stripe.Load(destination.span()));
  if (!ticket.ok()) {
    return ticket.status();
  }
  const Completion completion = WaitFor(store, *ticket);
  if (completion.status.ok() && !stripe.Equals(destination.span())) {
    return absl::InternalError("a load that is OK brought wrong bytes");
  }
  return completion.status;
}

inline absl::StatusOr<std::vector<uint8_t>> FetchNow(DiskStore& store, const RecordId& id) {
  const absl::StatusOr<Ticket> ticket = store.SubmitFetch(id, 0);
  if (!ticket.ok()) {
    return ticket.status();
  }
  const Completion completion = WaitFor(store, *ticket);
  if (!completion.status.ok()) {
    return completion.status;
  }
  return std::vector<uint8_t>(completion.payload.begin(), completion.payload.end());
}

inline absl::Status PutNow(DiskStore& store, const RecordId& id, std::span<const uint8_t> bytes) {
  const absl::StatusOr<Ticket> ticket = store.SubmitPut(id, bytes, Ack::kWritten, 0);
  return ticket.ok() ? WaitFor(store, *ticket).status : ticket.status();
}

[[nodiscard]] inline uint64_t Failures(const DiskStats& stats, LoadFailure cause) {
  return stats.load_failures[static_cast<size_t>(cause)];
}

[[nodiscard]] inline uint64_t Errors(const DiskStats& stats, DeviceError error) {
  return stats.device_errors[static_cast<size_t>(error)];
}

[[nodiscard]] inline uint64_t Skips(const DiskStats& stats, StoreSkip cause) {
  return stats.stores_skipped[static_cast<size_t>(cause)];
}

}  // namespace spindle::kv::disk
