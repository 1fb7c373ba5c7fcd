// Random worlds on a virtual clock: submissions, cancels, slow and vanished readers, early stops,
// tiny memories, timeouts. Whatever happens, every request ends exactly once, and what it says is
// what the fake model says after its prompt, however it was batched, cached or preempted.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <random>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "base/read_file.h"
#include "engine/end_cause.h"
#include "engine/engine_core.h"
#include "kv/sim/request_trace.h"
#include "support/engine_world.h"
#include "support/random_seed.h"
#include "support/temp_folder.h"

namespace spindle::engine {
namespace {

using testing::Client;
using testing::EngineWorld;
using testing::ExpectedTokens;
using testing::FakeModel;
using testing::MakePrompt;
using testing::Received;

enum class Behaviour { kReads, kReadsSlowly, kNeverReads, kCancels, kVanishes, kStops };

struct Actor {
  EngineRequest request;
  Behaviour behaviour = Behaviour::kReads;
  uint32_t act_after = 0;  // tokens of choice 0
  uint64_t submit_at = 0;  // step
  bool acted = false;
  bool refused = false;
  std::unique_ptr<Client> client;
};

struct Totals {
  uint64_t completed = 0;
  uint64_t preemptions = 0;
  uint64_t cached_tokens = 0;
  uint64_t stalls = 0;
  std::array<uint64_t, 12> causes{};
};

class World {
 public:
  // Every fourth world is a storm: outputs longer than what admission reserves, in little memory.
  explicit World(uint64_t seed) : seed_(seed), random_(seed), storm_(seed % 4 == 0) {}

  void Run(Totals* totals) {
    EngineWorld::Options options = RandomOptions();
    const test::TempFolder folder;
    std::unique_ptr<kv::KvTrace> trace;
    if (seed_ % 8 == 1) {
      trace = kv::KvTrace::Create(
                  {.path = folder.path() + "/run", .max_file_bytes = kv::kMaxAccessTraceBytes})
                  .value();
      options.trace = trace.get();
    }
    EngineWorld world(options);
    MakeActors();
    Drive(world);
    if (trace != nullptr) {
      CheckTrace(*trace, folder.path() + "/run-requests.jsonl");
    }
    for (Actor& actor : actors_) {
      Check(actor, options, totals);
    }
    ASSERT_TRUE(world.core.CheckIntegrity().ok()) << world.core.CheckIntegrity();
    EXPECT_EQ(world.store->Stats().owned_stripes, 0U);
    EXPECT_EQ(world.inbox->waiting().requests, 0U);
    totals->stalls += static_cast<uint64_t>(world.metrics.stream_stalls.Value());
    world.store->ResetPrefixCache();
    EXPECT_EQ(world.store->Stats().free_stripes, world.store->Stats().capacity_stripes);
  }

 private:
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }

  bool Chance(uint32_t one_in) { return Below(one_in) == 0; }

  EngineWorld::Options RandomOptions() {
    EngineWorld::Options options;
    options.engine.max_num_seqs = 1 + Below(8);
    options.engine.max_num_batched_tokens = 64 + Below(400);
    options.engine.chunked_prefill = !Chance(6);
    options.engine.max_queue_size = 2 + Below(40);
    options.engine.max_queue_tokens = 500 + Below(20000);
    options.engine.policy = Chance(3) ? SchedulingPolicy::kFcfs : SchedulingPolicy::kPriority;
    options.engine.priority_aging = std::chrono::milliseconds(Below(2) * 200);
    options.engine.stream_capacity_events = 1 + Below(40);
    options.engine.stream_stall_timeout = std::chrono::milliseconds(300 + Below(2000));
    options.engine.prefix_cache = !Chance(5);
    if (Chance(4)) {
      options.engine.queue_timeout = std::chrono::milliseconds(500);
    }
    if (Chance(4)) {
      options.engine.request_timeout = std::chrono::milliseconds(3000);
    }
    options.num_stripes = Chance(2) ? 6 + Below(10) : 30 + Below(60);
    options.max_model_len = 1200;
    if (storm_) {
      options.num_stripes = 14 + Below(10);
      options.engine.max_num_seqs = 3 + Below(4);
    }
    return options;
  }

  void MakeActors() {
    const uint32_t count = 8 + Below(20);
    for (uint32_t i = 0; i < count; ++i) {
      Actor actor;
      EngineRequest& request = actor.request;
      request.id = "r" + std::to_string(i);
      request.prompt = RandomPrompt();
      request.sender = Chance(3) ? "" : std::string(1, static_cast<char>('a' + Below(3)));
      SamplingParams& sampling = request.sampling;
      sampling.temperature = Chance(2) ? 0.0F : 1.0F;
      sampling.seed = random_();
      sampling.top_p = Chance(2) ? 1.0F : 0.9F;
      sampling.frequency_penalty = Chance(3) ? 0.5F : 0.0F;
      sampling.num_choices = Chance(4) ? 1 + Below(5) : 1;
      sampling.max_tokens = Chance(12) ? 0 : 1 + Below(Chance(3) ? 200 : 60);
      sampling.min_tokens = Chance(4) ? Below(10) : 0;
      sampling.ignore_eos = storm_ || Chance(4);
      if (storm_ && Chance(2)) {
        sampling.num_choices = 1;
        sampling.max_tokens = 350 + Below(350);
      }
      if (Chance(4)) {
        sampling.logprobs = Below(4);
      }
      if (Chance(8)) {
        sampling.prompt_logprobs = Below(3);
      }
      request.priority = static_cast<int32_t>(Below(201)) - 100;
      request.cache_prompt = !Chance(6);
      request.may_stop_early = Chance(2);
      request.max_tokens_given = Chance(2);
      request.report_progress = Chance(3);
      actor.behaviour = Chance(2) ? Behaviour::kReads : static_cast<Behaviour>(Below(6));
      if (actor.behaviour == Behaviour::kStops) {
        request.may_stop_early = true;
      }
      actor.act_after = 1 + Below(20);
      actor.submit_at = Below(120);
      actors_.push_back(std::move(actor));
    }
  }

  // A few common beginnings, so that caches and twins matter.
  std::vector<TokenId> RandomPrompt() {
    const uint32_t shared = Chance(3) ? 0 : Below(5) * 64 + (Chance(2) ? Below(64) : 0);
    std::vector<TokenId> prompt = MakePrompt(shared, Below(2));
    const std::vector<TokenId> tail = MakePrompt(1 + Below(Chance(4) ? 250 : 40), random_());
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    return prompt;
  }

  void Drive(EngineWorld& world) {
    uint64_t step = 0;
    bool all_over = false;
    while (!all_over) {
      ASSERT_LT(++step, 60000U) << "no end in sight: " << Describe(world);
      for (Actor& actor : actors_) {
        if (actor.client == nullptr && !actor.refused && step >= actor.submit_at) {
          Submit(world, actor);
        }
      }
      const EngineCore::Outcome outcome = world.core.Step();
      if (step % 16 == 0) {
        const absl::Status status = world.core.CheckIntegrity();
        ASSERT_TRUE(status.ok()) << status;
      }
      all_over = true;
      for (Actor& actor : actors_) {
        Act(actor);
        all_over = all_over && (actor.refused || actor.client != nullptr);
      }
      all_over = all_over && world.inbox->Active().empty();
      if (!outcome.worked) {
        world.clock.Advance(std::chrono::milliseconds(5));
        if (outcome.wake_at.has_value() && Chance(2) && *outcome.wake_at > world.clock.Now()) {
          world.clock.Advance(*outcome.wake_at - world.clock.Now());
        }
      }
    }
  }

  // Every accepted request is there once, however it ended.
  void CheckTrace(kv::KvTrace& trace, const std::string& path) {
    trace.Finish();
    const auto requests =
        kv::sim::ParseRequestTrace(ReadFile(path, kv::sim::kMaxTraceBytes).value());
    ASSERT_TRUE(requests.ok()) << requests.status();
    std::multiset<uint32_t> expected;
    for (const Actor& actor : actors_) {
      if (!actor.refused) {
        expected.insert(static_cast<uint32_t>(actor.request.prompt.size()));
      }
    }
    std::multiset<uint32_t> found;
    for (const kv::sim::TraceRequest& request : requests->requests) {
      found.insert(request.input_tokens);
    }
    EXPECT_EQ(found, expected);
  }

  // What is still active, for a failure's message.
  static std::string Describe(const EngineWorld& world) {
    std::string text = std::to_string(world.core.Load().running) + " running, " +
                       std::to_string(world.core.Load().waiting) + " waiting;";
    for (const auto& stream : world.inbox->Active()) {
      text += " " + stream->info().id + " phase " +
              std::to_string(static_cast<int>(stream->progress().phase.load())) + " generated " +
              std::to_string(stream->progress().generated_tokens.load()) + " room " +
              std::to_string(stream->Room());
    }
    return text;
  }

  void Submit(EngineWorld& world, Actor& actor) {
    if (Chance(10)) {
      actor.request.deadline = world.clock.Now() + std::chrono::milliseconds(1 + Below(1500));
    }
    actor.client = world.Submit(actor.request);
    actor.refused = actor.client == nullptr;
  }

  void Act(Actor& actor) {
    if (actor.client == nullptr || actor.client->dropped()) {
      return;
    }
    Client& client = *actor.client;
    const auto num_tokens = static_cast<uint32_t>(client.received.tokens[0].size());
    switch (actor.behaviour) {
      case Behaviour::kReads:
        client.Read();
        break;
      case Behaviour::kReadsSlowly:
        client.Read(Below(3));
        break;
      case Behaviour::kNeverReads:
        break;
      case Behaviour::kCancels:
        client.Read(1 + Below(4));
        if (!actor.acted && num_tokens >= actor.act_after) {
          actor.acted = true;
          client.stream().Cancel(CancelCause::kAdmin);
        }
        break;
      case Behaviour::kVanishes:
        client.Read();
        if (num_tokens >= actor.act_after) {
          client.Drop();
        }
        break;
      case Behaviour::kStops:
        ReadUntilStop(actor);
        break;
    }
  }

  // StopChoice comes before the next event is taken.
  void ReadUntilStop(Actor& actor) {
    Client& client = *actor.client;
    while (client.Read(1) == 1) {
      if (!actor.acted && client.received.tokens[0].size() == actor.act_after &&
          !client.received.finished[0].has_value()) {
        actor.acted = true;
        client.stream().StopChoice(0, actor.act_after);
      }
    }
  }

  void Check(Actor& actor, const EngineWorld::Options& options, Totals* totals) {
    if (actor.refused || actor.client->dropped()) {
      return;
    }
    actor.client->Read();
    const Received& received = actor.client->received;
    SCOPED_TRACE(::testing::Message() << "seed " << seed_ << " request " << actor.request.id);
    ASSERT_EQ(received.num_done, 1U);
    const StreamEvent& done = *received.done;
    EXPECT_EQ(done.status, EndStatusOf(done.cause));
    ++totals->causes[static_cast<size_t>(done.cause)];
    totals->preemptions += done.stats.preemptions;
    totals->cached_tokens += done.stats.cached_tokens;
    EXPECT_LT(done.stats.cached_tokens, actor.request.prompt.size());
    uint32_t generated = 0;
    for (uint32_t choice = 0; choice < received.tokens.size(); ++choice) {
      EXPECT_EQ(received.finished[choice].has_value(), received.started);
      CheckTokens(actor, choice, done.cause);
      generated += static_cast<uint32_t>(received.tokens[choice].size());
    }
    if (actor.behaviour != Behaviour::kStops) {
      EXPECT_EQ(done.stats.generated_tokens, generated);
    }
    if (done.cause == EndCause::kCompleted) {
      ++totals->completed;
      CheckPromptLogprobs(actor.request, received);
    }
    if (done.cause == EndCause::kOutOfMemory) {
      const auto& longest = *std::ranges::max_element(
          received.tokens, {}, [](const std::vector<TokenId>& tokens) { return tokens.size(); });
      EXPECT_GT(kv::KvStore::StripesFor(actor.request.prompt.size() + longest.size() + 1) + 1,
                options.num_stripes);
    }
    EXPECT_NE(done.cause, EndCause::kInternal);
  }

  static void CheckTokens(const Actor& actor, uint32_t choice, EndCause cause) {
    const Received& received = actor.client->received;
    const std::vector<TokenId> expected =
        ExpectedTokens(actor.request.prompt, actor.request.sampling, choice);
    const std::vector<TokenId>& tokens = received.tokens[choice];
    ASSERT_LE(tokens.size(), expected.size());
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin())) << "choice " << choice;
    const bool stopped = actor.acted && actor.behaviour == Behaviour::kStops && choice == 0;
    if (cause == EndCause::kCompleted && !stopped) {
      EXPECT_EQ(tokens.size(), expected.size()) << "choice " << choice;
    }
    if (cause == EndCause::kCompleted && stopped) {
      EXPECT_GE(tokens.size(), actor.act_after);
    }
  }

  static void CheckPromptLogprobs(const EngineRequest& request, const Received& received) {
    if (!request.sampling.prompt_logprobs.has_value()) {
      EXPECT_TRUE(received.prompt_logprobs.empty());
      return;
    }
    ASSERT_EQ(received.prompt_logprobs.size(), request.prompt.size());
    std::vector<float> logits(testing::kFakeVocab);
    uint64_t hash = 0;
    for (size_t i = 0; i < request.prompt.size(); ++i) {
      const StreamEvent& event = received.prompt_logprobs[i];
      ASSERT_EQ(event.token, request.prompt[i]);
      if (i == 0) {
        EXPECT_TRUE(std::isnan(event.logprob));
      } else {
        FakeModel::Logits(hash, logits);
        double sum = 0.0;
        for (const float x : logits) {
          sum += std::exp(static_cast<double>(x));
        }
        const auto token = static_cast<size_t>(request.prompt[i]);
        ASSERT_NEAR(static_cast<double>(event.logprob),
                    static_cast<double>(logits[token]) - std::log(sum),
                    1e-5);
        ASSERT_EQ(event.top.size(), *request.sampling.prompt_logprobs);
      }
      hash = FakeModel::Append(hash, request.prompt[i]);
    }
  }

  const uint64_t seed_;
  std::mt19937_64 random_;
  const bool storm_;
  std::vector<Actor> actors_;
};

TEST(EngineSimulation, RandomWorldsEndWellAndSayTheSame) {
  constexpr uint64_t kWorlds = 320;
  const uint64_t only = test::RandomSeed(0);  // 0: all worlds
  Totals totals;
  const uint64_t first = only != 0 ? only : 1;
  const uint64_t last = only != 0 ? only : kWorlds;
  for (uint64_t seed = first; seed <= last && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    World(seed).Run(&totals);
  }
  if (only == 0) {
    // The worlds exercise what they are meant to.
    EXPECT_GT(totals.completed, 1000U);
    EXPECT_GT(totals.preemptions, 50U);
    EXPECT_GT(totals.cached_tokens, 10000U);
    EXPECT_GT(totals.stalls, 100U);
    for (const EndCause cause : {EndCause::kAdmin,
                                 EndCause::kDeadline,
                                 EndCause::kSlowReader,
                                 EndCause::kRequestTimeout,
                                 EndCause::kQueueTimeout,
                                 EndCause::kDisplaced,
                                 EndCause::kOutOfMemory}) {
      EXPECT_GT(totals.causes[static_cast<size_t>(cause)], 0U)
          << "no request ended with cause " << static_cast<int>(cause);
    }
  }
}

}  // namespace
}  // namespace spindle::engine
