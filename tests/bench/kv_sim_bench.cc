// The simulator: accesses per second of every policy and of the one-pass curve; and what the
// recency of bucketed LRU costs beside that of exact LRU, without look-ups.
//   kv_sim_bench [--benchmark_filter=…]
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/registry.h"
#include "kv/fast/bucketed_lru.h"
#include "kv/sim/id_list.h"
#include "kv/sim/page_policy.h"
#include "kv/sim/selection_trace.h"
#include "kv/sim/stack_distance.h"

namespace spindle::bench {
namespace {

using kv::sim::SelectionTrace;

// As the tables: 32 of 2,048 pages; ten times as long, so that setting up does not count.
const SelectionTrace& MediumTrace() {
  static const auto* const trace = new SelectionTrace(kv::sim::MakeSyntheticTrace(
      {.profile = kv::sim::kMediumProfile}, 10 * kv::sim::kTableSteps, 0));
  return *trace;
}

constexpr uint32_t kCapacity = 192;  // ratio 5

void SimulatePolicy(benchmark::State& state, const std::string& name) {
  const auto spec = kv::sim::ParsePolicy(name).value();
  double ratio = 0;
  for (auto _ : state) {
    ratio = kv::sim::Simulate(spec, kCapacity, MediumTrace())->ratio();
  }
  state.counters["hit_ratio"] = ratio;
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(MediumTrace().num_accesses()));
}

void OnePassCurve(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(kv::sim::ComputeMissRatioCurve(MediumTrace()).At(kCapacity).hits);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(MediumTrace().num_accesses()));
}

BENCHMARK(OnePassCurve)->Unit(benchmark::kMillisecond);

void Generate(benchmark::State& state) {
  kv::sim::SelectionGenerator generator({.profile = kv::sim::kMediumProfile});
  std::vector<uint32_t> pages;
  for (auto _ : state) {
    generator.Next(&pages);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(pages.size()));
}

BENCHMARK(Generate)->Unit(benchmark::kMicrosecond);

// What one step does to the slots of a group: those that were hit, in page order, and how many
// victims it needs.
struct SlotStep {
  std::vector<uint16_t> hits;
  uint32_t num_misses = 0;
};

// The steps of a policy with a full cache, as operations on slots.
template <typename Recency>
std::vector<SlotStep> RecordSlots(const SelectionTrace& trace, uint32_t num_slots) {
  constexpr uint16_t kNone = 0xFFFF;
  std::vector<uint16_t> slot_of(trace.num_pages(), kNone);
  std::vector<uint32_t> page_of(num_slots, ~uint32_t{0});
  Recency recency(num_slots);
  std::vector<SlotStep> steps;
  std::vector<uint16_t> taken(num_slots);
  bool is_full = false;
  for (uint32_t i = 0; i < trace.num_steps(); ++i) {
    SlotStep step;
    std::vector<uint32_t> missing;
    for (const uint32_t page : trace.step(i)) {
      if (slot_of[page] != kNone) {
        step.hits.push_back(slot_of[page]);
      } else {
        missing.push_back(page);
      }
    }
    step.num_misses = static_cast<uint32_t>(missing.size());
    recency.Step(step, taken.data());
    for (size_t k = 0; k < missing.size(); ++k) {
      uint32_t& page = page_of[taken[k]];
      if (page != ~uint32_t{0}) {
        slot_of[page] = kNone;
        is_full = true;
      }
      page = missing[k];
      slot_of[page] = taken[k];
    }
    if (is_full) {
      steps.push_back(std::move(step));
    }
  }
  return steps;
}

// Exact LRU: a list of slots through two arrays, as a C++ programmer would write it for speed.
class ExactRecency {
 public:
  explicit ExactRecency(uint32_t num_slots)
      : older_(num_slots + 1), newer_(num_slots + 1), pinned_(num_slots + 1), end_(num_slots) {
    for (uint32_t slot = 0; slot <= num_slots; ++slot) {  // a ring through `end_`
      older_[slot] = static_cast<uint16_t>(slot == 0 ? num_slots : slot - 1);
      newer_[slot] = static_cast<uint16_t>(slot == num_slots ? 0 : slot + 1);
    }
  }

  void Step(const SlotStep& step, uint16_t* taken) {
    ++step_;
    for (const uint16_t slot : step.hits) {
      pinned_[slot] = step_;
    }
    uint32_t next = newer_[end_];
    for (uint32_t i = 0; i < step.num_misses; ++i) {
      while (pinned_[next] == step_) {
        next = newer_[next];
      }
      taken[i] = static_cast<uint16_t>(next);
      next = newer_[next];
    }
    for (const uint16_t slot : step.hits) {
      MoveToFront(slot);
    }
    for (uint32_t i = 0; i < step.num_misses; ++i) {
      MoveToFront(taken[i]);
    }
  }

 private:
  void MoveToFront(uint16_t slot) {
    newer_[older_[slot]] = newer_[slot];
    older_[newer_[slot]] = older_[slot];
    const uint16_t newest = older_[end_];
    older_[slot] = newest;
    newer_[slot] = static_cast<uint16_t>(end_);
    newer_[newest] = slot;
    older_[end_] = slot;
  }

  std::vector<uint16_t> older_;
  std::vector<uint16_t> newer_;
  std::vector<uint32_t> pinned_;
  uint32_t end_;
  uint32_t step_ = 0;
};

// The fast tier's recency: stamps, victims by threshold.
template <uint32_t kRange>
class BucketedRecency {
 public:
  explicit BucketedRecency(uint32_t num_slots)
      : lru_({.range = kRange}, *kernels::BestKernels()), stamps_(num_slots), slots_(num_slots) {}

  void Step(const SlotStep& step, uint16_t* taken) {
    lru_.Advance(&state_, stamps_);
    // Stores of bytes may change anything the compiler cannot see: what they need is taken out.
    uint8_t* const stamps = stamps_.data();
    const uint8_t now = state_.now;
    const std::span<const uint16_t> hits(step.hits);
    for (const uint16_t slot : hits) {
      stamps[slot] = kernels::kLruPinned;
    }
    if (step.num_misses > 0) {
      static_cast<void>(lru_.Take(&state_, stamps_, step.num_misses, slots_));
      const std::span<const uint32_t> victims = std::span(slots_).first(step.num_misses);
      for (size_t i = 0; i < victims.size(); ++i) {
        taken[i] = static_cast<uint16_t>(victims[i]);
        stamps[victims[i]] = now;
      }
    }
    for (const uint16_t slot : hits) {
      stamps[slot] = now;
    }
  }

 private:
  kv::BucketedLru lru_;
  kv::LruState state_;
  std::vector<uint8_t> stamps_;
  std::vector<uint32_t> slots_;
};

// All groups of a model, one after the other, step after step. Arguments: groups, slots per group,
// selected pages, pages.
template <typename Recency>
void Bookkeeping(benchmark::State& state) {
  const auto num_groups = static_cast<size_t>(state.range(0));
  const auto num_slots = static_cast<uint32_t>(state.range(1));
  const SelectionTrace trace =
      kv::sim::MakeSyntheticTrace({.profile = kv::sim::kMediumProfile,
                                   .num_pages = static_cast<uint32_t>(state.range(3)),
                                   .selected_pages = static_cast<uint32_t>(state.range(2))},
                                  kv::sim::kTableSteps,
                                  0);
  const std::vector<SlotStep> steps = RecordSlots<Recency>(trace, num_slots);
  std::vector<Recency> groups(num_groups, Recency(num_slots));
  std::vector<uint16_t> taken(num_slots);
  size_t step = 0;
  int64_t accesses = 0;
  for (auto _ : state) {
    for (size_t group = 0; group < num_groups; ++group) {
      const SlotStep& of_group = steps[(step + 7 * group) % steps.size()];
      groups[group].Step(of_group, taken.data());
      accesses += static_cast<int64_t>(of_group.hits.size() + of_group.num_misses);
    }
    ++step;
  }
  benchmark::DoNotOptimize(taken.data());
  state.SetItemsProcessed(accesses);
}

// SmolLM2-135M at 8K and 32K, a 70B model at 128K.
void BookkeepingPoints(benchmark::internal::Benchmark* bench) {
  bench->Args({90, 192, 32, 512})
      ->Args({90, 192, 32, 2048})
      ->Args({640, 1536, 256, 16384})
      ->Unit(benchmark::kMicrosecond);
}

// Named as the policies of the simulator.
BENCHMARK_TEMPLATE(Bookkeeping, ExactRecency)->Name("Bookkeeping/lru")->Apply(BookkeepingPoints);
BENCHMARK_TEMPLATE(Bookkeeping, BucketedRecency<64>)
    ->Name("Bookkeeping/bucketed")
    ->Apply(BookkeepingPoints);
BENCHMARK_TEMPLATE(Bookkeeping, BucketedRecency<16>)
    ->Name("Bookkeeping/bucketed:16")
    ->Apply(BookkeepingPoints);
BENCHMARK_TEMPLATE(Bookkeeping, BucketedRecency<8>)
    ->Name("Bookkeeping/bucketed:8")
    ->Apply(BookkeepingPoints);
BENCHMARK_TEMPLATE(Bookkeeping, BucketedRecency<4>)
    ->Name("Bookkeeping/bucketed:4")
    ->Apply(BookkeepingPoints);

void RegisterPolicies() {
  for (const char* name : {"lru",
                           "bucketed",
                           "bucketed:16",
                           "bucketed:8",
                           "bucketed:4",
                           "fifo",
                           "random",
                           "clock",
                           "slru",
                           "arc",
                           "belady"}) {
    benchmark::RegisterBenchmark(("Simulate/" + std::string(name)).c_str(), SimulatePolicy, name)
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace spindle::bench

int main(int argc, char** argv) {
  spindle::bench::RegisterPolicies();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
