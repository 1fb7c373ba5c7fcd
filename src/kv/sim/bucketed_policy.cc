#include "kv/sim/bucketed_policy.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "kernels/registry.h"

namespace spindle::kv::sim {
namespace {

// Pages of 2 KiB: frames are reserved and never touched.
KvGeometry SmallestGeometry() {
  KvGeometry geometry;
  geometry.num_layers = 1;
  geometry.num_kv_heads = 1;
  geometry.head_dim = 16;
  return geometry;
}

GroupRef GroupOf(CacheSetId set) {
  return {set, LayerIdx(0), KvHeadIdx(0)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<BucketedPolicy>> BucketedPolicy::Create(
    const BucketedOptions& options) {
  if (options.num_pages < 1 || options.num_pages > FrameWord::kMaxPages) {
    return absl::InvalidArgumentError("pages of a group must be in 1..4194304 for bucketed, got " +
                                      std::to_string(options.num_pages));
  }
  FastTierOptions tier;
  tier.geometry = SmallestGeometry();
  tier.lru = options.lru;
  tier.max_group_frames = options.max_frames;
  tier.pass_unit_tokens = kStripeTokens;
  tier.ring_frames = kRunFrames;  // nothing is attended, so nothing is gained by fewer passes
  tier.fast_bytes = (uint64_t{options.num_groups} * options.max_frames + tier.ring_frames) *
                    tier.geometry.page_bytes();
  // Directory, refault maps and leaves of 64 slots are 0.25 + 0.25 + 2 bytes per page.
  tier.metadata_bytes = (uint64_t{1} << 20) + uint64_t{8} * options.num_pages * options.num_groups;
  SPINDLE_ASSIGN_OR_RETURN(std::shared_ptr<FastTier> made,
                           FastTier::Create(tier, *kernels::BestKernels()));
  SPINDLE_ASSIGN_OR_RETURN(const CacheSetId set, made->Open(BudgetGroupId(0), options.num_pages));
  return std::unique_ptr<BucketedPolicy>(new BucketedPolicy(options, std::move(made), set));
}

absl::StatusOr<std::unique_ptr<BucketedPolicy>> BucketedPolicy::OpenAnother() const {
  SPINDLE_ASSIGN_OR_RETURN(const CacheSetId set, tier_->Open(BudgetGroupId(0), options_.num_pages));
  return std::unique_ptr<BucketedPolicy>(new BucketedPolicy(options_, tier_, set));
}

uint32_t BucketedPolicy::Select(Caching caching,
                                std::span<const uint32_t> pages,
                                std::span<uint8_t> is_hit) {
  const GroupRef group = GroupOf(set_);
  tier_->Plan(/*worker=*/0, /*ring=*/0, group, pages, caching, &plan_);
  std::fill(is_hit.begin(), is_hit.end(), uint8_t{1});
  for (const PageLoad& load : plan_.loads) {
    is_hit[load.index] = 0;
  }
  tier_->Commit(group, plan_);
  return static_cast<uint32_t>(pages.size() - plan_.loads.size());
}

absl::Status BucketedPolicy::Resize(uint32_t frames) {
  if (frames % kRunFrames != 0 || frames > options_.max_frames) {
    return absl::InvalidArgumentError("frames must be a multiple of 8 in 0.." +
                                      std::to_string(options_.max_frames) + ", got " +
                                      std::to_string(frames));
  }
  if (!is_covered_) {
    SPINDLE_RETURN_IF_ERROR(tier_->Cover(set_, options_.num_pages));
    is_covered_ = true;
  }
  return tier_->Resize(set_, frames);
}

void BucketedPolicy::Pause() {
  tier_->Drop(set_);
  is_covered_ = false;
}

}  // namespace spindle::kv::sim
