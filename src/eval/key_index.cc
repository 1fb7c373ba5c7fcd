#include "eval/key_index.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/prefix_key.h"
#include "base/status_macros.h"
#include "kernels/codes.h"

namespace spindle::eval {
namespace {

void CopyKey(const kernels::StripeKeys& keys, uint32_t lane, uint16_t* to) {
  const uint8_t* const key = kernels::KeyOf(keys, lane);
  if (keys.type == DType::kBF16) {
    std::memcpy(to, key, keys.head_dim * sizeof(uint16_t));
    return;
  }
  for (uint32_t i = 0; i < keys.head_dim; ++i) {
    float value = 0;
    std::memcpy(&value, key + i * sizeof(value), sizeof(value));
    to[i] = kernels::FloatToBf16(value);
  }
}

// Of products q·k.
void SoftmaxInPlace(std::span<float> scores, float scale, float softcap) {
  for (float& score : scores) {
    score *= scale;
    score = softcap > 0 ? softcap * std::tanh(score / softcap) : score;
  }
  const float largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (float& score : scores) {
    score = std::exp(score - largest);
    sum += score;
  }
  const auto factor = static_cast<float>(1.0 / sum);
  for (float& score : scores) {
    score *= factor;
  }
}

}  // namespace

KeyIndex::KeyIndex(const kv::KvGeometry& geometry,
                   std::shared_ptr<const sparse::SparseAlgorithm> inner)
    : inner_(std::move(inner)),
      inner_bytes_(inner_ == nullptr ? 0 : inner_->index_bytes(geometry)),
      key_bytes_(
          inner_ != nullptr && inner_->index_unit() != sparse::IndexUnit::kStripe
              ? 0
              : static_cast<uint32_t>(kStripeTokens * geometry.head_dim * sizeof(uint16_t))) {}

int KeyIndex::Build(const sparse::IndexJob& job, const kernels::KernelTable& kernels) const {
  if (inner_ != nullptr && inner_bytes_ > 0) {
    if (const int code = inner_->BuildIndex(job, kernels); code != kernels::kOk) {
      return code;
    }
  }
  auto* const keys = reinterpret_cast<uint16_t*>(job.index + inner_bytes_);
  for (uint32_t lane = job.lane_begin; lane < job.lane_end; ++lane) {
    CopyKey(job.keys, lane, keys + size_t{lane} * job.keys.head_dim);
  }
  return kernels::kOk;
}

void KeyIndex::ComputeMass(const sparse::SelectJob& job, sparse::SelectWorkspace& workspace) const {
  const uint32_t num_tokens = job.num_tokens();
  workspace.query.assign(job.q, job.q + size_t{job.group} * job.head_dim);
  workspace.scores.resize(size_t{job.group} * num_tokens);
  const kernels::ScorePartitionsArgs args{.blobs = job.index.stripes.data(),
                                          .offset = job.index.offset + inner_bytes_,
                                          .vectors = {.count = kStripeTokens, .dim = job.head_dim},
                                          .first_partition = 0,
                                          .num_partitions = num_tokens,
                                          .q = workspace.query.data(),
                                          .num_queries = job.group,
                                          .scores = workspace.scores.data()};
  SPINDLE_CHECK(workspace.kernels.score_partitions(args) == kernels::kOk);
  for (uint32_t head = 0; head < job.group; ++head) {
    SoftmaxInPlace(std::span(workspace.scores).subspan(size_t{head} * num_tokens, num_tokens),
                   job.scale,
                   job.softcap);
  }
}

}  // namespace spindle::eval
