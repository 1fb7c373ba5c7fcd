// Attention of every table as a fraction of this machine's roofs, on two threads, KV from memory.
//   Decode/<table>/<shape>/<batch>/<context>      one layer of a decode step
//   Prefill/<table>/<shape>/<rows>/<context>      the last chunk of a prompt
//   Rope/<table>, Logits/<table>/<kernel>         one thread
// Counters come from the fastest iteration, since neighbours only ever make one slower: GB/s of KV
// and its fraction `mem` of streaming reads; GFLOP/s (two per multiply-add, visible keys only) and
// its fractions `bf16` of VDPBF16PS and `tile` of TDPBF16PS.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/huge_buffer.h"
#include "bench/roofs.h"
#include "kernels/registry.h"
#include "platform/compute_pool.h"

namespace spindle::bench {
namespace {

using kernels::AttentionArgs;
using kernels::AttentionItem;
using kernels::AttentionPlan;
using kernels::AttentionUnit;
using kernels::Exec;
using kernels::FindKernelsByName;
using kernels::KernelTable;
using kernels::KvRun;
using kernels::WorkRange;

constexpr uint32_t kThreads = 2;
constexpr uint32_t kTile = kernels::kTileTokens;
// KV of all layers together, so that the next layer does not come from cache.
constexpr size_t kKvBytes = size_t{1} << 30;
constexpr uint32_t kMaxLayers = 256;

Roofs roofs;                                  // measured by main before the first row
std::unique_ptr<platform::ComputePool> pool;  // made by main

struct Shape {
  const char* name;
  uint32_t num_q_heads;
  uint32_t num_kv_heads;
  uint32_t head_dim;
};

constexpr Shape kShapes[] = {
    {"q9kv3d64", 9, 3, 64}, {"q32kv8d128", 32, 8, 128}, {"q64kv8d128", 64, 8, 128}};

// Sequences of equal length in the layout of the KV store: stripes of 64 tokens in random order,
// each holding all layers, heads and pages.
class Batch {
 public:
  Batch(const Shape& shape, uint32_t batch, uint32_t context, uint32_t num_rows)
      : shape_(shape), batch_(batch), context_(context), num_rows_(num_rows) {
    page_tokens_ = shape.head_dim <= 64 ? 16 : 8;
    const size_t page_bytes = size_t{4} * page_tokens_ * shape.head_dim;
    extent_bytes_ = kTile / page_tokens_ * page_bytes * shape.num_kv_heads;
    const uint32_t stripes = batch * ((context + kTile - 1) / kTile);
    num_layers_ = static_cast<uint32_t>(
        std::clamp<size_t>(kKvBytes / (stripes * extent_bytes_), 1, kMaxLayers));
    kv_ = std::make_unique<HugeBuffer>(stripes * extent_bytes_ * num_layers_);
    FillKv(stripes);
    MakeItems(stripes, page_bytes);
  }

  // One layer: plan, units, merge.
  void Run(const KernelTable& table) {
    for (size_t i = 0; i < items_.size(); ++i) {
      items_[i].kv_offset = i % shape_.num_kv_heads * HeadBytes() + layer_ * extent_bytes_;
    }
    layer_ = (layer_ + 1) % num_layers_;
    if (table.plan_attention(args_, kThreads, &plan_) == kernels::kScratchTooSmall) {
      units_.resize(plan_.num_units);
      partials_.resize(size_t{plan_.num_partials} * args_.group * (args_.head_dim + 2));
      plan_ = {units_.data(), plan_.num_units, 0, partials_.data(), plan_.num_partials, 0};
      (void)table.plan_attention(args_, kThreads, &plan_);
    }
    pool->Run(
            plan_.num_units,
            1,
            [&](WorkRange range, Exec* exec) { return table.attention(args_, plan_, range, exec); })
        .IgnoreError();
    if (plan_.num_partials > 0) {
      pool->Run(args_.num_items,
                4,
                [&](WorkRange range, Exec* exec) {
                  return table.merge_attention(args_, plan_, range, exec);
                })
          .IgnoreError();
    }
  }

  [[nodiscard]] double kv_bytes() const {
    return static_cast<double>(batch_) * context_ * shape_.num_kv_heads * shape_.head_dim * 4;
  }

  [[nodiscard]] double flops() const {
    const double visible = static_cast<double>(context_) * num_rows_ -
                           static_cast<double>(num_rows_) * (num_rows_ - 1) / 2;
    return 4.0 * batch_ * visible * shape_.num_q_heads * shape_.head_dim;
  }

 private:
  [[nodiscard]] size_t HeadBytes() const { return extent_bytes_ / shape_.num_kv_heads; }

  void FillKv(uint32_t stripes) {
    // One random MiB over and over: bf16 of moderate size.
    std::mt19937 rng(1);
    std::vector<uint16_t> block(size_t{1} << 19);
    for (uint16_t& value : block) {
      value = static_cast<uint16_t>((rng() & 0x80FFU) | 0x3F00U);
    }
    const size_t bytes = stripes * extent_bytes_ * num_layers_;
    for (size_t at = 0; at < bytes; at += block.size() * 2) {
      std::memcpy(kv_->data() + at, block.data(), std::min(bytes - at, block.size() * 2));
    }
  }

  void MakeItems(uint32_t stripes, size_t page_bytes) {
    std::mt19937 rng(2);
    std::vector<uint32_t> order(stripes);
    for (uint32_t i = 0; i < stripes; ++i) {
      order[i] = i;
    }
    std::shuffle(order.begin(), order.end(), rng);
    runs_.resize(batch_);
    const uint32_t group = shape_.num_q_heads / shape_.num_kv_heads;
    const size_t width = size_t{shape_.num_q_heads} * shape_.head_dim;
    q_.resize(batch_ * num_rows_ * width);
    out_.resize(q_.size());
    std::normal_distribution<float> normal;
    for (float& x : q_) {
      x = normal(rng);
    }
    uint32_t next = 0;
    for (uint32_t b = 0; b < batch_; ++b) {
      for (uint32_t tile = 0; tile * kTile < context_; ++tile) {
        const uint8_t* const stripe = kv_->data() + order[next++] * extent_bytes_ * num_layers_;
        for (uint32_t lane = 0; lane < kTile; lane += page_tokens_) {
          const uint8_t* const page = stripe + lane / page_tokens_ * page_bytes;
          const bool last = lane + page_tokens_ == kTile;
          runs_[b].push_back({page,
                              page + page_bytes / 2,
                              ~uint64_t{0},
                              shape_.head_dim,
                              tile,
                              static_cast<uint16_t>(page_tokens_),
                              static_cast<uint8_t>(lane),
                              static_cast<uint8_t>(last)});
        }
      }
      for (uint32_t h = 0; h < shape_.num_kv_heads; ++h) {
        const size_t at = b * num_rows_ * width + size_t{h} * group * shape_.head_dim;
        items_.push_back({q_.data() + at,
                          out_.data() + at,
                          nullptr,
                          runs_[b].data(),
                          static_cast<uint32_t>(runs_[b].size()),
                          num_rows_,
                          context_ - num_rows_,
                          0,
                          0});
      }
    }
    args_ = {items_.data(),
             static_cast<uint32_t>(items_.size()),
             width,
             width,
             shape_.head_dim,
             group,
             1.0F / std::sqrt(static_cast<float>(shape_.head_dim)),
             0.0F,
             DType::kBF16};
  }

  Shape shape_;
  uint32_t batch_;
  uint32_t context_;
  uint32_t num_rows_;
  uint32_t page_tokens_ = 0;
  uint32_t num_layers_ = 0;
  uint32_t layer_ = 0;
  size_t extent_bytes_ = 0;
  std::unique_ptr<HugeBuffer> kv_;
  std::vector<std::vector<KvRun>> runs_;
  std::vector<AttentionItem> items_;
  std::vector<float> q_;
  std::vector<float> out_;
  std::vector<AttentionUnit> units_;
  std::vector<float> partials_;
  AttentionArgs args_{};
  AttentionPlan plan_{};
};

// Runs `body` as the benchmark's iterations; returns the fastest in seconds.
double Fastest(benchmark::State& state, const std::function<void()>& body) {
  double best = 1e9;
  body();
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    best = std::min(best, taken.count());
  }
  return best;
}

void RunBatch(benchmark::State& state,
              const KernelTable& table,
              const Shape& shape,
              uint32_t batch,
              uint32_t context,
              uint32_t num_rows) {
  Batch work(shape, batch, context, num_rows);
  const double best = Fastest(state, [&] { work.Run(table); });
  const double gbps = work.kv_bytes() / best * 1e-9;
  const double gflops = work.flops() / best * 1e-9;
  state.counters["us"] = best * 1e6;
  if (num_rows == 1) {
    state.counters["GB/s"] = gbps;
    state.counters["mem"] = gbps / roofs.dram_gbps;
  }
  state.counters["GFLOP/s"] = gflops;
  if (roofs.bf16_gops > 0) {
    state.counters["bf16"] = gflops / roofs.bf16_gops;
  }
  if (roofs.bf16_amx_gops > 0) {
    state.counters["tile"] = gflops / roofs.bf16_amx_gops;
  }
}

// SmolLM2's QKV row, adjacent pairs as in its GGUF file.
void RunRope(benchmark::State& state, const KernelTable& table) {
  constexpr uint32_t kRows = 256;
  const std::vector<float> qkv(kRows * 15 * 64, 0.5F);
  const std::vector<float> angles(kRows * 32, 0.5F);
  std::vector<float> q_out(kRows * 9 * 64);
  std::vector<uint8_t> kv(kRows * 6 * 128);
  std::vector<int32_t> positions(kRows);
  std::vector<kernels::KvSlot> slots(kRows);
  for (uint32_t row = 0; row < kRows; ++row) {
    positions[row] = static_cast<int32_t>(row);
    slots[row] = {&kv[row * 768], &kv[row * 768 + 384]};
  }
  const kernels::RopeAppendArgs args{.q = qkv.data(),
                                     .k = qkv.data() + 9 * 64,
                                     .v = qkv.data() + 12 * 64,
                                     .q_stride = 15 * 64,
                                     .k_stride = 15 * 64,
                                     .v_stride = 15 * 64,
                                     .q_norm = nullptr,
                                     .k_norm = nullptr,
                                     .norm_eps = 0,
                                     .rope_cos = angles.data(),
                                     .rope_sin = angles.data(),
                                     .positions = positions.data(),
                                     .slots = slots.data(),
                                     .head_stride_bytes = 128,
                                     .q_out = q_out.data(),
                                     .q_out_stride = 9 * 64,
                                     .num_rows = kRows,
                                     .num_q_heads = 9,
                                     .num_kv_heads = 3,
                                     .head_dim = 64,
                                     .rope_dim = 64,
                                     .pairing = kernels::RopePairing::kAdjacent,
                                     .kv_type = DType::kBF16};
  const double best = Fastest(state, [&] { (void)table.rope_append(args, {0, kRows}, nullptr); });
  state.counters["ns/row"] = best * 1e9 / kRows;
}

void RunLogits(benchmark::State& state, const KernelTable& table, const std::string& kernel) {
  constexpr uint32_t kVocabulary = 49152;
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<float> logits(kVocabulary);
  for (float& x : logits) {
    x = normal(rng);
  }
  std::vector<kernels::ScoredToken> out(kVocabulary);
  std::vector<kernels::ScoredToken> scratch(kVocabulary);
  const double best = Fastest(state, [&] {
    if (kernel == "summarize") {
      benchmark::DoNotOptimize(table.summarize(logits.data(), kVocabulary));
    } else if (kernel == "top40") {
      benchmark::DoNotOptimize(
          table.top_k(logits.data(), kVocabulary, 40, out.data(), scratch.data()));
    } else {
      benchmark::DoNotOptimize(
          table.collect_at_least(logits.data(), kVocabulary, 9.0F, out.data()));
    }
  });
  state.counters["us"] = best * 1e6;
  state.counters["GB/s"] = kVocabulary * 4.0 / best * 1e-9;
}

void Register(const std::string& name, const std::function<void(benchmark::State&)>& body) {
  benchmark::RegisterBenchmark(name.c_str(), body)->UseRealTime();
}

void RegisterTable(const KernelTable& table) {
  const std::string name(table.name);
  for (const Shape& shape : kShapes) {
    const std::string tail = "/" + name + "/" + shape.name + "/";
    for (const uint32_t batch : {1U, 4U, 16U}) {
      for (const uint32_t context : {1024U, 2048U, 4096U, 8192U}) {
        Register("Decode" + tail + std::to_string(batch) + "/" + std::to_string(context),
                 [=, &table, &shape](benchmark::State& state) {
                   RunBatch(state, table, shape, batch, context, 1);
                 });
      }
    }
    for (const uint32_t rows : {256U, 512U}) {
      for (const uint32_t context : {2048U, 4096U, 8192U}) {
        Register("Prefill" + tail + std::to_string(rows) + "/" + std::to_string(context),
                 [=, &table, &shape](benchmark::State& state) {
                   RunBatch(state, table, shape, 1, context, rows);
                 });
      }
    }
  }
  Register("Rope/" + name, [&table](benchmark::State& state) { RunRope(state, table); });
  for (const char* const kernel : {"summarize", "top40", "collect"}) {
    Register("Logits/" + name + "/" + kernel,
             [&table, kernel](benchmark::State& state) { RunLogits(state, table, kernel); });
  }
}

}  // namespace
}  // namespace spindle::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  spindle::bench::roofs = spindle::bench::MeasureRoofs(spindle::bench::kThreads);
  spindle::bench::PrintRoofs(spindle::bench::roofs);
  auto created = spindle::platform::ComputePool::Create({spindle::bench::kThreads, true});
  if (!created.ok()) {
    return 1;
  }
  spindle::bench::pool = *std::move(created);
  for (const char* const name : {"avx2", "avx512", "amx"}) {
    if (const spindle::kernels::KernelTable* table = spindle::kernels::FindKernelsByName(name)) {
      spindle::bench::RegisterTable(*table);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
