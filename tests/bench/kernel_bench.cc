// Weight and row kernels of every table as a fraction of this machine's roofs, two threads.
//   Gemm/<table>/<type>/<outputs>x<inputs>/<rows>   weights come from memory, not from cache
//   Model/<table>/<rows>                            all products of SmolLM2-135M, Q4_1 with a Q8_0
//   head Rows/<table>/<kernel>/<elements>                operand preparation
// Counters: GOP/s, of which fractions int8 (vectors) and tile (bf16) of the register-only roofs;
// GB/s of weights (rows: of input) and fraction mem of streaming reads. Example: kernel_bench
// --benchmark_filter=Model/amx
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/huge_buffer.h"
#include "bench/roofs.h"
#include "kernels/registry.h"

namespace spindle::bench {
namespace {

using kernels::Exec;
using kernels::FindKernels;
using kernels::GemmArgs;
using kernels::GemmGroup;
using kernels::Isa;
using kernels::KernelTable;
using kernels::PackedMatrix;
using kernels::RowFormat;

constexpr int kThreads = 2;
// Copies of a matrix up to this size, so that a pass over them does not find the first in cache
// again.
constexpr size_t kColdBytes = size_t{1} << 30;
constexpr uint32_t kMaxRows = 512;

Roofs roofs;  // measured by main before the first row

struct MatrixSpec {
  DType type;
  uint32_t num_outputs;
  uint32_t num_inputs;
  uint32_t copies;
};

// Random rows in file layout with moderate fp16 fields; only sizes and types matter here.
std::vector<uint8_t> RandomSource(const MatrixSpec& spec, std::mt19937& rng) {
  std::vector<uint8_t> bytes(RowBytes(spec.type, spec.num_inputs) * spec.num_outputs);
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(rng() & 0x2FU);
  }
  return bytes;
}

// Products in a fixed order over memory-sized weights, with one set of rows per operand width.
class Workload {
 public:
  Workload(const KernelTable& table, const std::vector<MatrixSpec>& specs)
      : table_(table),
        weights_(TotalBytes(table, specs)),
        rows_(RowBytesTotal()),
        y_(kOutputBytes) {
    std::mt19937 rng(1);
    uint8_t* next = weights_.data();
    for (const MatrixSpec& spec : specs) {
      const std::vector<uint8_t> source = RandomSource(spec, rng);
      const uint64_t bytes = Bytes(table, spec);
      for (uint32_t copy = 0; copy < spec.copies; ++copy, next += bytes) {
        if (copy == 0) {
          table.pack(spec.type,
                     source.data(),
                     kernels::ComputeMode::kDefault,
                     spec.num_outputs,
                     spec.num_inputs,
                     next,
                     {0, kernels::NumPanels(spec.num_outputs)});
        } else {
          std::memcpy(next, next - bytes, bytes);
        }
        matrices_.push_back(
            {.data = next,
             .bytes = bytes,
             .num_outputs = spec.num_outputs,
             .num_inputs = spec.num_inputs,
             .source = spec.type,
             .mode = kernels::ComputeMode::kDefault,
             .row_format = table.row_format(spec.type, kernels::ComputeMode::kDefault)});
      }
    }
  }

  [[nodiscard]] size_t num_matrices() const { return matrices_.size(); }

  [[nodiscard]] const PackedMatrix& matrix(size_t i) const { return matrices_[i]; }

  // The share of one thread of product `i`.
  void Multiply(size_t i, uint32_t num_rows, uint32_t thread, Exec* exec) const {
    const PackedMatrix& matrix = matrices_[i];
    const GemmArgs args{.weights = &matrix,
                        .x = rows_.data(),
                        .x_stride_bytes = PreparedRowBytes(matrix.row_format, matrix.num_inputs),
                        .y = reinterpret_cast<float*>(y_.data()),
                        .y_stride = matrix.num_outputs,
                        .bias = nullptr,
                        .num_rows = num_rows,
                        .accumulate = false};
    const GemmGroup group{&args, 1};
    const uint32_t units = GemmUnits(group);
    table_.gemm(group, {units * thread / kThreads, units * (thread + 1) / kThreads}, exec);
  }

 private:
  static constexpr size_t kOutputBytes = size_t{4} * 49152 * kMaxRows;

  static uint64_t Bytes(const KernelTable& table, const MatrixSpec& spec) {
    return table.packed_bytes(
        spec.type, spec.num_outputs, spec.num_inputs, kernels::ComputeMode::kDefault);
  }

  static uint64_t TotalBytes(const KernelTable& table, const std::vector<MatrixSpec>& specs) {
    uint64_t total = 0;
    for (const MatrixSpec& spec : specs) {
      total += Bytes(table, spec) * spec.copies;
    }
    return total;
  }

  // All zeros is a valid prepared row of every format.
  static size_t RowBytesTotal() { return kMaxRows * PreparedRowBytes(RowFormat::kF32, 4096); }

  const KernelTable& table_;
  HugeBuffer weights_;
  HugeBuffer rows_;
  HugeBuffer y_;
  std::vector<PackedMatrix> matrices_;
};

// One workload lives at a time: the rows of a bench that use the same one follow each other.
std::shared_ptr<const Workload> Prepare(const std::string& key,
                                        const KernelTable& table,
                                        const std::vector<MatrixSpec>& specs) {
  static std::mutex mutex;
  static std::string current_key;
  static std::shared_ptr<const Workload> current;
  const std::lock_guard lock(mutex);
  if (key != current_key) {
    current.reset();
    current = std::make_shared<const Workload>(table, specs);
    current_key = key;
  }
  return current;
}

class WorkerScratch {
 public:
  WorkerScratch() : memory_(kernels::kScratchBytes) {
    exec_ = {.scratch = memory_.data(),
             .scratch_bytes = kernels::kScratchBytes,
             .worker = 0,
             .stream = nullptr};
  }

  [[nodiscard]] Exec* exec() { return &exec_; }

 private:
  HugeBuffer memory_;
  Exec exec_{};
};

double Fraction(double rate, double roof) {
  return roof > 0 ? rate / roof : 0;
}

// The shortest time that each of several pieces of work took, over many repetitions: neighbours
// only ever make one slower, and pieces are short against the time slices of the operating system.
class BestTimes {
 public:
  explicit BestTimes(size_t num_pieces) : seconds_(num_pieces, 1e30) {}

  template <typename Work>
  void Measure(size_t piece, Work work) {
    const auto begin = Clock::now();
    work();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    seconds_[piece] = std::min(seconds_[piece], seconds);
  }

  [[nodiscard]] double Total() const {
    return std::accumulate(seconds_.begin(), seconds_.end(), 0.0);
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::vector<double> seconds_;
};

// Each thread reports its share; rates of the threads add up.
void ReportProducts(benchmark::State& state, double seconds, double operations, double bytes) {
  const double gops = operations / seconds * 1e-9;
  const double gbps = bytes / seconds * 1e-9;
  state.counters["ms"] = benchmark::Counter(seconds * 1e3, benchmark::Counter::kAvgThreads);
  state.counters["GOP/s"] = gops;
  state.counters["int8"] = Fraction(gops, roofs.int8_gops);
  state.counters["tile"] = Fraction(gops, roofs.bf16_amx_gops);
  state.counters["GB/s"] = gbps;
  state.counters["mem"] = Fraction(gbps, roofs.dram_gbps);
}

void RunProducts(benchmark::State& state,
                 const std::string& key,
                 const KernelTable& table,
                 const std::vector<MatrixSpec>& specs,
                 bool whole_pass,
                 uint32_t num_rows) {
  const std::shared_ptr<const Workload> workload = Prepare(key, table, specs);
  WorkerScratch scratch;
  const auto thread = static_cast<uint32_t>(state.thread_index());
  // A whole pass counts the best time of every product, otherwise all copies of the matrix are one
  // piece.
  const size_t num_pieces = whole_pass ? workload->num_matrices() : 1;
  double operations = 0;
  double bytes = 0;
  for (size_t i = 0; i < num_pieces; ++i) {
    const PackedMatrix& matrix = workload->matrix(i);
    operations += 2.0 * num_rows * matrix.num_outputs * matrix.num_inputs / kThreads;
    bytes += static_cast<double>(matrix.bytes) / kThreads;
  }
  BestTimes best(num_pieces);
  size_t next = 0;
  for (auto _ : state) {
    for (size_t i = 0; i < num_pieces; ++i) {
      best.Measure(i, [&] { workload->Multiply(next, num_rows, thread, scratch.exec()); });
      next = (next + 1) % workload->num_matrices();
    }
  }
  ReportProducts(state, best.Total(), operations, bytes);
}

void RegisterGemm(const KernelTable& table) {
  struct Row {
    DType type;
    uint32_t num_outputs;
    uint32_t num_inputs;
  };

  const std::vector<Row> rows = {{DType::kQ4_1, 960, 576},
                                 {DType::kQ4_1, 576, 576},
                                 {DType::kQ4_1, 3072, 576},
                                 {DType::kQ4_1, 576, 1536},
                                 {DType::kQ8_0, 49152, 576},
                                 {DType::kQ4_0, 3072, 576},
                                 {DType::kQ5_0, 3072, 576},
                                 {DType::kQ5_1, 3072, 576},
                                 {DType::kQ4_K, 3072, 2048},
                                 {DType::kQ5_K, 3072, 2048},
                                 {DType::kQ6_K, 3072, 2048},
                                 {DType::kBF16, 3072, 576}};
  for (const Row& row : rows) {
    const uint64_t bytes = table.packed_bytes(
        row.type, row.num_outputs, row.num_inputs, kernels::ComputeMode::kDefault);
    const auto copies = static_cast<uint32_t>(kColdBytes / bytes + 1);
    const std::string key = "Gemm/" + std::string(table.name) + "/" +
                            std::string(Describe(row.type).name) + "/" +
                            std::to_string(row.num_outputs) + "x" + std::to_string(row.num_inputs);
    for (const uint32_t num_rows : {1U, 4U, 16U, 64U, kMaxRows}) {
      const std::vector<MatrixSpec> specs = {{row.type, row.num_outputs, row.num_inputs, copies}};
      benchmark::RegisterBenchmark((key + "/" + std::to_string(num_rows)).c_str(),
                                   [key, &table, specs, num_rows](benchmark::State& state) {
                                     RunProducts(state, key, table, specs, false, num_rows);
                                   })
          ->Threads(kThreads)
          ->UseRealTime()
          ->MinTime(0.3);
    }
  }
}

// Prefill computes the head for few rows, so that rows of 64 and more leave it out.
void RegisterModel(const KernelTable& table) {
  std::vector<MatrixSpec> layers;
  for (int layer = 0; layer < 30; ++layer) {
    for (const auto& [num_outputs, num_inputs] :
         {std::pair{960U, 576U}, {576U, 576U}, {3072U, 576U}, {576U, 1536U}}) {
      layers.push_back({DType::kQ4_1, num_outputs, num_inputs, 1});
    }
  }
  std::vector<MatrixSpec> all = layers;
  all.push_back({DType::kQ8_0, 49152, 576, 1});
  for (const uint32_t num_rows : {1U, 2U, 4U, 6U, 8U, 16U, 32U, 64U, 256U, kMaxRows}) {
    const bool with_head = num_rows < 64;
    const std::vector<MatrixSpec>& specs = with_head ? all : layers;
    const std::string key = std::string(with_head ? "Model/" : "Layers/") + std::string(table.name);
    benchmark::RegisterBenchmark((key + "/" + std::to_string(num_rows)).c_str(),
                                 [key, &table, specs, num_rows](benchmark::State& state) {
                                   RunProducts(state, key, table, specs, true, num_rows);
                                 })
        ->Threads(kThreads)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond)
        ->MinTime(1.0);
  }
}

// `run` prepares rows [begin, end) of `elements` inputs each.
void RunRows(benchmark::State& state,
             uint32_t elements,
             const std::function<void(const float*, uint8_t*, uint32_t)>& run) {
  constexpr uint32_t kRows = 64;
  std::vector<float> x(size_t{2} * kRows * elements);
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (float& value : x) {
    value = normal(rng);
  }
  const HugeBuffer out(kRows * PreparedRowBytes(RowFormat::kF32, elements));
  BestTimes best(1);
  for (auto _ : state) {
    best.Measure(0, [&] { run(x.data(), out.data(), kRows); });
    benchmark::ClobberMemory();
  }
  state.counters["ns/row"] =
      benchmark::Counter(best.Total() / kRows * 1e9, benchmark::Counter::kAvgThreads);
  state.counters["GB/s"] = 4.0 * elements * kRows / best.Total() * 1e-9;
}

void RegisterRows(const KernelTable& table) {
  const std::string prefix = "Rows/" + std::string(table.name) + "/";
  const auto add = [&](const std::string& name,
                       uint32_t elements,
                       std::function<void(const float*, uint8_t*, uint32_t)> run) {
    benchmark::RegisterBenchmark(
        (prefix + name + "/" + std::to_string(elements)).c_str(),
        [elements, run](benchmark::State& state) { RunRows(state, elements, run); })
        ->Threads(kThreads)
        ->UseRealTime()
        ->MinTime(0.2);
  };
  add("NormInt8", 576, [&table](const float* x, uint8_t* out, uint32_t rows) {
    table.norm_rows({.x = x,
                     .x_stride = 576,
                     .weight = x,
                     .eps = 1e-5F,
                     .k = 576,
                     .num_rows = rows,
                     .format = RowFormat::kInt8,
                     .out = out,
                     .out_stride_bytes = PreparedRowBytes(RowFormat::kInt8, 576)},
                    {0, rows},
                    nullptr);
  });
  add("PrepareInt8", 576, [&table](const float* x, uint8_t* out, uint32_t rows) {
    table.prepare_rows({.x = x,
                        .x_stride = 576,
                        .k = 576,
                        .num_rows = rows,
                        .format = RowFormat::kInt8,
                        .out = out,
                        .out_stride_bytes = PreparedRowBytes(RowFormat::kInt8, 576)},
                       {0, rows},
                       nullptr);
  });
  add("SwiGluInt8", 1536, [&table](const float* x, uint8_t* out, uint32_t rows) {
    table.swiglu_rows({.gate = x,
                       .up = x + 1536,
                       .stride = 3072 - 1536,
                       .k = 1536,
                       .num_rows = rows,
                       .format = RowFormat::kInt8,
                       .out = out,
                       .out_stride_bytes = PreparedRowBytes(RowFormat::kInt8, 1536)},
                      {0, rows},
                      nullptr);
  });
}

}  // namespace
}  // namespace spindle::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  spindle::bench::roofs = spindle::bench::MeasureRoofs(spindle::bench::kThreads);
  PrintRoofs(spindle::bench::roofs);
  using spindle::kernels::Isa;
  for (const Isa isa : {Isa::kAmx, Isa::kAvx512, Isa::kAvx2, Isa::kBaseline}) {
    if (const auto* table = spindle::kernels::FindKernels(isa); table != nullptr) {
      spindle::bench::RegisterModel(*table);
      spindle::bench::RegisterGemm(*table);
      spindle::bench::RegisterRows(*table);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
