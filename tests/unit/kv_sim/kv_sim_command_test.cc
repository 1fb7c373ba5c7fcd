// `spindle kv sim` from options to report.
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/read_file.h"
#include "cli/kv_sim.h"
#include "kv/sim/page_policy.h"
#include "kv/trace/access_trace.h"
#include "support/temp_folder.h"

namespace spindle::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

void NoProgress(double /*fraction*/) {}

json RunForJson(KvSimOptions options) {
  options.json = true;
  const auto report = KvSim(options, NoProgress);
  EXPECT_TRUE(report.ok()) << report.status();
  return json::parse(report.ok() ? *report : "{}");
}

KvSimOptions Synthetic() {
  KvSimOptions options;
  options.synthetic = "medium";
  options.policies = "lru,bucketed,belady";
  options.ratios = "1,5";
  options.num_seeds = 2;
  options.num_pages = 512;
  options.selected_pages = 16;
  return options;
}

TEST(KvSimCommand, TablesLineUp) {
  const auto report = KvSim(Synthetic(), NoProgress);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(*report, HasSubstr("synthetic selection: medium\n"));
  std::istringstream lines(report->substr(report->find("\n\n") + 2));
  std::vector<size_t> lengths;
  for (std::string line; std::getline(lines, line);) {
    lengths.push_back(line.size());
  }
  ASSERT_EQ(lengths.size(), 4U);
  EXPECT_THAT(lengths, testing::Each(lengths.front()));
}

TEST(KvSimCommand, ReportsWhatThePoliciesDo) {
  const json report = RunForJson(Synthetic());
  ASSERT_EQ(report["results"].size(), 6U);
  const json& bucketed = report["results"][3];
  EXPECT_EQ(bucketed["policy"], "bucketed");
  EXPECT_EQ(bucketed["ratio"], 5.0);
  EXPECT_EQ(bucketed["capacity"], 96.0);
  kv::sim::HitCount expected;
  for (uint64_t seed = 0; seed < 2; ++seed) {
    const auto trace = kv::sim::MakeSyntheticTrace(
        {.profile = kv::sim::kMediumProfile, .num_pages = 512, .selected_pages = 16, .seed = seed},
        400,
        100);
    expected += kv::sim::Simulate({.kind = kv::sim::PolicyKind::kBucketed}, 96, trace).value();
  }
  EXPECT_EQ(bucketed["accesses"], expected.accesses);
  EXPECT_EQ(bucketed["hits"], expected.hits);
  EXPECT_GT(bucketed["regret"].get<double>(), 0.0);
  EXPECT_EQ(report["results"][5]["regret"], 0.0);
  // The one-pass curve begins at the largest step and does not fall.
  const json& curve = report["exact_lru_curve"];
  ASSERT_GT(curve.size(), 10U);
  EXPECT_EQ(curve[0]["pages"], 16.0);
  for (size_t i = 1; i < curve.size(); ++i) {
    EXPECT_GE(curve[i]["hit_ratio"], curve[i - 1]["hit_ratio"]);
  }
}

TEST(KvSimCommand, LayersAndHeadsSelectForThemselves) {
  KvSimOptions options = Synthetic();
  options.policies = "bucketed";
  options.ratios = "2";
  options.num_layers = 3;
  options.num_heads = 2;
  const json result = RunForJson(options)["results"][0];
  ASSERT_EQ(result["layer_hit_ratios"].size(), 3U);
  kv::sim::HitCount all;
  for (uint64_t layer = 0; layer < 3; ++layer) {
    kv::sim::HitCount of_layer;
    for (const uint64_t seed : {0U, 1U}) {
      for (const uint64_t head : {0U, 1U}) {
        const auto trace = kv::sim::MakeSyntheticTrace({.profile = kv::sim::kMediumProfile,
                                                        .num_pages = 512,
                                                        .selected_pages = 16,
                                                        .seed = seed,
                                                        .stream = 2 * layer + head},
                                                       400,
                                                       100);
        of_layer += kv::sim::Simulate({.kind = kv::sim::PolicyKind::kBucketed}, 48, trace).value();
      }
    }
    EXPECT_EQ(result["layer_hit_ratios"][layer], of_layer.ratio());
    all += of_layer;
  }
  EXPECT_EQ(result["hits"], all.hits);
}

TEST(KvSimCommand, WritesAPlot) {
  const test::TempFolder folder;
  KvSimOptions options = Synthetic();
  options.plot_path = folder.path() + "/plot.svg";
  ASSERT_TRUE(KvSim(options, NoProgress).ok());
  const std::string svg = ReadFile(options.plot_path, 1 << 20).value();
  for (const char* text : {"<svg ", "lru, one pass", "bucketed", "belady", "</svg>"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  options.plot_path = folder.path() + "/no/plot.svg";
  EXPECT_EQ(KvSim(options, NoProgress).status().code(), absl::StatusCode::kUnavailable);
}

TEST(KvSimCommand, ASavedTraceGivesTheSameHits) {
  const test::TempFolder folder;
  KvSimOptions options = Synthetic();
  options.save_trace_path = folder.path() + "/trace";
  const json direct = RunForJson(options);
  KvSimOptions again;
  again.trace_path = options.save_trace_path;
  again.policies = options.policies;
  again.ratios = options.ratios;
  again.warmup_steps = 100;
  const json replayed = RunForJson(again);
  ASSERT_EQ(replayed["results"].size(), direct["results"].size());
  for (size_t i = 0; i < direct["results"].size(); ++i) {
    EXPECT_EQ(replayed["results"][i]["hits"], direct["results"][i]["hits"]) << i;
    EXPECT_EQ(replayed["results"][i]["fetched_bytes"],
              4096 * (replayed["results"][i]["accesses"].get<uint64_t>() -
                      replayed["results"][i]["hits"].get<uint64_t>()));
  }
  EXPECT_THAT(replayed["title"], HasSubstr("synthetic selection"));
}

TEST(KvSimCommand, ReplaysRecordedSizesAndComparesTheHits) {
  const test::TempFolder folder;
  kv::AccessTraceHeader header;
  header.geometry = {.num_layers = 1, .num_kv_heads = 1, .head_dim = 64};
  header.algorithm = "quest";
  const std::string path = folder.path() + "/trace";
  auto writer = kv::AccessTraceWriter::Create(path, header, kv::kMaxAccessTraceBytes).value();
  const std::vector<uint32_t> frames = {8};
  const std::vector<uint32_t> pages = {1, 5};
  const std::vector<uint8_t> none = {0};
  const std::vector<uint8_t> all = {3};
  using kv::AccessKind;
  ASSERT_TRUE(writer->Append({.kind = AccessKind::kResize, .ids = frames, .hit_bits = {}}).ok());
  ASSERT_TRUE(writer->Append({.ids = pages, .hit_bits = none}).ok());
  ASSERT_TRUE(writer->Append({.step = 1, .ids = pages, .hit_bits = all}).ok());
  ASSERT_TRUE(writer->Append({.step = 2, .ids = pages, .hit_bits = none}).ok());  // not so
  ASSERT_TRUE(writer->Finish().ok());
  KvSimOptions options;
  options.trace_path = path;
  options.capacities = "recorded";
  const auto report = KvSim(options, NoProgress);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(*report, HasSubstr("4 of 6 pages"));
  EXPECT_THAT(*report, HasSubstr("66.7"));
  const json numbers = RunForJson(options);
  EXPECT_EQ(numbers["recorded"]["compared_pages"], 6);
  EXPECT_EQ(numbers["recorded"]["differences"], 2);
}

TEST(KvSimCommand, ReadsRequestTraces) {
  const test::TempFolder folder;
  const std::string text =
      R"({"timestamp": 0, "input_length": 900, "output_length": 1, "hash_ids": [1, 2]})"
      "\n"
      R"({"timestamp": 1, "input_length": 900, "output_length": 1, "hash_ids": [1, 3]})"
      "\n";
  KvSimOptions options;
  options.trace_path =
      folder.Write("requests", {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  options.capacities = "2,10";
  const json report = RunForJson(options);
  ASSERT_EQ(report["results"].size(), 10U);
  EXPECT_EQ(report["results"][0]["accesses"], 4);
  EXPECT_EQ(report["results"][1]["hits"], 1);
}

TEST(KvSimCommand, ServesOnAVirtualClock) {
  KvSimOptions options;
  options.serving.requests_per_second = 2;
  options.serving.arrival_time = std::chrono::seconds(10);
  options.serving.max_prompt_tokens = 1024;
  options.serving.max_output_tokens = 32;
  const json report = RunForJson(options);
  EXPECT_GT(report["completed"], 5);
  EXPECT_EQ(report["arrived"],
            report["completed"].get<int>() + report["refused_busy"].get<int>() +
                report["refused_never_fits"].get<int>() + report["refused_closing"].get<int>());
  EXPECT_GT(report["ttft_p50_seconds"], 0.0);
  EXPECT_GE(report["ttft_p99_seconds"], report["ttft_p50_seconds"]);
  options.synthetic = "cyclic";
  EXPECT_EQ(KvSim(options, NoProgress).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(KvSimCommand, NamesTheOptionThatIsWrong) {
  const std::vector<std::pair<KvSimOptions, std::string>> cases = [] {
    std::vector<std::pair<KvSimOptions, std::string>> list;
    list.emplace_back(KvSimOptions(), "give one of --trace FILE and --synthetic PROFILE");
    const auto add = [&list](auto change, const std::string& message) {
      KvSimOptions options = Synthetic();
      change(options);
      list.emplace_back(options, message);
    };
    add([](KvSimOptions& o) { o.trace_path = "x"; }, "give one of --trace");
    add([](KvSimOptions& o) { o.capacities = "8"; }, "give one of --capacity and --ratio");
    add([](KvSimOptions& o) { o.synthetic = "big"; }, "--synthetic must be one of");
    add([](KvSimOptions& o) { o.policies = "lru,,arc"; }, "--policy: ");
    add([](KvSimOptions& o) { o.ratios = "1,x"; }, "--ratio: ");
    add([](KvSimOptions& o) { o.selected_pages = 513; }, "--selected must be in 1..--pages 512");
    add(
        [](KvSimOptions& o) {
          o.synthetic = "cyclic";
          o.num_heads = 2;
          o.ratios.clear();
          o.flags = {"heads"};
        },
        "--heads has no effect here; it is for --synthetic sticky, medium and loose");
    add([](KvSimOptions& o) { o.served_prompt_tokens = 512 * 16 - 399; },
        "--served-prompt and --steps must not exceed the 8192 tokens");
    add(
        [](KvSimOptions& o) {
          o.num_layers = 1000;
          o.num_heads = 128;
        },
        "--seeds times --layers times");
    add([](KvSimOptions& o) { o.warmup_steps = 400; }, "--warmup must be below --steps 400");
    add(
        [](KvSimOptions& o) {
          o.ratios.clear();
          o.capacities = "recorded";
        },
        "--capacity recorded needs a recorded trace");
    add(
        [](KvSimOptions& o) {
          o.ratios.clear();
          o.capacities = "0";
        },
        "--capacity: ");
    return list;
  }();
  for (const auto& [options, message] : cases) {
    const auto report = KvSim(options, NoProgress);
    EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(report.status().message()), HasSubstr(message));
  }
  KvSimOptions missing;
  missing.trace_path = "/nonexistent/trace";
  EXPECT_EQ(KvSim(missing, NoProgress).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace spindle::cli
