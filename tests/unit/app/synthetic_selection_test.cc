// What the server decodes over and what the simulator replays are the same pages.
#include "app/synthetic_selection.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "base/read_file.h"
#include "cli/kv_sim.h"
#include "kv/sim/recorded_run.h"
#include "sparse/run_builder.h"
#include "support/temp_folder.h"

namespace spindle::app {
namespace {

constexpr uint32_t kPrompt = 500;
constexpr uint32_t kSteps = 300;  // the schedule begins anew in between

TEST(SyntheticDecode, ReadsThePagesThatTheSimulatorReplays) {
  const kv::KvGeometry geometry{.num_layers = 3, .num_kv_heads = 2, .head_dim = 64};
  const auto decode = MakeSyntheticDecode({.profile = "medium", .pages = 8}, geometry, 1024);
  ASSERT_TRUE(decode.ok()) << decode.status();

  const test::TempFolder folder;
  cli::KvSimOptions options;
  options.synthetic = "medium";
  options.policies = "bucketed";
  options.ratios = "1";
  options.num_seeds = 1;
  options.num_layers = geometry.num_layers;
  options.num_heads = geometry.num_kv_heads;
  options.num_pages = 1024 / 16;
  options.selected_pages = 8;
  options.num_steps = kSteps;
  options.served_prompt_tokens = kPrompt;
  options.save_trace_path = folder.path() + "/trace";
  const auto report = cli::KvSim(options, [](double /*fraction*/) {});
  ASSERT_TRUE(report.ok()) << report.status();
  const std::string bytes = ReadFile(options.save_trace_path, uint64_t{1} << 30).value();
  const auto run =
      kv::sim::LoadRecordedRun({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, 0);
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_EQ(run->groups.size(), 6U);

  sparse::Selection selection;
  std::vector<uint32_t> pages;
  sparse::SelectWorkspace workspace(*kernels::BestKernels());
  for (const kv::sim::RecordedGroup& group : run->groups) {
    ASSERT_EQ(group.selections.num_steps(), kSteps);
    for (uint32_t step = 0; step < kSteps; ++step) {
      selection.Clear();
      decode->policy->algorithm().Select({.position = kPrompt + step,
                                          .decode_step = step,
                                          .layer = LayerIdx(group.layer),
                                          .head = KvHeadIdx(group.head)},
                                         workspace,
                                         &selection);
      pages.clear();
      sparse::AppendPages(geometry, selection.tiles, &pages);
      const auto replayed = group.selections.step(step);
      ASSERT_EQ(pages, std::vector<uint32_t>(replayed.begin(), replayed.end()))
          << "layer " << group.layer << ", head " << int{group.head} << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace spindle::app
