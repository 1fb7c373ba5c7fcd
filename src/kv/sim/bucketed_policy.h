// Bucketed LRU as a policy of the simulator: one cache group of the fast tier itself, whose frames
// hold nothing. Also follows the sizes that a server gave the group when its trace was recorded.
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kv/fast/fast_tier.h"
#include "kv/sim/page_policy.h"

namespace spindle::kv::sim {

struct BucketedOptions {
  LruOptions lru;
  uint32_t max_frames = 0;  // most that Resize will ask for: a multiple of 8 in 8 … 65,528
  uint32_t num_pages = 0;   // ids are below; 1 … 4,194,304
  uint32_t max_step_pages = 0;
};

class BucketedPolicy final : public PagePolicy {
 public:
  // A group without frames. ERRORS: kInvalidArgument naming the option and its range;
  // kResourceExhausted (memory).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<BucketedPolicy>> Create(
      const BucketedOptions& options);

  uint32_t Step(std::span<const uint32_t> pages, std::span<uint8_t> is_hit) override {
    return StepWith(Caching::kLru, pages, is_hit);
  }

  // The same with what the server wanted to keep of the pages that it missed.
  uint32_t StepWith(Caching caching, std::span<const uint32_t> pages, std::span<uint8_t> is_hit);

  // See FastTier::Resize. ERRORS: kInvalidArgument (not a multiple of 8, over max_frames).
  [[nodiscard]] absl::Status Resize(uint32_t frames);

  // The sequence is paused: all frames and pages go.
  void Pause();

  [[nodiscard]] CacheSetStats Stats() const { return tier_->Stats(set_); }

 private:
  BucketedPolicy(const BucketedOptions& options, std::unique_ptr<FastTier> tier, CacheSetId set)
      : options_(options), tier_(std::move(tier)), set_(set), plan_(options.max_step_pages) {}

  BucketedOptions options_;
  std::unique_ptr<FastTier> tier_;
  CacheSetId set_;
  GroupPlan plan_;
  bool is_covered_ = true;  // the directory covers all pages
};

}  // namespace spindle::kv::sim
