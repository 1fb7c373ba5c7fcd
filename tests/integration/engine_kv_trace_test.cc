// A whole engine over a small golden model records itself: dense requests and requests with an
// algorithm, several choices, preemptions and budgets that move. The simulator replays the trace
// without a difference, and its counts are those of the engine.
#include <array>
#include <memory>
#include <random>
#include <semaphore>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "base/read_file.h"
#include "engine/engine.h"
#include "formats/model_file.h"
#include "kernels/registry.h"
#include "kv/sim/recorded_run.h"
#include "kv/sim/request_trace.h"
#include "sparse/replay/replay_algorithm.h"
#include "support/temp_folder.h"

namespace spindle::engine {
namespace {

constexpr uint32_t kThreads = 2;
constexpr uint32_t kSelected = 5;
constexpr uint64_t kGroupFrames = 160;  // of all sequences together
constexpr size_t kRequests = 8;
// Two sequences of kTokens do not fit, and three choices of the last request neither: whoever is
// younger is preempted.
constexpr uint64_t kStripes = 13;
constexpr uint32_t kTokens = 490;

uint32_t PromptTokens(size_t index) {
  return static_cast<uint32_t>(60 + 17 * index);
}

uint32_t NumChoices(size_t index) {
  return index + 1 == kRequests ? 3 : 1;
}

// The same draw for every group and step in a row of eight, so that pages come back.
SparseDecode DrawnDecode(const kv::KvGeometry& geometry) {
  sparse::PageSchedule schedule;
  schedule.page_tokens = geometry.page_tokens();
  schedule.num_pages = 64;
  schedule.num_steps = 64;
  schedule.num_layers = geometry.num_layers;
  schedule.num_kv_heads = geometry.num_kv_heads;
  schedule.pages_per_step = kSelected;
  std::mt19937_64 rng(5);
  std::vector<uint32_t> pages(kSelected);
  for (uint32_t step = 0; step < schedule.num_steps; ++step) {
    for (uint32_t group = 0; group < geometry.num_layers * geometry.num_kv_heads; ++group) {
      for (uint32_t i = 0; i < kSelected; ++i) {
        pages[i] = static_cast<uint32_t>(12 * i + rng() % 4);
      }
      schedule.pages.insert(schedule.pages.end(), pages.begin(), pages.end());
    }
  }
  auto algorithm = std::make_shared<const sparse::ReplayAlgorithm>(std::move(schedule));
  SparseDecode decode;
  decode.mandatory_pages = algorithm->max_pages();
  decode.method[0] = 1;
  decode.policy = std::make_shared<const sparse::SparsePolicy>(
      std::move(algorithm),
      sparse::SparseSettings{.sink_tokens = 0, .recent_tokens = 0, .min_context = 0});
  return decode;
}

kv::KvGeometry GeometryOf(const model::ModelConfig& config) {
  return {.num_layers = config.num_layers,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim};
}

std::unique_ptr<kv::FastTier> MakeTier(const kv::KvGeometry& geometry) {
  kv::FastTierOptions options;
  options.geometry = geometry;
  options.num_workers = kThreads;
  options.num_rings = kThreads;
  options.ring_frames = static_cast<uint32_t>(kSegmentTokens / geometry.page_tokens());
  options.metadata_bytes = uint64_t{4} << 20;
  options.fast_bytes = (uint64_t{kThreads} * options.ring_frames +
                        kGroupFrames * geometry.num_layers * geometry.num_kv_heads) *
                       geometry.page_bytes();
  return kv::FastTier::Create(options, *kernels::BestKernels()).value();
}

std::unique_ptr<kv::KvTrace> MakeTrace(const std::string& path, const kv::FastTier& tier) {
  return kv::KvTrace::Create({.path = path,
                              .max_file_bytes = kv::kMaxAccessTraceBytes,
                              .pages = kv::AccessTraceHeader{.geometry = tier.options().geometry,
                                                             .lru = tier.options().lru,
                                                             .algorithm = "synthetic drawn"},
                              .num_workers = kThreads,
                              .start = SteadyClock().Now()})
      .value();
}

std::unique_ptr<Engine> MakeEngine(const std::string& trace_path, metrics::Registry& registry) {
  auto file = formats::ModelFile::Open(std::string(SPINDLE_TEST_GOLDEN_DIR) + "/models/llama.gguf");
  EXPECT_TRUE(file.ok()) << file.status();
  auto pool = platform::ComputePool::Create({kThreads, false});
  EXPECT_TRUE(pool.ok()) << pool.status();
  const kernels::KernelTable* const kernels = kernels::BestKernels();
  auto model = model::Model::Load(std::shared_ptr<const formats::ModelFile>(*std::move(file)),
                                  {},
                                  **pool,
                                  *kernels,
                                  [](double) {});
  EXPECT_TRUE(model.ok()) << model.status();
  const kv::KvGeometry geometry = GeometryOf((*model)->config());
  kv::KvTiers tiers;
  tiers.host = kv::KvStore::Create({kStripes * geometry.stripe_bytes(), true}, geometry).value();
  tiers.fast = MakeTier(geometry);
  tiers.trace = MakeTrace(trace_path, *tiers.fast);
  EngineOptions options;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 128;
  options.max_queue_tokens = 1U << 20;
  options.stream_capacity_events = 4096;
  auto engine = Engine::Create(options,
                               std::move(*model),
                               std::move(tiers),
                               *std::move(pool),
                               *kernels,
                               {},
                               registry,
                               SteadyClock());
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

void AwaitEnd(OutputStream& stream) {
  std::counting_semaphore<> ready(0);
  stream.SetReadyCallback([&ready] { ready.release(); });
  for (bool done = false; !done;) {
    StreamEvent event;
    if (!stream.Next(&event)) {
      ready.acquire();
      continue;
    }
    done = event.kind == StreamEvent::Kind::kDone;
    if (done) {
      EXPECT_TRUE(event.status.ok()) << event.status;
    }
  }
  stream.SetReadyCallback({});
}

// Every second request has the algorithm.
EngineRequest MakeRequest(size_t index, const Engine& engine) {
  std::mt19937 rng(static_cast<uint32_t>(index));
  EngineRequest request;
  request.id = std::to_string(index);
  request.prompt.resize(PromptTokens(index));
  for (TokenId& token : request.prompt) {
    token = static_cast<TokenId>(rng() % engine.model_config().vocab_size);
  }
  request.sampling.max_tokens = kTokens - PromptTokens(index);
  request.sampling.seed = index;
  request.sampling.num_choices = NumChoices(index);
  request.may_stop_early = false;
  if (index % 2 == 0) {
    request.decode = DrawnDecode(engine.kv_geometry());
  }
  return request;
}

TEST(KvTraceOfAnEngine, ReplaysWithoutADifference) {
  const test::TempFolder folder;
  metrics::Registry registry{metrics::Labels{{"model_name", "golden"}}};
  const std::unique_ptr<Engine> engine = MakeEngine(folder.path() + "/run", registry);
  std::vector<std::shared_ptr<OutputStream>> streams;
  uint64_t num_choices = 0;
  for (size_t i = 0; i < kRequests; ++i) {
    EngineRequest request = MakeRequest(i, *engine);
    num_choices += request.sampling.num_choices;
    SubmitResult result = engine->Submit(std::move(request));
    ASSERT_TRUE(std::holds_alternative<std::shared_ptr<OutputStream>>(result));
    streams.push_back(std::get<std::shared_ptr<OutputStream>>(std::move(result)));
  }
  for (const auto& stream : streams) {
    AwaitEnd(*stream);
  }
  engine->Shutdown(SteadyClock().Now());
  const sparse::MirrorCounters counters = engine->Load().fast->counters;

  const std::string bytes = ReadFile(folder.path() + "/run-pages.trace", 1U << 30).value();
  const auto run =
      kv::sim::LoadRecordedRun({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, 0);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->ending, kv::AccessTraceReader::Ending::kWhole);
  EXPECT_GT(run->num_requests, num_choices);  // preempted ones begin anew
  kv::sim::ReplayResult total;
  std::array<uint32_t, 3> num_changes{};
  for (size_t group = 0; group < run->groups.size(); ++group) {
    for (const kv::sim::RecordedGroup::Change& change : run->groups[group].changes) {
      ++num_changes[static_cast<size_t>(change.kind)];
    }
    const auto result = kv::sim::ReplayRecordedSizes(*run, group);
    ASSERT_TRUE(result.ok()) << result.status();
    total.count += result->count;
    total.compared += result->compared;
    total.differences += result->differences;
  }
  using Kind = kv::sim::RecordedGroup::Change::Kind;
  EXPECT_GT(num_changes[static_cast<size_t>(Kind::kResize)], run->groups.size());
  EXPECT_GT(num_changes[static_cast<size_t>(Kind::kFork)], 0U);
  EXPECT_EQ(total.differences, 0U);
  EXPECT_GT(total.compared, 10'000U);
  EXPECT_EQ(total.compared, counters.page_hits + counters.page_misses);
  EXPECT_EQ(total.count.hits, counters.page_hits);

  const auto requests = kv::sim::ParseRequestTrace(
      ReadFile(folder.path() + "/run-requests.jsonl", kv::sim::kMaxTraceBytes).value());
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->requests.size(), kRequests);
  for (size_t i = 0; i < kRequests; ++i) {
    EXPECT_EQ(requests->requests[i].input_tokens, PromptTokens(i));
    EXPECT_EQ(requests->requests[i].output_tokens, (kTokens - PromptTokens(i)) * NumChoices(i));
  }
}

}  // namespace
}  // namespace spindle::engine
