// Fills a fast tier to its budget with a model's shapes and compares the bytes of its metadata with
// the formula and with flat tables. Thread-safety: single-threaded tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kv/fast/fast_tier.h"
#include "kv/fast/flat_page_table.h"

namespace spindle::kv {

struct MetadataCase {
  const char* name;
  uint32_t layers;
  uint32_t heads;
  uint32_t head_dim;
  uint32_t requests;
  uint32_t max_tokens;      // what flat tables are sized for
  uint32_t tokens;          // what the requests have
  uint32_t resident_pages;  // per group
  bool clustered;           // runs of 16 pages instead of scattered ones
};

struct MetadataResult {
  FastMetadataBytes bytes;
  double formula = 0;  // 16 B per 64 pages, 4 B · 1.25 per resident page, 5 B per frame
  double flat_worst = 0;
  double flat_tight = 0;
};

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

// Frames are address space only here: no content is written.
inline MetadataResult MeasureMetadata(const MetadataCase& of, bool refault_maps) {
  FastTierOptions options;
  options.geometry.num_layers = of.layers;
  options.geometry.num_kv_heads = of.heads;
  options.geometry.head_dim = of.head_dim;
  options.refault_maps = refault_maps;
  options.metadata_bytes = uint64_t{2} << 30;
  const uint32_t frames = (of.resident_pages + kRunFrames - 1) / kRunFrames * kRunFrames;
  const uint64_t num_groups = uint64_t{of.layers} * of.heads * of.requests;
  options.fast_bytes = (num_groups * frames + options.ring_frames) * options.geometry.page_bytes();
  const uint32_t page_tokens = options.geometry.page_tokens();
  const uint32_t num_pages = of.tokens / page_tokens;

  MetadataResult result;
  auto tier = FastTier::Create(options, *kernels::BestKernels());
  EXPECT_TRUE(tier.ok()) << tier.status();
  GroupPlan plan(of.resident_pages);
  std::mt19937_64 rng(1);
  const std::vector<uint32_t> pages = ResidentPages(of, num_pages, rng);
  std::vector<uint32_t> shifted(pages.size());
  for (uint32_t request = 0; request < of.requests; ++request) {
    const auto set = (*tier)->Open(BudgetGroupId(request), num_pages);
    EXPECT_TRUE(set.ok() && (*tier)->Resize(*set, frames).ok());
    (*tier)->BeginStep(*set);
    for (uint32_t group = 0; group < of.layers * of.heads; ++group) {
      // Another phase for every group, so that they do not fill their leaves alike.
      const auto shift = static_cast<uint32_t>(rng() % num_pages);
      std::transform(pages.begin(), pages.end(), shifted.begin(), [&](uint32_t page) {
        return (page + shift) % num_pages;
      });
      std::sort(shifted.begin(), shifted.end());
      const GroupRef ref{*set,
                         LayerIdx(static_cast<uint16_t>(group / of.heads)),
                         KvHeadIdx(static_cast<uint16_t>(group % of.heads))};
      (*tier)->Plan(0, 0, ref, shifted, Caching::kLru, &plan);
      EXPECT_EQ(plan.num_streamed, 0U);
      (*tier)->Commit(ref, plan);
    }
  }
  result.bytes = (*tier)->MetadataBytes();
  const double regions = (num_pages + kRegionPages - 1) / kRegionPages;
  const double per_group =
      (refault_maps ? 32.0 : 16.0) * regions + 4 * 1.25 * of.resident_pages + 5.0 * frames;
  result.formula = per_group * static_cast<double>(num_groups);
  result.flat_worst = static_cast<double>(FlatPageTable::WorstBytes(num_groups, of.max_tokens));
  result.flat_tight =
      static_cast<double>(FlatPageTable::TightBytes(num_groups, of.max_tokens / page_tokens));
  const auto total = static_cast<double>(result.bytes.total());
  constexpr double kMiB = 1 << 20;
  std::cout << std::fixed << std::setprecision(2) << of.name << (refault_maps ? ", maps: " : ": ")
            << total / kMiB << " MiB (directory "
            << static_cast<double>(result.bytes.directory) / kMiB << ", leaves "
            << static_cast<double>(result.bytes.leaves) / kMiB << ", frames "
            << static_cast<double>(result.bytes.frames) / kMiB << ", run tables "
            << static_cast<double>(result.bytes.run_tables) / kMiB << ", groups "
            << static_cast<double>(result.bytes.groups) / kMiB << ", slack "
            << static_cast<double>(result.bytes.slack) / kMiB << "), " << total / result.formula
            << " of the formula, flat worst / ours " << result.flat_worst / total
            << ", flat tight / ours " << result.flat_tight / total << '\n';
  return result;
}

}  // namespace spindle::kv
