// Replays page selections that a server recorded (--kv-trace) under the memory policy of an
// original system and, with the same fast memory, under the fast tier's.
//   memory_policy_bench TRACE shadowkv|retroinfer|seer_r [--rounds N] [--warmup STEPS]
// Prints one line of JSON per round and policy, which take turns. Microseconds of one thread per
// decode step: `step_us` until attention has all pages, `update_us` for what the policy does beside
// the next layer. `wrong_pages` counts pages that attention was given in place of others.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "bench/memory_policies.h"
#include "kv/sim/recorded_run.h"

namespace spindle::bench {
namespace {

using kv::sim::RecordedRun;
using BenchClock = std::chrono::steady_clock;

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "memory_policy_bench: %s\n", message.c_str());
  std::exit(2);
}

struct Options {
  std::string trace;
  std::string original;
  uint32_t rounds = 1;
  uint32_t warmup = 0;
};

Options ParseOptions(int argc, char** argv) {
  Options options;
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    uint32_t* number = argument == "--rounds"   ? &options.rounds
                       : argument == "--warmup" ? &options.warmup
                                                : nullptr;
    if (number == nullptr) {
      names.push_back(argument);
    } else if (!absl::SimpleAtoi(++i < argc ? argv[i] : "", number)) {
      Fail(argument + " needs a number");
    }
  }
  if (names.size() != 2) {
    Fail("use: memory_policy_bench TRACE shadowkv|retroinfer|seer_r [--rounds N] [--warmup STEPS]");
  }
  options.trace = names[0];
  options.original = names[1];
  return options;
}

// One request whose groups have all chosen in the same steps.
RecordedRun Load(const Options& options) {
  std::ifstream file(options.trace, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  auto run = kv::sim::LoadRecordedRun(
      {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, options.warmup);
  if (!run.ok()) {
    Fail(options.trace + ": " + std::string(run.status().message()));
  }
  const size_t num_groups =
      size_t{run->header.geometry.num_layers} * run->header.geometry.num_kv_heads;
  if (run->num_requests != 1 || run->groups.size() != num_groups) {
    Fail(options.trace + ": not the trace of one request");
  }
  std::sort(run->groups.begin(), run->groups.end(), [](const auto& a, const auto& b) {
    return std::pair(a.layer, a.head) < std::pair(b.layer, b.head);
  });
  for (const kv::sim::RecordedGroup& group : run->groups) {
    if (group.selections.num_steps() != run->groups[0].selections.num_steps() ||
        group.selections.num_steps() <= options.warmup) {
      Fail(options.trace + ": groups differ in their steps, or have no more than the warm-up");
    }
  }
  return *std::move(run);
}

double Microseconds(BenchClock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

void Replay(const RecordedRun& run,
            const HostPages& host,
            const Options& options,
            const char* name,
            MemoryPolicy* policy) {
  const size_t heads = run.header.geometry.num_kv_heads;
  const uint32_t num_steps = run.groups[0].selections.num_steps();
  PageReader reader(host);
  BenchClock::duration in_steps{};
  BenchClock::duration in_updates{};
  uint64_t fetched_before = 0;
  uint64_t read_before = 0;
  for (uint32_t step = 0; step < num_steps; ++step) {
    if (step == options.warmup) {
      in_steps = in_updates = {};
      fetched_before = policy->fetched_bytes();
      read_before = reader.num_read();
    }
    const auto begin = BenchClock::now();
    BenchClock::duration updates{};
    policy->BeginStep();
    for (size_t group = 0; group < run.groups.size(); ++group) {
      policy->Attend(group, run.groups[group].selections.step(step), &reader);
      if ((group + 1) % heads == 0) {
        const auto attended = BenchClock::now();
        policy->AfterLayer();
        updates += BenchClock::now() - attended;
      }
    }
    in_steps += BenchClock::now() - begin - updates;
    in_updates += updates;
  }
  const double counted = num_steps - options.warmup;
  std::printf(
      "{\"policy\": \"%s\", \"step_us\": %.2f, \"update_us\": %.2f, \"fast_bytes\": %llu, "
      "\"fetched_bytes_per_step\": %.0f, \"read_pages_per_step\": %.1f, \"wrong_pages\": %llu}\n",
      name,
      Microseconds(in_steps) / counted,
      Microseconds(in_updates) / counted,
      static_cast<unsigned long long>(policy->fast_bytes()),
      static_cast<double>(policy->fetched_bytes() - fetched_before) / counted,
      static_cast<double>(reader.num_read() - read_before) / counted,
      static_cast<unsigned long long>(reader.num_wrong()));
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  const RecordedRun run = Load(options);
  uint32_t num_pages = 0;
  for (const kv::sim::RecordedGroup& group : run.groups) {
    num_pages = std::max(num_pages, group.selections.num_pages());
  }
  const HostPages host(run.header.geometry, num_pages);
  for (uint32_t round = 0; round < options.rounds; ++round) {
    for (const bool is_original : {round % 2 == 0, round % 2 != 0}) {
      auto original = MakeOriginal(options.original, run, host);
      if (original == nullptr) {
        Fail("'" + options.original + "' is none of shadowkv, retroinfer, seer_r");
      }
      auto policy = is_original ? std::move(original)
                                : MakeFastTier(run.header.geometry, host, original->fast_bytes());
      if (policy == nullptr) {
        Fail("too little fast memory for a ring");
      }
      Replay(run, host, options, is_original ? "original" : "fast tier", policy.get());
    }
  }
  return 0;
}

}  // namespace
}  // namespace spindle::bench

int main(int argc, char** argv) {
  return spindle::bench::Main(argc, argv);
}
