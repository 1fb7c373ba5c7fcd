// Scores of partitions from index vectors of every table, one thread, vectors from memory.
//   Score/<table>/<type>/<shape>   all partitions of 32,768 tokens for one layer and KV head
// Vectors are Quest's: 4 per stripe, of the size of two keys. Counters come from the fastest
// iteration, since neighbours only ever make one slower: µs of it, GB/s of vectors, and their
// fraction `mem` of streaming reads.
#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/huge_buffer.h"
#include "bench/roofs.h"
#include "kernels/api/select.h"
#include "kernels/codes.h"
#include "kernels/registry.h"

namespace spindle::bench {
namespace {

using kernels::BlockBytes;
using kernels::IndexType;
using kernels::VectorBlock;

constexpr uint32_t kStripes = 32768 / 64;
constexpr uint32_t kPerStripe = 4;
// Of all layers and heads together, so that the next ones do not come from cache.
constexpr size_t kIndexBytes = size_t{512} << 20;

Roofs roofs;  // measured by main before the first row

struct Shape {
  const char* name;
  uint32_t group;
  uint32_t head_dim;
};

constexpr Shape kShapes[] = {{"g3d64", 3, 64}, {"g4d128", 4, 128}, {"g8d128", 8, 128}};

// Indexes in the layout of their store: [stripe][layer and head][block].
class Index {
 public:
  Index(IndexType type, const Shape& shape)
      : shape_(shape),
        block_{.type = type, .count = kPerStripe, .dim = 2 * shape.head_dim},
        num_heads_(static_cast<uint32_t>(kIndexBytes / (kStripes * BlockBytes(block_)))),
        buffer_(kStripes * num_heads_ * BlockBytes(block_)),
        q_(size_t{shape.group} * block_.dim),
        scores_(size_t{shape.group} * kStripes * kPerStripe) {
    // Small numbers in either type, the same ones everywhere.
    for (size_t at = 0; at < kStripes * num_heads_ * BlockBytes(block_); at += 2) {
      const uint16_t half = kernels::FloatToBf16(static_cast<float>(at % 251) / 251);
      buffer_.data()[at] = static_cast<uint8_t>(half);
      buffer_.data()[at + 1] = static_cast<uint8_t>(half >> 8);
    }
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (float& x : q_) {
      x = normal(rng);
    }
    for (uint32_t stripe = 0; stripe < kStripes; ++stripe) {
      blobs_.push_back(buffer_.data() + stripe * num_heads_ * BlockBytes(block_));
    }
  }

  void Score(const kernels::KernelTable& table) {
    head_ = (head_ + 1) % num_heads_;
    const int code = table.score_partitions({.blobs = blobs_.data(),
                                             .offset = head_ * BlockBytes(block_),
                                             .vectors = block_,
                                             .first_partition = 0,
                                             .num_partitions = kStripes * kPerStripe,
                                             .q = q_.data(),
                                             .num_queries = shape_.group,
                                             .scores = scores_.data()});
    benchmark::DoNotOptimize(code);
    benchmark::DoNotOptimize(scores_.data());
  }

  [[nodiscard]] double bytes() const { return static_cast<double>(kStripes * BlockBytes(block_)); }

 private:
  const Shape shape_;
  const VectorBlock block_;
  const uint32_t num_heads_;
  HugeBuffer buffer_;
  std::vector<const uint8_t*> blobs_;
  std::vector<float> q_;
  std::vector<float> scores_;
  uint32_t head_ = 0;
};

void Run(const kernels::KernelTable& table,
         IndexType type,
         const Shape& shape,
         benchmark::State& state) {
  Index index(type, shape);
  double best = 1e9;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    index.Score(table);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  const double gbps = index.bytes() / best * 1e-9;
  state.counters["us"] = best * 1e6;
  state.counters["GB/s"] = gbps;
  state.counters["mem"] = gbps / roofs.dram_gbps;
}

void RegisterScores(const kernels::KernelTable& table) {
  for (const Shape& shape : kShapes) {
    for (const auto& [type, name] :
         {std::pair{IndexType::kBf16, "bf16"}, std::pair{IndexType::kInt8, "int8"}}) {
      const std::string row = "Score/" + std::string(table.name) + "/" + name + "/" + shape.name;
      benchmark::RegisterBenchmark(row.c_str(),
                                   [&table, type = type, &shape](benchmark::State& state) {
                                     Run(table, type, shape, state);
                                   });
    }
  }
}

}  // namespace
}  // namespace spindle::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  using spindle::kernels::Isa;
  spindle::bench::roofs = spindle::bench::MeasureRoofs(1);
  spindle::bench::PrintRoofs(spindle::bench::roofs);
  for (const Isa isa : {Isa::kAmx, Isa::kAvx512, Isa::kAvx2, Isa::kBaseline}) {
    if (const auto* const table = spindle::kernels::FindKernels(isa); table != nullptr) {
      spindle::bench::RegisterScores(*table);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
