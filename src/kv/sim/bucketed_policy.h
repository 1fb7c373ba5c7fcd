// Bucketed LRU as a policy of the simulator: one cache group of the fast tier itself, whose frames
// hold nothing. Also follows what a server did with the group when its trace was recorded: sizes,
// pauses, several selections in a step, forks.
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
  uint32_t num_groups = 1;  // that may exist beside each other
};

class BucketedPolicy final : public PagePolicy {
 public:
  // A group without frames. ERRORS: kInvalidArgument naming the option and its range;
  // kResourceExhausted (memory).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<BucketedPolicy>> Create(
      const BucketedOptions& options);

  // Another group without frames beside this one, for Adopt. ERRORS: kResourceExhausted (memory).
  [[nodiscard]] absl::StatusOr<std::unique_ptr<BucketedPolicy>> OpenAnother() const;

  ~BucketedPolicy() override { tier_->Close(set_); }

  BucketedPolicy(const BucketedPolicy&) = delete;
  BucketedPolicy& operator=(const BucketedPolicy&) = delete;

  uint32_t Step(std::span<const uint32_t> pages, std::span<uint8_t> is_hit) override {
    BeginStep();
    return Select(Caching::kLru, pages, is_hit);
  }

  // The same in two parts, for steps with several selections, and with what the server wanted to
  // keep of the pages that it missed.
  void BeginStep() { tier_->BeginStep(set_); }

  uint32_t Select(Caching caching, std::span<const uint32_t> pages, std::span<uint8_t> is_hit);

  // See FastTier::Resize. ERRORS: kInvalidArgument (not a multiple of 8, over max_frames).
  [[nodiscard]] absl::Status Resize(uint32_t frames);

  // The sequence is paused: all frames and pages go.
  void Pause();

  // See FastTier::Adopt. REQUIRES: this group is new; the parent comes from OpenAnother of it, or
  // the other way round.
  void Adopt(const BucketedPolicy& parent) { tier_->Adopt(set_, parent.set_); }

  [[nodiscard]] CacheSetStats Stats() const { return tier_->Stats(set_); }

 private:
  BucketedPolicy(const BucketedOptions& options, std::shared_ptr<FastTier> tier, CacheSetId set)
      : options_(options), tier_(std::move(tier)), set_(set), plan_(options.max_step_pages) {}

  BucketedOptions options_;
  std::shared_ptr<FastTier> tier_;  // shared by groups beside each other
  CacheSetId set_;
  GroupPlan plan_;
  bool is_covered_ = true;  // the directory covers all pages
};

}  // namespace spindle::kv::sim
