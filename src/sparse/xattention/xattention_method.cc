#include "sparse/xattention/xattention_method.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "kernels/api/block_mass.h"

namespace spindle::sparse {
namespace {

static_assert(kernels::kMassBlockTokens == kPrefillBlockTokens);

enum KnobIndex : uint8_t { kBlock, kStride, kThreshold, kLastDense, kShareGroup };

constexpr Knob kXAttentionKnobs[] = {
    {.name = "block",
     .min = kPrefillBlockTokens,
     .max = kPrefillBlockTokens,
     .preset = kPrefillBlockTokens},
    {.name = "stride", .min = 8, .max = 16, .preset = 16},
    {.name = "threshold", .min = 0, .max = 1, .preset = 0.9, .is_integer = false},
    {.name = "last_dense", .min = 1, .max = 1 << 19, .preset = 128},
    {.name = "share_group", .min = 0, .max = 1, .preset = 0},
};

void Choose(std::span<uint64_t> chosen, uint32_t block) {
  chosen[block / 64] |= uint64_t{1} << (block % 64);
}

}  // namespace

std::span<const Knob> XAttentionMethod::knobs() const {
  return kXAttentionKnobs;
}

absl::Status XAttentionMethod::CheckKnobs(std::span<const double> values) const {
  const double stride = values[kStride];
  return stride == 8 || stride == 16
             ? absl::OkStatus()
             : absl::InvalidArgumentError("stride must be 8 or 16, got " +
                                          std::to_string(static_cast<int64_t>(stride)));
}

// Of two blocks both are forced.
uint32_t XAttentionMethod::FirstSparseBlock(std::span<const double> values) const {
  return values[kThreshold] >= 1 ? std::numeric_limits<uint32_t>::max() : 2;
}

uint32_t XAttentionMethod::LastDense(std::span<const double> values) const {
  return static_cast<uint32_t>(values[kLastDense]);
}

void ChooseByMass(std::span<const float> mass,
                  double threshold,
                  std::vector<uint32_t>* order,
                  std::span<uint64_t> chosen) {
  const auto last = static_cast<uint32_t>(mass.size()) - 1;
  Choose(chosen, 0);
  Choose(chosen, last);
  const double total = std::accumulate(mass.begin(), mass.end(), 0.0);
  double sum = double{mass[0]} + (last > 0 ? double{mass[last]} : 0.0);
  order->clear();
  for (uint32_t block = 1; block < last; ++block) {
    order->push_back(block);
  }
  const auto before = [mass](uint32_t a, uint32_t b) {
    return mass[a] != mass[b] ? mass[a] > mass[b] : a < b;
  };
  // With a NaN among them there is no order, and every one is taken.
  if (total == total) {
    std::sort(order->begin(), order->end(), before);
  }
  for (size_t i = 0; i < order->size() && !(sum >= threshold * total); ++i) {
    Choose(chosen, (*order)[i]);
    sum += double{mass[(*order)[i]]};
  }
}

int XAttentionMethod::Select(const PrefillJob& job,
                             SelectWorkspace& workspace,
                             std::span<uint64_t> chosen) const {
  const kv::KvGeometry& geometry = *job.keys.geometry;
  const uint32_t num_blocks = job.block + 1;
  workspace.scores.resize(std::max(workspace.scores.size(), size_t{job.group} * num_blocks));
  float* const mass = workspace.scores.data();
  const kernels::BlockMassArgs args{
      .q = job.q,
      .q_stride = job.q_stride,
      .group = job.group,
      .stripes = job.keys.stripes.data(),
      .offset = job.keys.kv_offset,
      .layout = {.k = nullptr,
                 .page_tokens = geometry.page_tokens(),
                 .page_bytes = geometry.page_bytes(),
                 .head_dim = job.head_dim,
                 .type = geometry.type},
      .block = job.block,
      .stride = static_cast<uint32_t>(job.knobs[kStride]),
      .scale = job.scale,
      .softcap = job.softcap,
      .mass = mass,
  };
  if (const int code = workspace.kernels.block_mass(args, workspace.exec); code != kernels::kOk) {
    return code;
  }
  uint32_t num_choices = job.group;
  if (job.knobs[kShareGroup] != 0) {
    // A factor changes no choice: the sum is as good as the mean.
    for (uint32_t head = 1; head < job.group; ++head) {
      for (uint32_t block = 0; block < num_blocks; ++block) {
        mass[block] += mass[size_t{head} * num_blocks + block];
      }
    }
    num_choices = 1;
  }
  for (uint32_t i = 0; i < num_choices; ++i) {
    ChooseByMass({mass + size_t{i} * num_blocks, num_blocks},
                 job.knobs[kThreshold],
                 &workspace.order,
                 chosen);
  }
  return kernels::kOk;
}

}  // namespace spindle::sparse
