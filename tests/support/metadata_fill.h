// Fills a fast tier to its budget with a model's shapes, to see what its metadata really takes
// beside the formula and beside flat tables. For tests and benches. Thread-safety: pure function.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "base/status_macros.h"
#include "kernels/registry.h"
#include "kv/fast/fast_tier.h"
#include "kv/fast/flat_page_table.h"

namespace spindle::test {

struct MetadataCase {
  const char* name;
  uint32_t layers;
  uint32_t heads;
  uint32_t page_tokens;
  uint32_t requests;
  uint32_t max_tokens;      // what flat tables are sized for
  uint32_t tokens;          // what the requests have
  uint32_t resident_pages;  // per group
  bool clustered;           // runs of 16 pages instead of scattered ones
};

struct MetadataResult {
  kv::FastMetadataBytes bytes;
  double formula = 0;  // 16 B per 64 pages (32 B with maps), 4 B · 1.25 per resident page, 5 B per
                       // frame
  double flat_worst = 0;
  double flat_tight = 0;
};

// Distinct pages below num_pages, ascending.
inline std::vector<uint32_t> ResidentPages(const MetadataCase& of,
                                           uint32_t num_pages,
                                           std::mt19937_64& rng) {
  std::vector<bool> chosen(num_pages, false);
  uint32_t count = 0;
  while (count < of.resident_pages) {
    const auto first = static_cast<uint32_t>(rng() % num_pages);
    const uint32_t run = of.clustered ? 16 : 1;
    for (uint32_t page = first; page < std::min(num_pages, first + run); ++page) {
      if (!chosen[page] && count < of.resident_pages) {
        chosen[page] = true;
        ++count;
      }
    }
  }
  std::vector<uint32_t> pages;
  for (uint32_t page = 0; page < num_pages; ++page) {
    if (chosen[page]) {
      pages.push_back(page);
    }
  }
  return pages;
}

// Frames are address space only here: no content is written, so their size does not matter and
// pages may have any number of tokens.
//   REQUIRES: resident_pages ≤ tokens / page_tokens
inline MetadataResult MeasureMetadata(const MetadataCase& of, bool refault_maps) {
  kv::FastTierOptions options;
  options.geometry.num_layers = of.layers;
  options.geometry.num_kv_heads = of.heads;
  options.geometry.head_dim = 64;
  options.refault_maps = refault_maps;
  options.metadata_bytes = uint64_t{2} << 30;
  const uint32_t frames =
      (of.resident_pages + kv::kRunFrames - 1) / kv::kRunFrames * kv::kRunFrames;
  const uint64_t num_groups = uint64_t{of.layers} * of.heads * of.requests;
  options.fast_bytes = (num_groups * frames + options.ring_frames) * options.geometry.page_bytes();
  const uint32_t num_pages = of.tokens / of.page_tokens;

  MetadataResult result;
  const auto tier = kv::FastTier::Create(options, *kernels::BestKernels()).value();
  kv::GroupPlan plan(of.resident_pages);
  std::mt19937_64 rng(1);
  const std::vector<uint32_t> pages = ResidentPages(of, num_pages, rng);
  std::vector<uint32_t> shifted(pages.size());
  for (uint32_t request = 0; request < of.requests; ++request) {
    const kv::CacheSetId set = tier->Open(BudgetGroupId(request), num_pages).value();
    SPINDLE_CHECK(tier->Resize(set, frames).ok());
    tier->BeginStep(set);
    for (uint32_t group = 0; group < of.layers * of.heads; ++group) {
      // Another phase for every group, so that they do not fill their leaves alike.
      const auto shift = static_cast<uint32_t>(rng() % num_pages);
      std::transform(pages.begin(), pages.end(), shifted.begin(), [&](uint32_t page) {
        return (page + shift) % num_pages;
      });
      std::sort(shifted.begin(), shifted.end());
      const kv::GroupRef ref{set,
                             LayerIdx(static_cast<uint16_t>(group / of.heads)),
                             KvHeadIdx(static_cast<uint16_t>(group % of.heads))};
      tier->Plan(0, 0, ref, shifted, kv::Caching::kLru, &plan);
      SPINDLE_CHECK(plan.num_streamed == 0);
      tier->Commit(ref, plan);
    }
  }
  result.bytes = tier->MetadataBytes();
  const double regions = (num_pages + kv::kRegionPages - 1) / kv::kRegionPages;
  const double per_group =
      (refault_maps ? 32.0 : 16.0) * regions + 4 * 1.25 * of.resident_pages + 5.0 * frames;
  result.formula = per_group * static_cast<double>(num_groups);
  result.flat_worst = static_cast<double>(kv::FlatPageTable::WorstBytes(num_groups, of.max_tokens));
  result.flat_tight = static_cast<double>(
      kv::FlatPageTable::TightBytes(num_groups, of.max_tokens / of.page_tokens));
  return result;
}

}  // namespace spindle::test
