#include "engine/engine_metrics.h"

#include <map>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "support/engine_world.h"

namespace spindle::engine {
namespace {

using std::chrono::seconds;
using testing::Client;
using testing::EngineWorld;
using testing::MakePrompt;
using testing::MakeRequest;

// Series of an exposition: "name{labels}" → value.
std::map<std::string, double> Scrape(EngineWorld& world) {
  std::map<std::string, double> series;
  std::istringstream text(world.registry.Expose(false));
  std::string line;
  while (std::getline(text, line)) {
    const size_t space = line.rfind(' ');
    if (!line.empty() && line[0] != '#' && space != std::string::npos) {
      series[line.substr(0, space)] = std::stod(line.substr(space + 1));
    }
  }
  return series;
}

// Sum over the series of `name` whose labels contain `label`; -1 when there is none.
double Value(const std::map<std::string, double>& series,
             const std::string& name,
             const std::string& label = "") {
  double sum = 0.0;
  bool found = false;
  for (const auto& [key, value] : series) {
    if (key.substr(0, key.find('{')) == name && key.find(label) != std::string::npos) {
      sum += value;
      found = true;
    }
  }
  return found ? sum : -1.0;
}

TEST(EngineMetrics, EveryFamilyExistsAtZeroBeforeTheFirstRequest) {
  EngineWorld world({});
  const auto series = Scrape(world);
  for (const char* name : {"vllm:num_requests_running",
                           "vllm:num_requests_waiting",
                           "vllm:num_requests_waiting_by_reason",
                           "vllm:kv_cache_usage_perc",
                           "vllm:prompt_tokens_total",
                           "vllm:generation_tokens_total",
                           "vllm:prompt_tokens_cached_total",
                           "vllm:prefix_cache_queries_total",
                           "vllm:prefix_cache_hits_total",
                           "vllm:external_prefix_cache_queries_total",
                           "vllm:external_prefix_cache_hits_total",
                           "vllm:num_preemptions_total",
                           "vllm:request_success_total",
                           "vllm:request_queue_time_seconds_count",
                           "vllm:request_prefill_time_seconds_count",
                           "vllm:request_decode_time_seconds_count",
                           "vllm:request_inference_time_seconds_count",
                           "vllm:request_prompt_tokens_count",
                           "vllm:request_generation_tokens_count",
                           "vllm:request_max_num_generation_tokens_count",
                           "vllm:request_params_max_tokens_count",
                           "vllm:request_params_n_count",
                           "vllm:iteration_tokens_total_count",
                           "vllm:request_prefill_kv_computed_tokens_count",
                           "spindle_queue_requests",
                           "spindle_running_requests",
                           "spindle_kv_usage_ratio",
                           "spindle_requests_cancelled_total",
                           "spindle_stream_stalls_total",
                           "spindle_queue_tokens",
                           "spindle_queue_oldest_seconds",
                           "spindle_engine_step_seconds_count",
                           "spindle_batch_sequences_count",
                           "spindle_batch_tokens_count",
                           "spindle_kv_metadata_bytes",
                           "spindle_kv_moves_total",
                           "spindle_kv_move_bytes_total",
                           "spindle_kv_fetch_seconds_count",
                           "spindle_kv_fetch_stall_seconds_total",
                           "spindle_kv_evictions_total",
                           "spindle_kv_budget_bytes_count",
                           "spindle_kv_disk_errors_total"}) {
    EXPECT_EQ(Value(series, name), 0.0) << name;
  }
  EXPECT_EQ(Value(series, "vllm:cache_config_info", "block_size=\"64\""), 1.0);
  EXPECT_EQ(Value(series, "vllm:cache_config_info", "enable_prefix_caching=\"True\""), 1.0);
  EXPECT_EQ(Value(series, "spindle_cache_info", "page_tokens=\"32\""), 1.0);
  EXPECT_EQ(Value(series, "spindle_kv_page_tokens"), 32.0);
  EXPECT_GT(Value(series, "vllm:lora_requests_info", "max_lora=\"0\""), 0.0);
  // 256 stripes of 2 layers × 2 heads × 2 pages.
  EXPECT_EQ(Value(series, "spindle_kv_tier_pages", "state=\"capacity\""), 256.0 * 8);
  EXPECT_EQ(Value(series, "spindle_kv_tier_bytes", "state=\"free\""), 256.0 * 16384);
}

TEST(EngineMetrics, RequestsMoveTheirFamilies) {
  EngineWorld world({});
  EngineRequest request = MakeRequest(MakePrompt(200, 1), 10);
  request.sampling.ignore_eos = true;
  request.sampling.num_choices = 2;
  auto first = world.Submit(request);
  world.RunUntilIdle(first);
  auto second = world.Submit(request);
  world.RunUntilIdle(second);
  const auto series = Scrape(world);
  EXPECT_EQ(Value(series, "vllm:prompt_tokens_total"), 400.0);
  EXPECT_EQ(Value(series, "vllm:generation_tokens_total"), 40.0);
  EXPECT_EQ(Value(series, "vllm:prompt_tokens_cached_total"), 192.0);
  EXPECT_EQ(Value(series, "vllm:prefix_cache_queries_total"), 400.0);
  EXPECT_EQ(Value(series, "vllm:prefix_cache_hits_total"), 192.0);
  EXPECT_EQ(Value(series, "vllm:request_success_total", "finished_reason=\"length\""), 4.0);
  EXPECT_EQ(Value(series, "vllm:request_queue_time_seconds_count"), 2.0);
  EXPECT_EQ(Value(series, "vllm:request_prefill_time_seconds_count"), 2.0);
  EXPECT_EQ(Value(series, "vllm:request_decode_time_seconds_count"), 2.0);
  EXPECT_GT(Value(series, "vllm:request_decode_time_seconds_sum"), 0.0);
  EXPECT_EQ(Value(series, "vllm:request_inference_time_seconds_count"), 2.0);
  EXPECT_EQ(Value(series, "vllm:request_prompt_tokens_sum"), 400.0);
  EXPECT_EQ(Value(series, "vllm:request_generation_tokens_sum"), 40.0);
  EXPECT_EQ(Value(series, "vllm:request_max_num_generation_tokens_sum"), 20.0);
  EXPECT_EQ(Value(series, "vllm:request_params_max_tokens_sum"), 20.0);
  EXPECT_EQ(Value(series, "vllm:request_params_n_sum"), 4.0);
  EXPECT_EQ(Value(series, "vllm:request_prefill_kv_computed_tokens_sum"), 208.0);
  EXPECT_EQ(Value(series, "vllm:iteration_tokens_total_sum"),
            static_cast<double>(world.runner.num_rows));
  EXPECT_EQ(Value(series, "spindle_batch_tokens_sum"), static_cast<double>(world.runner.num_rows));
  EXPECT_EQ(Value(series, "spindle_batch_sequences_count"),
            static_cast<double>(world.runner.num_steps));
  EXPECT_GT(Value(series, "spindle_engine_step_seconds_sum", "phase=\"forward\""), 0.0);
  EXPECT_EQ(Value(series, "spindle_engine_step_seconds_count", "phase=\"plan\""),
            static_cast<double>(world.runner.num_steps));
  EXPECT_EQ(Value(series, "spindle_engine_step_seconds_count", "phase=\"sample\""),
            static_cast<double>(world.runner.num_steps));
}

TEST(EngineMetrics, GaugesFollowTheQueueAndTheMemory) {
  EngineWorld::Options options;
  options.engine.max_num_seqs = 1;
  EngineWorld world(options);
  EngineRequest request = MakeRequest(MakePrompt(200, 1), 100);
  request.sampling.ignore_eos = true;
  auto first = world.Submit(request);
  auto second = world.Submit(request);
  world.core.Step();
  world.clock.Advance(seconds(3));
  world.core.Step();
  auto series = Scrape(world);
  EXPECT_EQ(Value(series, "vllm:num_requests_running"), 1.0);
  EXPECT_EQ(Value(series, "spindle_running_requests"), 1.0);
  EXPECT_EQ(Value(series, "vllm:num_requests_waiting"), 1.0);
  EXPECT_EQ(Value(series, "spindle_queue_requests"), 1.0);
  EXPECT_EQ(Value(series, "vllm:num_requests_waiting_by_reason", "capacity"), 1.0);
  EXPECT_EQ(Value(series, "spindle_queue_tokens"), 200.0);
  EXPECT_GE(Value(series, "spindle_queue_oldest_seconds"), 3.0);
  EXPECT_DOUBLE_EQ(Value(series, "vllm:kv_cache_usage_perc"), 4.0 / 256);
  EXPECT_DOUBLE_EQ(Value(series, "spindle_kv_usage_ratio"), 4.0 / 256);
  EXPECT_EQ(Value(series, "spindle_kv_tier_bytes", "state=\"committed\""), 4.0 * 16384);
  world.RunUntilIdle(first, second);
  series = Scrape(world);
  EXPECT_EQ(Value(series, "vllm:num_requests_running"), 0.0);
  EXPECT_EQ(Value(series, "spindle_queue_oldest_seconds"), 0.0);
  EXPECT_EQ(Value(series, "spindle_kv_tier_bytes", "state=\"committed\""), 0.0);
  EXPECT_GT(Value(series, "spindle_kv_tier_pages", "state=\"prefix\""), 0.0);
}

TEST(EngineMetrics, TwinsAreDeferred) {
  EngineWorld::Options options;
  options.engine.max_num_batched_tokens = 64;
  EngineWorld world(options);
  auto first = world.Submit(MakeRequest(MakePrompt(300, 1), 2));
  auto second = world.Submit(MakeRequest(MakePrompt(300, 1), 2));
  world.core.Step();
  const auto series = Scrape(world);
  EXPECT_EQ(Value(series, "vllm:num_requests_waiting_by_reason", "deferred"), 1.0);
  EXPECT_EQ(Value(series, "vllm:num_requests_waiting_by_reason", "capacity"), 0.0);
  world.RunUntilIdle(first, second);
}

TEST(EngineMetrics, EvictionsOfCachedPrefixes) {
  EngineWorld::Options options;
  options.num_stripes = 8;
  EngineWorld world(options);
  for (uint64_t i = 0; i < 3; ++i) {
    auto client = world.Submit(MakeRequest(MakePrompt(300, i), 2));
    world.RunUntilIdle(client);
  }
  const auto series = Scrape(world);
  EXPECT_GT(Value(series, "spindle_kv_evictions_total", "tier=\"host\""), 0.0);
}

TEST(EngineMetrics, CancellationsByPhaseAndCause) {
  EngineWorld::Options options;
  options.engine.max_num_seqs = 2;
  options.engine.max_num_batched_tokens = 64;
  EngineWorld world(options);
  EngineRequest request = MakeRequest(MakePrompt(10, 1), 500);
  request.sampling.ignore_eos = true;
  auto decoding = world.Submit(request);
  world.core.Step();
  auto prefilling = world.Submit(MakeRequest(MakePrompt(1000, 2), 500));
  world.core.Step();
  auto queued = world.Submit(MakeRequest(MakePrompt(10, 3), 500));
  world.core.Step();
  decoding->stream().Cancel(CancelCause::kAdmin);
  prefilling->stream().Cancel(CancelCause::kClientGone);
  queued->stream().Cancel(CancelCause::kShutdown);
  world.core.Step();
  world.RunUntilIdle(decoding, prefilling, queued);
  EXPECT_EQ(world.metrics.cancelled[static_cast<size_t>(CancelPhase::kDecode)][1].Value(), 1.0);
  EXPECT_EQ(world.metrics.cancelled[static_cast<size_t>(CancelPhase::kPrefill)][0].Value(), 1.0);
  EXPECT_EQ(world.metrics.cancelled[static_cast<size_t>(CancelPhase::kQueued)][5].Value(), 1.0);
  const auto series = Scrape(world);
  EXPECT_EQ(Value(series, "spindle_requests_cancelled_total"), 3.0);
  EXPECT_EQ(Value(series, "spindle_requests_cancelled_total", "cause=\"admin\""), 1.0);
  EXPECT_EQ(Value(series, "vllm:request_success_total", "finished_reason=\"abort\""), 2.0);
}

}  // namespace
}  // namespace spindle::engine
