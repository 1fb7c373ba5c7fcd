// The engine's core on the test's own thread: a virtual clock, the fake forward pass, and streams
// that are read when the test says so.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "engine/engine_core.h"
#include "engine/front_desk.h"
#include "metrics/metrics.h"
#include "sampling/sampler.h"
#include "support/fake_runner.h"
#include "support/logit_kernels.h"

namespace spindle::testing {

// What arrived on a stream.
struct Received {
  std::vector<engine::StreamEvent> events;
  std::vector<std::vector<TokenId>> tokens;  // per choice
  std::vector<std::optional<engine::FinishReason>> finished;
  std::vector<engine::StreamEvent> prompt_logprobs;
  std::optional<engine::StreamEvent> done;
  uint32_t num_done = 0;
  bool started = false;
};

// One client: its stream and what it read.
class Client {
 public:
  Client(std::shared_ptr<engine::OutputStream> stream, uint32_t num_choices)
      : stream_(std::move(stream)) {
    received.tokens.resize(num_choices);
    received.finished.resize(num_choices);
  }

  // Reads up to `max_events`; returns how many.
  size_t Read(size_t max_events = SIZE_MAX) {
    size_t count = 0;
    engine::StreamEvent event;
    while (count < max_events && stream_ != nullptr && stream_->Next(&event)) {
      Take(event);
      ++count;
    }
    return count;
  }

  [[nodiscard]] bool done() const { return received.done.has_value(); }

  engine::OutputStream& stream() { return *stream_; }

  void Drop() { stream_.reset(); }

  [[nodiscard]] bool dropped() const { return stream_ == nullptr; }

  Received received;

 private:
  void Take(const engine::StreamEvent& event) {
    using Kind = engine::StreamEvent::Kind;
    SPINDLE_CHECK(!received.done.has_value());
    switch (event.kind) {
      case Kind::kStarted:
        SPINDLE_CHECK(received.events.empty());
        received.started = true;
        break;
      case Kind::kToken:
        SPINDLE_CHECK(!received.finished[event.choice].has_value());
        received.tokens[event.choice].push_back(event.token);
        break;
      case Kind::kFinished:
        SPINDLE_CHECK(!received.finished[event.choice].has_value());
        received.finished[event.choice] = event.reason;
        break;
      case Kind::kPromptLogprob:
        received.prompt_logprobs.push_back(event);
        break;
      case Kind::kDone:
        received.done = event;
        ++received.num_done;
        break;
      case Kind::kPrefill:
        break;
    }
    received.events.push_back(event);
  }

  std::shared_ptr<engine::OutputStream> stream_;
};

class EngineWorld {
 public:
  struct Options {
    engine::EngineOptions engine;
    uint64_t num_stripes = 256;
    uint32_t max_model_len = 4096;
    std::optional<kv::disk::DiskOptions> disk = std::nullopt;  // a disk tier
    kv::disk::DiskFiles* files = nullptr;                      // of the disk tier
    kv::SessionOptions sessions = {};
    Digest fingerprint{};          // of the model, as the disk tier sees it
    kv::KvTrace* trace = nullptr;  // of requests; outlives the world
  };

  explicit EngineWorld(const Options& options)
      : options_(options),
        registry(metrics::Labels{{"model_name", "fake"}}),
        store(MakeFakeStore(options.num_stripes, options.engine.prefix_cache)),
        disk(MakeDisk()),
        runner(*store, {options.max_model_len, &clock}),
        end_tokens_{kFakeEndToken},
        metrics(registry,
                *store,
                {options.max_model_len, options.engine.prefix_cache, &options_.engine.algorithms}),
        throughput(options.engine.max_num_seqs),
        inbox(std::make_shared<engine::Inbox>(options_.engine)),
        desk(options_.engine,
             runner,
             *store,
             /*fast=*/nullptr,
             options_.trace == nullptr ? nullptr : &options_.trace->requests(),
             inbox,
             throughput,
             clock),
        core({options_.engine,
              runner,
              *store,
              disk.get(),
              /*fast=*/{},
              options_.trace,
              NaiveLogitKernels(),
              end_tokens_,
              metrics,
              *inbox,
              throughput,
              clock}) {
    SPINDLE_CHECK(core.Reserve().ok());
  }

  ~EngineWorld() {
    core.EndAll(engine::EndCause::kShutdown);
    inbox->Stop();
  }

  EngineWorld(const EngineWorld&) = delete;
  EngineWorld& operator=(const EngineWorld&) = delete;

  // The disk tier's end of life, as Engine does it; the world cannot be used afterwards.
  void CloseDisk() { SPINDLE_CHECK(disk->Close().ok()); }

  // The client, or nothing when refused (see `refusal`).
  std::unique_ptr<Client> Submit(engine::EngineRequest request) {
    if (request.id.empty()) {
      request.id = "request-" + std::to_string(next_id_++);
    }
    const uint32_t num_choices = request.sampling.num_choices;
    engine::SubmitResult result = desk.Submit(std::move(request));
    if (auto* refused = std::get_if<engine::SubmitRefusal>(&result)) {
      refusal = *refused;
      return nullptr;
    }
    return std::make_unique<Client>(
        std::get<std::shared_ptr<engine::OutputStream>>(std::move(result)), num_choices);
  }

  // Steps until the engine has nothing to do, reading the clients after each step.
  template <typename... Clients>
  void RunUntilIdle(Clients&... clients) {
    for (int step = 0; step < 200000; ++step) {
      const bool worked = core.Step().worked;
      const size_t read = (size_t{0} + ... + clients->Read());
      if (!worked && read == 0) {
        return;
      }
    }
    SPINDLE_CHECK(false && "the engine never became idle");
  }

 private:
  std::unique_ptr<kv::DiskTier> MakeDisk() {
    if (!options_.disk.has_value()) {
      return nullptr;
    }
    auto tier =
        kv::DiskTier::Open({.sessions = options_.sessions},
                           *options_.disk,
                           {.fingerprint = options_.fingerprint, .geometry = store->geometry()},
                           *options_.files,
                           clock,
                           *store);
    SPINDLE_CHECK(tier.ok());
    return *std::move(tier);
  }

  const Options options_;
  uint64_t next_id_ = 0;

 public:
  VirtualClock clock;
  metrics::Registry registry;
  std::unique_ptr<kv::KvStore> store;
  std::unique_ptr<kv::DiskTier> disk;
  FakeRunner runner;

 private:
  const std::vector<TokenId> end_tokens_;

 public:
  engine::EngineMetrics metrics;
  engine::Throughput throughput;
  std::shared_ptr<engine::Inbox> inbox;
  engine::FrontDesk desk;
  engine::EngineCore core;
  std::optional<engine::SubmitRefusal> refusal;
};

// What the fake model says after `prompt` under `params`, computed without an engine.
inline std::vector<TokenId> ExpectedTokens(const std::vector<TokenId>& prompt,
                                           const SamplingParams& params,
                                           uint32_t choice) {
  const std::vector<TokenId> end_tokens = {kFakeEndToken};
  sampling::Sampler sampler(NaiveLogitKernels(), kFakeVocab, 32);
  sampling::SamplerState state(params, end_tokens, choice, prompt, kFakeVocab);
  uint64_t hash = FakeModel::Hash(prompt);
  std::vector<TokenId> generated;
  std::vector<float> logits(kFakeVocab);
  while (generated.size() < params.max_tokens) {
    FakeModel::Logits(hash, logits);
    const auto scored = sampler.Sample(state, prompt.size() + generated.size(), logits);
    SPINDLE_CHECK(scored.ok());
    state.Accept(scored->token);
    hash = FakeModel::Append(hash, scored->token);
    generated.push_back(scored->token);
    if (state.IsStop(scored->token)) {
      break;
    }
  }
  return generated;
}

// Tokens of a prompt, different for every seed.
inline std::vector<TokenId> MakePrompt(size_t size, uint64_t seed) {
  std::vector<TokenId> prompt(size);
  for (size_t i = 0; i < size; ++i) {
    prompt[i] = static_cast<TokenId>(1 + MixBits(seed * 1000003 + i) % (kFakeVocab - 1));
  }
  return prompt;
}

inline engine::EngineRequest MakeRequest(std::vector<TokenId> prompt, uint32_t max_tokens) {
  engine::EngineRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0.0F;
  request.sampling.max_tokens = max_tokens;
  return request;
}

}  // namespace spindle::testing
