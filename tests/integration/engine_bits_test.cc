// Text must not depend on how it was computed: alone or in a batch, in chunks of any size, with one
// thread or two, from a warm or cold prefix cache, with or without preemption. A real forward pass
// over a small golden model, the whole engine around it.
#include <random>
#include <semaphore>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "formats/model_file.h"
#include "kernels/registry.h"

namespace spindle::engine {
namespace {

struct ServingCase {
  uint32_t chunk_rows = 512;
  uint32_t num_threads = 1;
  uint32_t max_num_seqs = 16;
  uint64_t num_stripes = 400;
  size_t num_prompts = 12;
  uint32_t output_tokens = 80;
  bool one_by_one = false;
};

struct Outcome {
  std::vector<std::vector<TokenId>> tokens;  // per request
  uint64_t preemptions = 0;
  uint64_t cached_tokens = 0;
};

class EngineBits : public ::testing::TestWithParam<const char*> {
 protected:
  static std::unique_ptr<Engine> MakeEngine(const ServingCase& setup, metrics::Registry& registry) {
    const std::string path =
        std::string(SPINDLE_TEST_GOLDEN_DIR) + "/models/" + GetParam() + ".gguf";
    auto file = formats::ModelFile::Open(path);
    EXPECT_TRUE(file.ok()) << file.status();
    auto pool = platform::ComputePool::Create({setup.num_threads, false});
    EXPECT_TRUE(pool.ok()) << pool.status();
    const kernels::KernelTable* kernels = kernels::BestKernels();
    auto model = model::Model::Load(std::shared_ptr<const formats::ModelFile>(*std::move(file)),
                                    {},
                                    **pool,
                                    *kernels,
                                    [](double) {});
    EXPECT_TRUE(model.ok()) << model.status();
    const model::ModelConfig& config = (*model)->config();
    kv::KvGeometry geometry;
    geometry.num_layers = config.num_layers;
    geometry.num_kv_heads = config.num_kv_heads;
    geometry.head_dim = config.head_dim;
    auto store = kv::KvStore::Create({setup.num_stripes * geometry.stripe_bytes(), true}, geometry);
    EXPECT_TRUE(store.ok()) << store.status();
    EngineOptions options;
    options.max_num_seqs = setup.max_num_seqs;
    options.max_num_batched_tokens = setup.chunk_rows;
    options.max_queue_tokens = 1U << 20;
    options.stream_capacity_events = 4096;
    auto engine = Engine::Create(options,
                                 std::move(*model),
                                 {.host = std::move(*store)},
                                 std::move(*pool),
                                 *kernels,
                                 {},
                                 registry,
                                 SteadyClock());
    EXPECT_TRUE(engine.ok()) << engine.status();
    return std::move(*engine);
  }

  static std::shared_ptr<OutputStream> Submit(Engine& engine,
                                              const ServingCase& setup,
                                              const std::vector<TokenId>& prompt,
                                              size_t index) {
    EngineRequest request;
    request.id = std::to_string(index);
    request.prompt = prompt;
    request.sampling.max_tokens = setup.output_tokens;
    request.sampling.temperature = index % 2 == 0 ? 0.0F : 1.0F;
    request.sampling.seed = index;
    request.may_stop_early = false;
    SubmitResult result = engine.Submit(std::move(request));
    EXPECT_TRUE(std::holds_alternative<std::shared_ptr<OutputStream>>(result));
    return std::get<std::shared_ptr<OutputStream>>(result);
  }

  static void Collect(OutputStream& stream, Outcome* outcome) {
    std::counting_semaphore<> ready(0);
    stream.SetReadyCallback([&ready] { ready.release(); });
    std::vector<TokenId> tokens;
    for (bool done = false; !done;) {
      StreamEvent event;
      if (!stream.Next(&event)) {
        ready.acquire();
        continue;
      }
      if (event.kind == StreamEvent::Kind::kToken) {
        tokens.push_back(event.token);
      }
      done = event.kind == StreamEvent::Kind::kDone;
      if (done) {
        EXPECT_TRUE(event.status.ok()) << event.status;
        outcome->preemptions += event.stats.preemptions;
        outcome->cached_tokens += event.stats.cached_tokens;
      }
    }
    stream.SetReadyCallback({});
    outcome->tokens.push_back(std::move(tokens));
  }

  static Outcome Generate(Engine& engine, const ServingCase& setup) {
    Outcome outcome;
    std::vector<std::shared_ptr<OutputStream>> streams;
    std::vector<std::vector<TokenId>> prompts = Prompts(engine.model_config().vocab_size);
    prompts.resize(setup.num_prompts);
    for (size_t i = 0; i < prompts.size(); ++i) {
      streams.push_back(Submit(engine, setup, prompts[i], i));
      if (setup.one_by_one) {
        Collect(*streams.back(), &outcome);
      }
    }
    if (!setup.one_by_one) {
      for (const auto& stream : streams) {
        Collect(*stream, &outcome);
      }
    }
    return outcome;
  }

  static Outcome GenerateCold(const ServingCase& setup) {
    metrics::Registry registry{metrics::Labels{{"model_name", "golden"}}};
    const std::unique_ptr<Engine> engine = MakeEngine(setup, registry);
    return Generate(*engine, setup);
  }

  // Twelve prompts of 97 to 317 tokens; some share their beginning.
  static std::vector<std::vector<TokenId>> Prompts(uint32_t vocab_size) {
    std::mt19937 random(11);
    std::vector<std::vector<TokenId>> prompts(12);
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (i % 3 == 2) {
        prompts[i].assign(prompts[i - 1].begin(), prompts[i - 1].begin() + 90);
      }
      while (prompts[i].size() < 97 + 20 * i) {
        prompts[i].push_back(static_cast<TokenId>(random() % vocab_size));
      }
    }
    return prompts;
  }
};

TEST_P(EngineBits, TextDoesNotDependOnHowItWasComputed) {
  const Outcome alone = GenerateCold({.one_by_one = true});
  EXPECT_EQ(GenerateCold({}).tokens, alone.tokens) << "batch of 12";
  EXPECT_EQ(GenerateCold({.chunk_rows = 64}).tokens, alone.tokens) << "chunks of 64";
  EXPECT_EQ(GenerateCold({.chunk_rows = 2048}).tokens, alone.tokens) << "chunks of 2048";
  EXPECT_EQ(GenerateCold({.num_threads = 2}).tokens, alone.tokens) << "two threads";
}

TEST_P(EngineBits, WarmCacheEqualsCold) {
  metrics::Registry registry{metrics::Labels{{"model_name", "golden"}}};
  const std::unique_ptr<Engine> engine = MakeEngine({}, registry);
  const Outcome cold = Generate(*engine, {});
  const Outcome warm = Generate(*engine, {});
  EXPECT_GT(warm.cached_tokens, cold.cached_tokens + 1000);
  EXPECT_EQ(warm.tokens, cold.tokens);
}

TEST_P(EngineBits, PreemptionChangesNothing) {
  // 13 stripes admit the first two prompts with 256 tokens of output each, but not with 330.
  const ServingCase roomy = {.num_prompts = 3, .output_tokens = 330, .one_by_one = true};
  const ServingCase tight = {.num_stripes = 13, .num_prompts = 3, .output_tokens = 330};
  // Whether the two overlap long enough is a matter of timing; a run without preemption shows
  // nothing.
  Outcome preempted;
  for (int attempt = 0; attempt < 50 && preempted.preemptions == 0; ++attempt) {
    preempted = GenerateCold(tight);
  }
  EXPECT_GT(preempted.preemptions, 0U);
  EXPECT_EQ(preempted.tokens, GenerateCold(roomy).tokens);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineBits, ::testing::Values("llama", "qwen3"));

}  // namespace
}  // namespace spindle::engine
