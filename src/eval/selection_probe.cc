#include "eval/selection_probe.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/prefix_key.h"
#include "base/status_macros.h"
#include "eval/statistics.h"

namespace spindle::eval {
namespace {

using sparse::SelectJob;

constexpr uint32_t kTokensPerWord = kStripeTokens;

// Positions that are attended, as bits.
std::vector<uint64_t> AttendedBits(const sparse::Selection& selection, uint32_t num_tokens) {
  std::vector<uint64_t> bits((num_tokens + kTokensPerWord - 1) / kTokensPerWord, 0);
  for (const sparse::TileLive& tile : selection.tiles) {
    bits[tile.tile] |= tile.live;
  }
  for (const sparse::ClusterUse& cluster : selection.clusters) {
    for (uint32_t i = 0; i < cluster.count; ++i) {
      const size_t position = cluster.segment * kSegmentTokens + cluster.tokens[i];
      bits[position / kTokensPerWord] |= uint64_t{1} << position % kTokensPerWord;
    }
  }
  return bits;
}

uint64_t CountBits(const std::vector<uint64_t>& bits) {
  uint64_t count = 0;
  for (const uint64_t word : bits) {
    count += static_cast<uint64_t>(std::popcount(word));
  }
  return count;
}

bool IsAlwaysOn(const SelectJob& job, uint32_t position) {
  return position < job.settings->sink_tokens ||
         position + std::max(1U, job.settings->recent_tokens) >= job.num_tokens();
}

void DropAlwaysOn(const SelectJob& job, std::vector<uint64_t>* bits) {
  const auto drop = [bits](uint32_t begin, uint32_t end) {
    for (uint32_t position = begin; position < end; ++position) {
      (*bits)[position / kTokensPerWord] &= ~(uint64_t{1} << position % kTokensPerWord);
    }
  };
  const uint32_t num_tokens = job.num_tokens();
  drop(0, std::min(job.settings->sink_tokens, num_tokens));
  drop(num_tokens - std::min(std::max(1U, job.settings->recent_tokens), num_tokens), num_tokens);
}

// workspace.scores holds the mass of every position; `estimate` of what is attended, NaN: none.
void AddMass(const SelectJob& job,
             const std::vector<uint64_t>& attended,
             const std::vector<float>& mass,
             float estimate,
             HeadRecord* row) {
  std::vector<double> on_attended(job.group, 0);  // [query head]
  double on_selected = 0;
  double selectable = 0;
  const uint32_t num_tokens = job.num_tokens();
  for (uint32_t position = 0; position < num_tokens; ++position) {
    const bool is_attended =
        (attended[position / kTokensPerWord] >> position % kTokensPerWord & 1U) != 0;
    double here = 0;
    for (uint32_t head = 0; head < job.group; ++head) {
      const double of_head = mass[size_t{head} * num_tokens + position];
      here += of_head;
      on_attended[head] += is_attended ? of_head : 0;
    }
    if (!IsAlwaysOn(job, position)) {
      selectable += here;
      on_selected += is_attended ? here : 0;
    }
  }
  row->measured_rows = 1;
  row->mass = Mean(on_attended);
  row->selected_mass = selectable > 0 ? on_selected / selectable : 1;
  if (!std::isnan(estimate)) {
    row->estimated_rows = 1;
    row->overestimate = estimate - *std::min_element(on_attended.begin(), on_attended.end());
  }
}

}  // namespace

HeadRecord& HeadRecord::operator+=(const HeadRecord& other) {
  rows += other.rows;
  attended_tokens += other.attended_tokens;
  attended_share += other.attended_share;
  measured_rows += other.measured_rows;
  mass += other.mass;
  selected_mass += other.selected_mass;
  estimated_rows += other.estimated_rows;
  overestimate += other.overestimate;
  overlap_rows += other.overlap_rows;
  overlap += other.overlap;
  return *this;
}

SelectionRecord::SelectionRecord(uint32_t num_layers, uint32_t num_heads)
    : num_layers_(num_layers),
      num_heads_(num_heads),
      heads_(size_t{num_layers} * num_heads),
      before_(heads_.size()) {}

void SelectionRecord::BeginSequence() {
  for (std::vector<uint64_t>& bits : before_) {
    bits.clear();
  }
}

void SelectionRecord::Add(LayerIdx layer,
                          KvHeadIdx head,
                          const HeadRecord& row,
                          const std::vector<uint64_t>& selected) {
  const size_t i = size_t{layer.value()} * num_heads_ + head.value();
  heads_[i] += row;
  before_[i] = selected;
}

SelectionProbe::SelectionProbe(const kv::KvGeometry& geometry,
                               std::shared_ptr<const sparse::SparseAlgorithm> inner,
                               uint32_t mass_stride)
    : index_(geometry, std::move(inner)), mass_stride_(mass_stride) {
  SPINDLE_CHECK(index_.inner() != nullptr && mass_stride > 0);
}

void SelectionProbe::Attach(const sparse::SparseSettings& settings, SelectionRecord* record) {
  if (record == nullptr) {
    records_.erase(&settings);
  } else {
    records_[&settings] = record;
  }
}

uint32_t SelectionProbe::index_bytes(const kv::KvGeometry& /*geometry*/) const {
  return index_.bytes();
}

int SelectionProbe::BuildIndex(const sparse::IndexJob& job,
                               const kernels::KernelTable& kernels) const {
  return index_.Build(job, kernels);
}

int SelectionProbe::BuildSegment(const sparse::SegmentJob& job,
                                 sparse::BuildWorkspace& workspace) const {
  return index_.inner()->BuildSegment(job, workspace);
}

void SelectionProbe::Select(const SelectJob& job,
                            sparse::SelectWorkspace& workspace,
                            sparse::Selection* out) const {
  index_.inner()->Select(job, workspace, out);
  const auto found = records_.find(job.settings);
  if (found == records_.end()) {
    return;
  }
  std::vector<uint64_t> bits = AttendedBits(*out, job.num_tokens());
  HeadRecord row;
  row.rows = 1;
  row.attended_tokens = static_cast<double>(CountBits(bits));
  row.attended_share = row.attended_tokens / job.num_tokens();
  if (index_.has_keys() && job.decode_step % mass_stride_ == 0) {
    index_.ComputeMass(job, workspace);
    AddMass(job, bits, workspace.scores, out->mass, &row);
  }
  DropAlwaysOn(job, &bits);
  const std::vector<uint64_t>& before = found->second->Before(job.layer, job.head);
  const uint64_t selected = CountBits(bits);
  if (!before.empty() && selected > 0) {
    uint64_t kept = 0;
    for (size_t i = 0; i < std::min(bits.size(), before.size()); ++i) {
      kept += static_cast<uint64_t>(std::popcount(bits[i] & before[i]));
    }
    row.overlap_rows = 1;
    row.overlap = static_cast<double>(kept) / static_cast<double>(selected);
  }
  found->second->Add(job.layer, job.head, row, bits);
}

}  // namespace spindle::eval
