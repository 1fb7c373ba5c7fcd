// Prefill and decode rates of the whole engine in process, without HTTP: the counterpart of other
// servers' batched benches.
//   engine_bench MODEL [--threads N] [--generated N] [--rounds N] POINT…
// POINT: decode:B:T (B sequences with T tokens of context each, all decoding), the same with
// :ALGORITHM:PERCENT (sparse attention that selects so much of the context), prefill:T, or the same
// with :METHOD (sparse prefill). Prompts are drawn tokens, whose attention has little structure.
// Prints one line of JSON per point and round: {"point": …, "tokens_per_s": …}.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <semaphore>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "engine/algorithm_facts.h"
#include "engine/engine.h"
#include "engine/sparse_request.h"
#include "formats/model_file.h"
#include "kernels/registry.h"

namespace spindle::bench {
namespace {

struct Options {
  std::string model;
  uint32_t threads = 2;
  uint32_t generated = 128;
  uint32_t rounds = 1;
  std::vector<std::string> points;
};

struct Point {
  bool decode = false;
  uint32_t batch = 1;
  uint32_t context = 0;
  engine::SparseRequest sparse = {};
};

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "engine_bench: %s\n", message.c_str());
  std::exit(2);
}

uint32_t ParseNumber(const std::string& text) {
  uint32_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value == 0) {
    Fail("expected a number above 0, got '" + text + "'");
  }
  return value;
}

Point ParsePoint(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  if (parts.size() == 3 && parts[0] == "decode") {
    return {true, ParseNumber(parts[1]), ParseNumber(parts[2])};
  }
  if (parts.size() == 5 && parts[0] == "decode") {
    Point point{true, ParseNumber(parts[1]), ParseNumber(parts[2])};
    point.sparse.algorithm = parts[3];
    point.sparse.min_context = 0;
    double percent = 0;
    if (!absl::SimpleAtod(parts[4], &percent)) {
      Fail("a share is a number of percent, got '" + parts[4] + "'");
    }
    point.sparse.budget_fraction = percent / 100;
    return point;
  }
  if ((parts.size() == 2 || parts.size() == 3) && parts[0] == "prefill") {
    Point point{false, 1, ParseNumber(parts[1])};
    point.sparse.prefill = parts.size() == 3 ? parts[2] : "dense";
    const std::vector<std::string_view> known = engine::KnownPrefills();
    if (std::find(known.begin(), known.end(), point.sparse.prefill) == known.end()) {
      Fail("no sparse prefill has the name '" + parts[2] + "'");
    }
    return point;
  }
  Fail("a point is decode:B:T[:ALGORITHM:PERCENT] or prefill:T[:METHOD], got '" + text + "'");
}

Options ParseOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    uint32_t* number = argument == "--threads"     ? &options.threads
                       : argument == "--generated" ? &options.generated
                       : argument == "--rounds"    ? &options.rounds
                                                   : nullptr;
    if (number != nullptr) {
      *number = ParseNumber(++i < argc ? argv[i] : "");
    } else if (options.model.empty()) {
      options.model = argument;
    } else {
      options.points.push_back(argument);
    }
  }
  if (options.points.empty()) {
    Fail("use: engine_bench MODEL [--threads N] [--generated N] [--rounds N] POINT...");
  }
  return options;
}

template <typename T>
T Take(absl::StatusOr<T> value) {
  if (!value.ok()) {
    Fail(std::string(value.status().message()));
  }
  return *std::move(value);
}

std::unique_ptr<engine::Engine> MakeEngine(const Options& options, metrics::Registry& registry) {
  const kernels::KernelTable* kernels = kernels::BestKernels();
  auto pool = Take(platform::ComputePool::Create({options.threads, false}));
  const std::shared_ptr<const formats::ModelFile> file =
      Take(formats::ModelFile::Open(options.model));
  auto model = Take(model::Model::Load(file, {}, *pool, *kernels, nullptr));
  const model::ModelConfig& config = model->config();
  kv::KvGeometry geometry;
  geometry.num_layers = config.num_layers;
  geometry.num_kv_heads = config.num_kv_heads;
  geometry.head_dim = config.head_dim;
  // Committed as it is used.
  auto store =
      Take(kv::KvStore::Create({.host_bytes = uint64_t{8} << 30, .prefix_cache = true}, geometry));
  engine::EngineOptions engine_options;
  engine_options.max_num_seqs = 64;
  engine_options.max_queue_tokens = 1U << 24;
  engine_options.stream_capacity_events = 65536;
  return Take(engine::Engine::Create(engine_options,
                                     std::move(model),
                                     {.host = std::move(store)},
                                     std::move(pool),
                                     *kernels,
                                     {},
                                     registry,
                                     SteadyClock()));
}

// One request and when its tokens came. Times are taken on the engine thread, so that nothing else
// competes for the processors.
class Run {
 public:
  Run(engine::Engine& engine,
      std::string id,
      std::vector<TokenId> prompt,
      uint32_t num_tokens,
      const engine::SparseDecode& decode) {
    engine::EngineRequest request;
    request.decode = decode;
    request.id = std::move(id);
    request.prompt = std::move(prompt);
    request.sampling.max_tokens = num_tokens;
    request.sampling.temperature = 0;
    request.may_stop_early = false;
    times_.reserve(num_tokens);
    begin_ = SteadyClock().Now();
    engine::SubmitResult result = engine.Submit(std::move(request));
    if (!std::holds_alternative<std::shared_ptr<engine::OutputStream>>(result)) {
      Fail("a request was refused");
    }
    stream_ = std::get<std::shared_ptr<engine::OutputStream>>(result);
    stream_->SetReadyCallback([this] { Drain(); });
  }

  void Wait() { done_.acquire(); }

  [[nodiscard]] TimePoint begin() const { return begin_; }

  [[nodiscard]] const std::vector<TimePoint>& times() const { return times_; }

 private:
  void Drain() {
    engine::StreamEvent event;
    while (stream_->Next(&event)) {
      if (event.kind == engine::StreamEvent::Kind::kToken) {
        times_.push_back(SteadyClock().Now());
      } else if (event.kind == engine::StreamEvent::Kind::kDone) {
        if (!event.status.ok()) {
          Fail(std::string(event.status.message()));
        }
        done_.release();
      }
    }
  }

  TimePoint begin_;
  std::vector<TimePoint> times_;
  std::binary_semaphore done_{0};
  std::shared_ptr<engine::OutputStream> stream_;
};

double Measure(engine::Engine& engine, const Point& point, uint32_t generated, std::mt19937& rng) {
  static uint64_t num_requests = 0;
  const engine::SparseDecode decode =
      Take(engine::ResolveSparse(point.sparse, {}, engine.kv_geometry(), {}));
  const auto submit = [&](const std::vector<TokenId>& prompt, uint32_t tokens) {
    return std::make_unique<Run>(engine, std::to_string(num_requests++), prompt, tokens, decode);
  };
  std::vector<std::vector<TokenId>> prompts(point.batch);
  for (std::vector<TokenId>& prompt : prompts) {
    for (uint32_t i = 0; i < point.context; ++i) {
      prompt.push_back(static_cast<TokenId>(1000 + rng() % 39000));
    }
  }
  if (!point.decode) {
    const auto run = submit(prompts[0], 1);
    run->Wait();
    return point.context / ToSeconds(run->times().at(0) - run->begin());
  }
  // Prompts go to the prefix cache first: then the batch begins to decode together.
  for (const std::vector<TokenId>& prompt : prompts) {
    submit(prompt, 1)->Wait();
  }
  std::vector<std::unique_ptr<Run>> runs;
  for (const std::vector<TokenId>& prompt : prompts) {
    runs.push_back(submit(prompt, generated));
  }
  TimePoint begin = TimePoint::min();
  TimePoint end = TimePoint::max();
  for (const auto& run : runs) {
    run->Wait();
    begin = std::max(begin, run->times().front());
    end = std::min(end, run->times().back());
  }
  size_t tokens = 0;
  for (const auto& run : runs) {
    for (const TimePoint time : run->times()) {
      tokens += time > begin && time <= end ? size_t{1} : size_t{0};
    }
  }
  return static_cast<double>(tokens) / ToSeconds(end - begin);
}

int Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  metrics::Registry registry{metrics::Labels{{"model_name", "bench"}}};
  const std::unique_ptr<engine::Engine> engine = MakeEngine(options, registry);
  std::mt19937 rng(1);
  // Warm-up: memory that a server touches once is not part of a rate.
  for (const std::string& text : options.points) {
    const Point point = ParsePoint(text);
    for (uint32_t i = 0; i < point.batch; ++i) {
      Measure(*engine, {.decode = false, .batch = 1, .context = point.context}, 1, rng);
    }
  }
  engine->ResetPrefixCache();
  for (uint32_t round = 0; round < options.rounds; ++round) {
    for (const std::string& text : options.points) {
      const double rate = Measure(*engine, ParsePoint(text), options.generated, rng);
      engine->ResetPrefixCache();
      std::printf("{\"point\": \"%s\", \"tokens_per_s\": %.2f}\n", text.c_str(), rate);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace spindle::bench

int main(int argc, char** argv) {
  return spindle::bench::Main(argc, argv);
}
