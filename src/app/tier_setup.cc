#include "app/tier_setup.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "config/memory_plan.h"
#include "config/option_error.h"
#include "platform/compute_pool.h"
#include "sparse/selected_pages.h"

namespace spindle::app {
namespace {

using config::OptionError;

constexpr uint64_t kMinDiskStripes = 64;
constexpr uint64_t kSegmentsOfSmallTier = 16;

std::string DiskPath(const kv::KvOptions& options) {
  return "--kv-disk-path " + options.disk_path;
}

// The fast tier of the modes that have one: a ring per worker, the rest for sequences.
absl::StatusOr<std::unique_ptr<kv::FastTier>> MakeFastTier(const config::LoadOptions& options,
                                                           const model::ModelConfig& shape,
                                                           const kernels::KernelTable& kernels,
                                                           uint32_t num_workers) {
  kv::FastTierOptions fast;
  fast.geometry = config::GeometryOf(options, shape);
  fast.fast_bytes = config::ResolveFastBytes(options, shape, platform::TotalMemoryBytes());
  fast.metadata_bytes = config::FastMetadataBytes(options, shape, fast.fast_bytes);
  fast.num_workers = num_workers;
  fast.num_rings = num_workers;
  // Whatever is selected of a segment.
  fast.ring_frames = (sparse::MostPagesOfSegment(fast.geometry) + kv::kRunFrames - 1) /
                     kv::kRunFrames * kv::kRunFrames;
  const uint64_t least = uint64_t{fast.num_rings} * fast.ring_frames * fast.geometry.page_bytes();
  if (fast.fast_bytes < least) {
    return OptionError(absl::InvalidArgumentError(
        "--kv-fast-bytes must be at least " + std::to_string(least) + " (" +
        std::to_string(fast.ring_frames) + " pages, whatever a head selects of " +
        std::to_string(kSegmentTokens) + " tokens, for each of " + std::to_string(num_workers) +
        " threads), got " + std::to_string(fast.fast_bytes)));
  }
  absl::StatusOr<std::unique_ptr<kv::FastTier>> tier = kv::FastTier::Create(fast, kernels);
  if (absl::IsInvalidArgument(tier.status())) {
    return OptionError("--kv-fast-bytes", tier.status());
  }
  return tier;
}

}  // namespace

absl::StatusOr<kv::KvTiers> MakeMemoryTiers(const config::LoadOptions& options,
                                            const model::ModelConfig& shape,
                                            const kernels::KernelTable& kernels,
                                            uint32_t num_workers) {
  const kv::KvGeometry geometry = config::GeometryOf(options, shape);
  SPINDLE_RETURN_IF_ERROR(kv::ValidateGeometry(geometry));
  kv::KvOptions kv_options = options.kv;
  kv_options.host_bytes = config::ResolveHostBytes(options, shape, platform::TotalMemoryBytes());
  kv::KvTiers tiers;
  absl::StatusOr<std::unique_ptr<kv::KvStore>> host = kv::KvStore::Create(kv_options, geometry);
  if (absl::IsInvalidArgument(host.status())) {
    return OptionError(host.status());
  }
  SPINDLE_ASSIGN_OR_RETURN(tiers.host, std::move(host));
  if (kv_options.mode != kv::KvMode::kInPlace) {
    SPINDLE_ASSIGN_OR_RETURN(tiers.fast, MakeFastTier(options, shape, kernels, num_workers));
  }
  if (kv_options.mode == kv::KvMode::kEmulatedLink) {
    if (absl::Status status = kv::ValidateLinkOptions(kv_options.link); !status.ok()) {
      return OptionError(std::move(status));
    }
    tiers.link = std::make_unique<kv::EmulatedLink>(kv_options.link);
  }
  return tiers;
}

absl::StatusOr<kv::disk::DiskOptions> PrepareDisk(const config::LoadOptions& options,
                                                  const kv::KvGeometry& geometry,
                                                  const DiskEnvironment& environment) {
  kv::disk::DiskFiles& files = environment.files;
  kv::disk::DiskOptions disk = environment.options;
  disk.path = options.kv.disk_path;
  disk.capacity_bytes = options.kv.disk_bytes;
  disk.min_free_bytes = options.kv.disk_min_free_bytes;
  if (const absl::Status status = files.MakeDirectory(disk.path); !status.ok()) {
    return OptionError(DiskPath(options.kv), status);
  }
  // A file of that name counts as made.
  if (const auto entries = files.List(disk.path); !entries.ok()) {
    return OptionError(DiskPath(options.kv), entries.status());
  }
  if (disk.capacity_bytes == 0) {
    const absl::StatusOr<kv::disk::FreeSpaceInfo> space = files.FreeSpace(disk.path);
    if (!space.ok()) {
      return OptionError(DiskPath(options.kv), space.status());
    }
    disk.capacity_bytes = std::min(config::kMaxDefaultDiskBytes, space->free_bytes / 2);
  }
  const uint64_t smallest = kMinDiskStripes * geometry.stripe_bytes();
  if (disk.capacity_bytes < smallest) {
    return OptionError(absl::InvalidArgumentError(
        "--kv-disk-bytes must be at least " + config::HumanBytes(smallest) +
        " for this model, got " + config::HumanBytes(disk.capacity_bytes)));
  }
  // Space comes back segment by segment, so a small tier has small ones.
  disk.segment_bytes =
      kv::disk::RoundUp(std::min(disk.segment_bytes, disk.capacity_bytes / kSegmentsOfSmallTier));
  return disk;
}

absl::StatusOr<std::unique_ptr<kv::DiskTier>> OpenDiskTier(const config::LoadOptions& options,
                                                           const kv::disk::DiskOptions& disk,
                                                           const model::Model& model,
                                                           const kernels::KernelTable& kernels,
                                                           const Clock& clock,
                                                           const DiskEnvironment& environment,
                                                           kv::KvStore& host) {
  absl::StatusOr<std::unique_ptr<kv::DiskTier>> tier =
      kv::DiskTier::Open({.sessions = {.max_sessions = options.kv.max_sessions}},
                         disk,
                         {.fingerprint = model.fingerprint(),
                          .geometry = host.geometry(),
                          .numerics_class = kernels.family},
                         environment.files,
                         clock,
                         host);
  if (!tier.ok()) {
    return OptionError(DiskPath(options.kv), tier.status());
  }
  const kv::disk::DiskStats stats = (*tier)->Stats().disk;
  log::Info("kv_disk_open",
            {{"path", disk.path},
             {"capacity", config::HumanBytes(stats.capacity_bytes)},
             {"used", config::HumanBytes(stats.used_bytes)},
             {"stripes", stats.entries},
             {"direct", stats.direct_active},
             {"io_uring", stats.ring_active}});
  return tier;
}

}  // namespace spindle::app
