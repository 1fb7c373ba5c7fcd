// Bookkeeping of the fast tier: look-ups beside a flat table, victim selection of every kernel
// table, whole steps of all groups of a model, and the gather of pages beside plain copies of the
// same size.
//   kv_bench [--benchmark_filter=…]
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/huge_buffer.h"
#include "kernels/registry.h"
#include "kv/fast/fast_tier.h"
#include "kv/fast/flat_page_table.h"
#include "kv/fast/metadata_slab.h"
#include "kv/fast/page_copy.h"
#include "kv/fast/page_directory.h"

namespace spindle::bench {
namespace {

using kv::FastTier;
using kv::FastTierOptions;
using kv::GroupPlan;
using kv::GroupRef;
using kv::kNoSlot;

// Pages of a selection: ascending, distinct.
std::vector<uint32_t> Selection(uint32_t count, uint32_t num_pages, std::mt19937& rng) {
  std::vector<uint32_t> pages(num_pages);
  for (uint32_t page = 0; page < num_pages; ++page) {
    pages[page] = page;
  }
  std::shuffle(pages.begin(), pages.end(), rng);
  pages.resize(count);
  std::sort(pages.begin(), pages.end());
  return pages;
}

// The two kinds of page table under one name each.
class TwoLevel {
 public:
  explicit TwoLevel(uint32_t num_pages)
      : slab_(kv::MetadataSlab::Create(uint64_t{64} << 20).value()), leaves_(*slab_) {
    static_cast<void>(directory_.Grow(*slab_, num_pages));
  }

  [[nodiscard]] uint32_t Lookup(uint32_t page) const { return directory_.Lookup(*slab_, page); }

  void Insert(uint32_t page, uint32_t slot) {
    static_cast<void>(directory_.Insert(leaves_, page, slot));
  }

  void Remove(uint32_t page) { directory_.Remove(leaves_, page); }

 private:
  std::unique_ptr<kv::MetadataSlab> slab_;
  kv::LeafCache leaves_;
  kv::PageDirectory directory_;
};

class Flat {
 public:
  explicit Flat(uint32_t num_pages) : table_(num_pages) {}

  [[nodiscard]] uint32_t Lookup(uint32_t page) const { return table_.Lookup(page); }

  void Insert(uint32_t page, uint32_t slot) { static_cast<void>(table_.Insert(page, slot)); }

  void Remove(uint32_t page) { table_.Remove(page); }

 private:
  kv::FlatPageTable table_;
};

// Selections of a decode step: of this many per cent of the pages the group has a frame.
constexpr uint32_t kResidentPercent = 95;

// `count` pages, most of them resident. REQUIRES: count ≤ resident.size().
std::vector<uint32_t> MostlyResident(const std::vector<uint32_t>& resident,
                                     uint32_t num_pages,
                                     uint32_t count,
                                     std::mt19937& rng) {
  std::vector<uint32_t> pages = resident;
  std::shuffle(pages.begin(), pages.end(), rng);
  pages.resize(count);
  for (uint32_t& page : pages) {
    page = rng() % 100 < kResidentPercent ? page : static_cast<uint32_t>(rng() % num_pages);
  }
  std::sort(pages.begin(), pages.end());
  return pages;
}

// Look-ups in selection order over many groups, as a decode step does them. Arguments: pages per
// group, resident pages per group, of which a sixth is selected (ratio 5), groups.
template <typename Table>
void Lookup(benchmark::State& state) {
  const auto num_pages = static_cast<uint32_t>(state.range(0));
  const auto num_resident = static_cast<uint32_t>(state.range(1));
  const auto num_groups = static_cast<size_t>(state.range(2));
  const uint32_t num_selected = std::max(1U, num_resident / 6);
  std::mt19937 rng(1);
  std::vector<std::unique_ptr<Table>> tables;
  std::vector<std::vector<uint32_t>> selections;
  for (size_t group = 0; group < num_groups; ++group) {
    tables.push_back(std::make_unique<Table>(num_pages));
    const std::vector<uint32_t> resident = Selection(num_resident, num_pages, rng);
    for (uint32_t i = 0; i < resident.size(); ++i) {
      tables.back()->Insert(resident[i], i);
    }
    selections.push_back(MostlyResident(resident, num_pages, num_selected, rng));
  }
  size_t group = 0;
  uint64_t hits = 0;
  for (auto _ : state) {
    for (const uint32_t page : selections[group]) {
      hits += tables[group]->Lookup(page) != kNoSlot ? 1U : 0U;
    }
    group = (group + 1) % num_groups;
  }
  benchmark::DoNotOptimize(hits);
  state.counters["lookup"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * num_selected,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// SmolLM2-135M at 8K and a 70B model at 128K, 32 and 256 pages selected; then 8K … 1M tokens in
// pages of 8, of which 2 % are resident.
void LookupPoints(benchmark::internal::Benchmark* bench) {
  bench->Args({512, 192, 90})->Args({16384, 1534, 640});
  for (int64_t pages = 1024; pages <= 131072; pages *= 2) {
    bench->Args({pages, pages / 50, 90});
  }
}

BENCHMARK_TEMPLATE(Lookup, TwoLevel)->Apply(LookupPoints);
BENCHMARK_TEMPLATE(Lookup, Flat)->Apply(LookupPoints);

template <typename Table>
void InsertRemove(benchmark::State& state) {
  constexpr uint32_t kPages = 16384;
  std::mt19937 rng(1);
  Table table(kPages);
  const std::vector<uint32_t> resident = Selection(1534, kPages, rng);
  for (uint32_t i = 0; i < resident.size(); ++i) {
    table.Insert(resident[i], i);
  }
  std::vector<uint32_t> others;
  for (uint32_t page = 0; page < kPages; ++page) {
    if (!std::binary_search(resident.begin(), resident.end(), page)) {
      others.push_back(page);
    }
  }
  std::shuffle(others.begin(), others.end(), rng);
  size_t i = 0;
  for (auto _ : state) {
    table.Insert(others[i], 7);
    table.Remove(others[i]);
    i = (i + 1) % others.size();
  }
}

BENCHMARK_TEMPLATE(InsertRemove, TwoLevel);
BENCHMARK_TEMPLATE(InsertRemove, Flat);

// Four victims of a group with this many slots.
void SelectVictims(benchmark::State& state, const kernels::KernelTable* table) {
  const auto num_slots = static_cast<uint32_t>(state.range(0));
  std::mt19937 rng(1);
  std::vector<uint8_t> stamps(num_slots);
  for (uint8_t& stamp : stamps) {
    stamp = rng() % 6 == 0 ? kernels::kLruPinned : static_cast<uint8_t>(1 + rng() % 64);
  }
  std::vector<uint32_t> out(4);
  uint32_t hand = 0;
  for (auto _ : state) {
    const kernels::VictimResult result = table->select_victims({.stamps = stamps.data(),
                                                                .num_slots = num_slots,
                                                                .max_stamp = 64,
                                                                .num_wanted = 4,
                                                                .hand = hand},
                                                               out.data());
    hand = result.hand;
    benchmark::DoNotOptimize(out.data());
  }
}

void RegisterVictims() {
  for (const char* name : {"reference", "baseline", "avx2", "avx512"}) {
    if (const kernels::KernelTable* table = kernels::FindKernelsByName(name)) {
      benchmark::RegisterBenchmark(
          ("SelectVictims/" + std::string(name)).c_str(), SelectVictims, table)
          ->Arg(64)
          ->Arg(192)
          ->Arg(768);
    }
  }
}

// Metadata and LRU work of a decode step: plan and commit of all groups of SmolLM2-135M. Arguments:
// tokens of context, mandatory pages, percent of them that are new each step.
void DecodeStep(benchmark::State& state) {
  const auto tokens = static_cast<uint32_t>(state.range(0));
  const auto mandatory = static_cast<uint32_t>(state.range(1));
  const auto new_percent = static_cast<uint32_t>(state.range(2));
  constexpr uint32_t kSelections = 512;
  FastTierOptions options;
  options.geometry.num_layers = 30;
  options.geometry.num_kv_heads = 3;
  options.geometry.head_dim = 64;
  options.metadata_bytes = uint64_t{64} << 20;
  const uint32_t num_pages = tokens / 16;
  const uint32_t frames = std::min(num_pages, mandatory * 6) / kv::kRunFrames * kv::kRunFrames;
  options.fast_bytes = (uint64_t{90} * frames + options.ring_frames) * 4096;
  auto tier = FastTier::Create(options, *kernels::BestKernels()).value();
  const kv::CacheSetId set = tier->Open(BudgetGroupId(1), num_pages).value();
  tier->Resize(set, frames).IgnoreError();
  std::mt19937 rng(1);
  // A selection that drifts: some pages are replaced by random others in every step.
  std::vector<std::vector<uint32_t>> selections = {Selection(mandatory, num_pages, rng)};
  while (selections.size() < kSelections) {
    std::vector<uint32_t> next = selections.back();
    for (uint32_t& page : next) {
      page = rng() % 100 < new_percent ? static_cast<uint32_t>(rng() % num_pages) : page;
    }
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    selections.push_back(std::move(next));
  }
  GroupPlan plan(mandatory);
  size_t step = 0;
  for (auto _ : state) {
    tier->BeginStep(set);
    for (uint16_t layer = 0; layer < 30; ++layer) {
      for (uint16_t head = 0; head < 3; ++head) {
        const GroupRef group{set, LayerIdx(layer), KvHeadIdx(head)};
        tier->Plan(0,
                   0,
                   group,
                   selections[(step + layer + 7U * head) % kSelections],
                   kv::Caching::kLru,
                   &plan);
        tier->Commit(group, plan);
      }
    }
    ++step;
  }
  const kv::CacheSetStats stats = tier->Stats(set);
  state.counters["hit_ratio"] =
      static_cast<double>(stats.hits) / static_cast<double>(stats.hits + stats.misses);
}

BENCHMARK(DecodeStep)
    ->Args({1024, 16, 10})
    ->Args({8192, 32, 10})
    ->Args({8192, 32, 30})
    ->Unit(benchmark::kMicrosecond);

// Pages of the size given from 1 GiB to frames of 64 MiB: scattered ones by the fast tier, and by
// plain memcpy, which is the roof for that size at random places; and plain memcpy with source and
// target in order, which the processor's prefetchers see coming.
enum class Copying : uint8_t { kTier, kScattered, kInOrder };

template <Copying kCopying>
void CopyPagesOf(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  constexpr size_t kHostBytes = size_t{1} << 30;
  constexpr size_t kFrameBytes = size_t{64} << 20;
  constexpr bool kIsScattered = kCopying != Copying::kInOrder;
  static const HugeBuffer host(kHostBytes);
  static const HugeBuffer frames(kFrameBytes);
  // Each thread has its part of both.
  const auto num_threads = static_cast<size_t>(state.threads());
  const auto thread = static_cast<size_t>(state.thread_index());
  const size_t num_pages = kHostBytes / bytes / num_threads;
  const size_t num_frames = kFrameBytes / bytes / num_threads;
  const uint8_t* const from = host.data() + thread * num_pages * bytes;
  uint8_t* const to = frames.data() + thread * num_frames * bytes;
  std::mt19937_64 rng(1 + thread);
  std::vector<kv::PageCopy> copies(num_pages);
  for (size_t i = 0; i < num_pages; ++i) {
    copies[i] = {from + (kIsScattered ? rng() % num_pages : i) * bytes,
                 to + (kIsScattered ? rng() % num_frames : i % num_frames) * bytes};
  }
  constexpr size_t kPerCall = 64;
  size_t begin = 0;
  for (auto _ : state) {
    const std::span<const kv::PageCopy> part = std::span(copies).subspan(begin, kPerCall);
    if constexpr (kCopying == Copying::kTier) {
      kv::CopyPages(part, bytes);
    } else {
      for (const kv::PageCopy& copy : part) {
        std::memcpy(copy.to, copy.from, bytes);
      }
    }
    benchmark::ClobberMemory();
    begin = (begin + kPerCall) % copies.size();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) *
                          static_cast<int64_t>(kPerCall * bytes));
}

void CopySizes(benchmark::internal::Benchmark* bench) {
  for (const int64_t kib : {2, 4, 16, 64, 256}) {
    bench->Arg(kib << 10);
  }
}

void CopySizesOnTwoThreads(benchmark::internal::Benchmark* bench) {
  CopySizes(bench);
  bench->Threads(2)->UseRealTime();
}

BENCHMARK_TEMPLATE(CopyPagesOf, Copying::kTier)->Name("GatherPages")->Apply(CopySizes);
BENCHMARK_TEMPLATE(CopyPagesOf, Copying::kTier)->Name("GatherPages")->Apply(CopySizesOnTwoThreads);
BENCHMARK_TEMPLATE(CopyPagesOf, Copying::kScattered)->Name("MemcpyScattered")->Apply(CopySizes);
BENCHMARK_TEMPLATE(CopyPagesOf, Copying::kScattered)
    ->Name("MemcpyScattered")
    ->Apply(CopySizesOnTwoThreads);
BENCHMARK_TEMPLATE(CopyPagesOf, Copying::kInOrder)->Name("MemcpyInOrder")->Apply(CopySizes);
BENCHMARK_TEMPLATE(CopyPagesOf, Copying::kInOrder)
    ->Name("MemcpyInOrder")
    ->Apply(CopySizesOnTwoThreads);

}  // namespace
}  // namespace spindle::bench

int main(int argc, char** argv) {
  spindle::bench::RegisterVictims();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
