// The KV tiers that the options ask for. Two steps: what needs no weights comes before they are
// read, so that a wrong option is refused at once. Thread-safety: call from one thread.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "config/load_options.h"
#include "kernels/registry.h"
#include "kv/disk/disk_files.h"
#include "kv/disk/disk_options.h"
#include "kv/disk_tier.h"
#include "kv/kv_tiers.h"
#include "model/model.h"

namespace spindle::app {

// What the disk tier stands on. The default serves; tests put files of their own under it.
struct DiskEnvironment {
  kv::disk::DiskFiles& files = kv::disk::SystemFiles();  // borrowed by the engine
  kv::disk::DiskOptions options = {};                    // those that no option of ours sets
};

// Host memory, and what --kv-mode adds to it. ERRORS: config::OptionError; kInvalidArgument: KV of
// that shape cannot be stored; kResourceExhausted.
[[nodiscard]] absl::StatusOr<kv::KvTiers> MakeMemoryTiers(const config::LoadOptions& options,
                                                          const model::ModelConfig& shape,
                                                          const kernels::KernelTable& kernels,
                                                          uint32_t num_workers);

// Makes the folder of the disk tier and resolves its size. ERRORS: config::OptionError.
// REQUIRES: --kv-disk-path is given.
[[nodiscard]] absl::StatusOr<kv::disk::DiskOptions> PrepareDisk(const config::LoadOptions& options,
                                                                const kv::KvGeometry& geometry,
                                                                const DiskEnvironment& environment);

// The store of `model` in that folder; `kernels` decide bits of stored KV, as the model does.
// ERRORS: config::OptionError (a folder that cannot be used, or that another process uses).
[[nodiscard]] absl::StatusOr<std::unique_ptr<kv::DiskTier>> OpenDiskTier(
    const config::LoadOptions& options,
    const kv::disk::DiskOptions& disk,
    const model::Model& model,
    const kernels::KernelTable& kernels,
    const Clock& clock,
    const DiskEnvironment& environment,
    kv::KvStore& host);

}  // namespace spindle::app
