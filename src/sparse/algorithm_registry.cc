#include "sparse/algorithm_registry.h"

#include "sparse/dense/dense_algorithm.h"
#include "sparse/quest/quest_algorithm.h"
#include "sparse/retroinfer/retroinfer_algorithm.h"
#include "sparse/shadowkv/shadowkv_algorithm.h"
#include "sparse/streaming/streaming_algorithm.h"

namespace spindle::sparse {

std::span<const std::shared_ptr<const SparseAlgorithm>> Algorithms() {
  static const std::shared_ptr<const SparseAlgorithm> algorithms[] = {
      std::make_shared<DenseAlgorithm>(),
      std::make_shared<StreamingAlgorithm>(),
      std::make_shared<QuestAlgorithm>(),
      std::make_shared<ShadowKvAlgorithm>(),
      std::make_shared<RetroInferAlgorithm>(),
  };
  return algorithms;
}

std::shared_ptr<const SparseAlgorithm> FindAlgorithm(
    std::string_view name, std::span<const std::shared_ptr<const SparseAlgorithm>> among) {
  for (const std::shared_ptr<const SparseAlgorithm>& algorithm : among) {
    if (algorithm->name() == name) {
      return algorithm;
    }
  }
  return nullptr;
}

}  // namespace spindle::sparse
