// A small fast tier whose pages have known content: a frame that a plan calls resident, or that a
// load filled, holds the tag of its page. Thread-safety: single-threaded tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "kv/fast/fast_tier.h"

namespace spindle::kv {

// 2 layers × 3 heads, pages of 4 KiB with 16 tokens: tiles of 4 pages.
inline FastTierOptions SmallTier(uint64_t num_frames) {
  FastTierOptions options;
  options.geometry.num_layers = 2;
  options.geometry.num_kv_heads = 3;
  options.geometry.head_dim = 64;
  options.fast_bytes = num_frames * 4096;
  options.metadata_bytes = uint64_t{4} << 20;
  options.num_workers = 2;
  options.num_rings = 2;
  options.pass_unit_tokens = 64;
  options.ring_frames = 8;
  options.max_group_frames = 512;
  options.poison_free_frames = true;
  return options;
}

inline std::unique_ptr<FastTier> MakeTier(const FastTierOptions& options) {
  auto tier = FastTier::Create(options, *kernels::BestKernels());
  EXPECT_TRUE(tier.ok()) << tier.status();
  return *std::move(tier);
}

inline GroupRef Group(CacheSetId set, uint32_t layer, uint32_t head) {
  return {set, LayerIdx(static_cast<uint16_t>(layer)), KvHeadIdx(static_cast<uint16_t>(head))};
}

inline uint64_t TagOf(const GroupRef& group, uint32_t page, uint64_t sequence) {
  return sequence << 40 | uint64_t{group.layer.value()} << 34 | uint64_t{group.head.value()} << 30 |
         page;
}

// Runs one group's step: copies tags as the plan says and checks that every pass finds the tags of
// its pages. `sequence` names the content.
inline void AttendStep(FastTier& tier,
                       uint32_t worker,
                       const GroupRef& group,
                       std::span<const uint32_t> pages,
                       uint64_t sequence,
                       GroupPlan* plan,
                       Caching caching = Caching::kLru) {
  tier.Plan(worker, worker, group, pages, caching, plan);
  ASSERT_EQ(plan->frames.size(), pages.size());
  uint32_t page_end = 0;
  uint32_t load_end = 0;
  for (const AttentionPass& pass : plan->passes) {
    ASSERT_EQ(pass.page_begin, page_end);
    ASSERT_EQ(pass.load_begin, load_end);
    ASSERT_LT(pass.page_begin, pass.page_end);
    for (uint32_t i = pass.load_begin; i < pass.load_end; ++i) {
      const PageLoad& load = plan->loads[i];
      ASSERT_GE(load.index, pass.page_begin);
      ASSERT_LT(load.index, pass.page_end);
      ASSERT_EQ(plan->frames[load.index], load.frame);
      const uint64_t tag = TagOf(group, pages[load.index], sequence);
      std::memcpy(tier.FrameData(load.frame), &tag, sizeof(tag));
    }
    for (uint32_t i = pass.page_begin; i < pass.page_end; ++i) {
      uint64_t tag = 0;
      std::memcpy(&tag, tier.FrameData(plan->frames[i]), sizeof(tag));
      ASSERT_EQ(tag, TagOf(group, pages[i], sequence)) << "page " << pages[i];
    }
    page_end = pass.page_end;
    load_end = pass.load_end;
  }
  ASSERT_EQ(page_end, pages.size());
  ASSERT_EQ(load_end, plan->loads.size());
  tier.Commit(group, *plan);
}

inline std::vector<uint32_t> Range(uint32_t begin, uint32_t end) {
  std::vector<uint32_t> pages;
  for (uint32_t page = begin; page < end; ++page) {
    pages.push_back(page);
  }
  return pages;
}

}  // namespace spindle::kv
