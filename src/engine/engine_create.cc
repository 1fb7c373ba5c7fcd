// Apart from engine.cc, so that tests with a fake forward pass need not link the model.
#include <utility>

#include "engine/engine.h"
#include "engine/model_runner.h"

namespace spindle::engine {
absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       std::unique_ptr<model::Model> model,
                                                       kv::KvTiers kv,
                                                       std::unique_ptr<platform::ComputePool> pool,
                                                       const kernels::KernelTable& kernels,
                                                       std::vector<TokenId> end_tokens,
                                                       metrics::Registry& registry,
                                                       const Clock& clock) {
  const sparse::FastMemory fast{.tier = kv.fast.get(),
                                .link = kv.link.get(),
                                .recorder = kv.trace == nullptr ? nullptr : kv.trace->pages()};
  auto runner =
      std::make_unique<ModelRunner>(std::move(model), std::move(pool), kernels, *kv.host, fast);
  return CreateWithRunner(
      options, std::move(runner), std::move(kv), kernels, std::move(end_tokens), registry, clock);
}

}  // namespace spindle::engine
