// SeerAttention-R per layer and KV head, of the shape of SmolLM2-135M (groups of 3 heads of 64),
// one thread, weights and keys of all layers in rotation.
//   Gate/<table>/index            one block of 64 keys
//   Gate/<table>/select/<tokens>  one row with so much context, 1,024 selected tokens
// The time is that of one layer and KV head.
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/registry.h"
#include "sparse/seer_r/seer_algorithm.h"
#include "unit/sparse/seer_support.h"

namespace spindle::bench {
namespace {

constexpr uint32_t kLayers = 30;
constexpr uint32_t kHeads = 3;
constexpr uint32_t kGroup = 3;
constexpr uint32_t kDim = 64;
constexpr uint32_t kMaxTokens = 8192;

class Gates {
 public:
  Gates()
      : rng_(1),
        algorithm_(sparse::RandomGates({.num_layers = kLayers,
                                        .num_kv_heads = kHeads,
                                        .group = kGroup,
                                        .head_dim = kDim,
                                        .width = kDim},
                                       rng_),
                   kMaxTokens),
        rope_(sparse::MakeRope(kMaxTokens, kDim)),
        keys_(size_t{kLayers} * kHeads * 64 * kDim),
        index_(kMaxTokens / 64, std::vector<uint64_t>(kDim * 2 / 8)),
        q_(kGroup * kDim) {
    spec_.rope = &rope_;
    spec_.pairing = kernels::RopePairing::kAdjacent;
    std::normal_distribution<float> normal;
    for (uint16_t& element : keys_) {
      element = kernels::FloatToBf16(normal(rng_));
    }
    for (float& element : q_) {
      element = normal(rng_);
    }
  }

  void BuildIndex(uint32_t turn, const kernels::KernelTable& table) {
    const uint32_t block = turn % static_cast<uint32_t>(index_.size());
    const uint32_t place = turn % (kLayers * kHeads);
    const auto* const keys = reinterpret_cast<const uint8_t*>(&keys_[size_t{place} * 64 * kDim]);
    const int code =
        algorithm_.BuildIndex({.keys = {keys, 64, 0, kDim, DType::kBF16},
                               .lane_begin = 0,
                               .lane_end = 64,
                               .index = Blob(block),
                               .first_position = block * 64,
                               .layer = LayerIdx(static_cast<uint16_t>(place / kHeads)),
                               .head = KvHeadIdx(static_cast<uint16_t>(place % kHeads)),
                               .spec = &spec_},
                              table);
    benchmark::DoNotOptimize(code);
  }

  void Select(uint32_t turn, uint32_t num_tokens, sparse::SelectWorkspace& workspace) {
    const uint32_t place = turn % (kLayers * kHeads);
    std::vector<const uint8_t*> blobs;
    for (uint32_t block = 0; block < index_.size(); ++block) {
      blobs.push_back(Blob(block));
    }
    const sparse::SparseSettings settings{.min_context = 0};
    selection_.Clear();
    algorithm_.Select({.position = num_tokens - 1,
                       .layer = LayerIdx(static_cast<uint16_t>(place / kHeads)),
                       .head = KvHeadIdx(static_cast<uint16_t>(place % kHeads)),
                       .settings = &settings,
                       .budget_tokens = 1024,
                       .q = q_.data(),
                       .group = kGroup,
                       .head_dim = kDim,
                       .index = {.stripes = blobs},
                       .spec = &spec_},
                      workspace,
                      &selection_);
  }

 private:
  uint8_t* Blob(uint32_t block) { return reinterpret_cast<uint8_t*>(index_[block].data()); }

  std::mt19937 rng_;
  sparse::SeerAlgorithm algorithm_;
  tensor::RopeTable rope_;
  tensor::AttentionSpec spec_;
  std::vector<uint16_t> keys_;
  std::vector<std::vector<uint64_t>> index_;
  std::vector<float> q_;
  sparse::Selection selection_;
};

void RegisterGates(const kernels::KernelTable& table) {
  static Gates gates;
  const std::string prefix = "Gate/" + std::string(table.name) + "/";
  benchmark::RegisterBenchmark((prefix + "index").c_str(), [&table](benchmark::State& state) {
    uint32_t turn = 0;
    for (auto _ : state) {
      gates.BuildIndex(turn++, table);
    }
  });
  for (const uint32_t tokens : {2048U, 4096U, 8192U}) {
    benchmark::RegisterBenchmark((prefix + "select/" + std::to_string(tokens)).c_str(),
                                 [&table, tokens](benchmark::State& state) {
                                   sparse::SelectWorkspace workspace(table);
                                   uint32_t turn = 0;
                                   for (auto _ : state) {
                                     gates.Select(turn++, tokens, workspace);
                                   }
                                 });
  }
}

}  // namespace
}  // namespace spindle::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  using spindle::kernels::Isa;
  for (const Isa isa : {Isa::kAmx, Isa::kAvx512, Isa::kAvx2, Isa::kBaseline}) {
    if (const auto* const table = spindle::kernels::FindKernels(isa); table != nullptr) {
      spindle::bench::RegisterGates(*table);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
