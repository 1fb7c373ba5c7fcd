#include "sparse/algorithm_registry.h"

#include <vector>

#include "sparse/dense/dense_algorithm.h"
#include "sparse/quest/quest_algorithm.h"
#include "sparse/retroinfer/retroinfer_algorithm.h"
#include "sparse/shadowkv/shadowkv_algorithm.h"
#include "sparse/streaming/streaming_algorithm.h"

namespace spindle::sparse {
namespace {

using AlgorithmList = std::vector<std::shared_ptr<const SparseAlgorithm>>;

AlgorithmList Make(IndexType index_type) {
  return {
      std::make_shared<DenseAlgorithm>(),
      std::make_shared<StreamingAlgorithm>(),
      std::make_shared<QuestAlgorithm>(index_type),
      std::make_shared<ShadowKvAlgorithm>(ShadowKvAlgorithm::kDefaultOutlierChunks, index_type),
      std::make_shared<RetroInferAlgorithm>(index_type),
  };
}

}  // namespace

std::span<const std::shared_ptr<const SparseAlgorithm>> Algorithms(IndexType index_type) {
  static const AlgorithmList bf16 = Make(IndexType::kBf16);
  static const AlgorithmList int8 = Make(IndexType::kInt8);
  return index_type == IndexType::kInt8 ? int8 : bf16;
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
