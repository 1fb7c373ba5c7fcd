#include "kv/tier_bytes.h"

#include "kv/disk/transfer_job.h"
#include "kv/stripe_record.h"

namespace spindle::kv {
namespace {

// Of an allocation, and of a node of a hash map: the allocator's words and rounding, a link, the
// hash, the place in the table.
constexpr uint64_t kAllocationBytes = 16;
constexpr uint64_t kNodeBytes = kAllocationBytes + 3 * sizeof(void*);
// Hash tables of places double when they are full; both are there while entries move.
constexpr uint64_t kTableBytes = 3 * sizeof(uint32_t);
// The longest name and tenant of a session.
constexpr uint64_t kNameBytes = 128 + 64;
// Kept and sent, or read, decoded and written again.
constexpr uint64_t kManifestCopies = 3;

// A session's tokens and keys, as they are written.
uint64_t ManifestBytes(uint32_t max_model_len) {
  return uint64_t{max_model_len} * sizeof(TokenId) +
         KvStore::StripesFor(max_model_len) * sizeof(Digest) + kNameBytes + disk::kAlignment;
}

uint64_t SessionBytes(uint32_t max_model_len) {
  const uint64_t keys = KvStore::StripesFor(max_model_len) * sizeof(Digest);
  // In the book and in the list of tails, with four allocations; two records of the index.
  return sizeof(Session) + kNameBytes + keys + kStripeTokens * sizeof(TokenId) +
         2 * (sizeof(Digest) + kNodeBytes) + 4 * kAllocationBytes +
         2 * (sizeof(disk::IndexEntry) + kTableBytes);
}

}  // namespace

uint64_t HostIndexBytes(const KvGeometry& geometry, uint64_t host_bytes) {
  // Record, place in the table, in the list of free slots and in its sequence.
  constexpr uint64_t kStripeBytes =
      sizeof(StripeRecord) + kTableBytes + sizeof(uint32_t) + sizeof(uint32_t) + sizeof(void*);
  return host_bytes / geometry.stripe_bytes() * kStripeBytes;
}

DiskTierBytes DiskTierBytesOf(const DiskTierOptions& options,
                              const disk::DiskOptions& disk_options,
                              const KvGeometry& geometry,
                              uint64_t host_bytes,
                              uint32_t max_model_len) {
  const uint64_t stripe_bytes = geometry.stripe_bytes();
  const uint64_t disk_stripes = disk_options.capacity_bytes / stripe_bytes;
  const SessionOptions& sessions = options.sessions;
  const uint64_t header_bytes = disk::HeaderBytes(geometry.num_layers);
  // Aligned memory leaves up to a page unused.
  const uint64_t job_bytes = sizeof(disk::TransferJob) + header_bytes + 2 * disk::kAlignment +
                             geometry.num_layers * sizeof(uint32_t);
  // Chains of loads and stores pin stripes of the host tier, and a load has a ticket for each.
  const uint64_t chain_bytes =
      host_bytes / stripe_bytes * (kStripeTokens * sizeof(TokenId) + sizeof(Digest) + 40);
  const auto retained_stripes =
      static_cast<uint64_t>(sessions.max_share * static_cast<double>(disk_stripes));
  DiskTierBytes bytes{};
  bytes.index = disk_stripes * (sizeof(disk::IndexEntry) + kTableBytes);
  bytes.transfers =
      (uint64_t{disk_options.max_loads} + disk_options.max_stores) * job_bytes + chain_bytes +
      // A record on its way through the collector, the table of uses, the journal's buffers.
      stripe_bytes + header_bytes + StripeWriter::kGateBytes + (uint64_t{1} << 20);
  bytes.sessions = sessions.max_sessions * SessionBytes(max_model_len) +
                   retained_stripes * (sizeof(Digest) + sizeof(uint64_t) + kNodeBytes) +
                   2 * kManifestCopies * sessions.max_pending * ManifestBytes(max_model_len);
  return bytes;
}

}  // namespace spindle::kv
