// Synthetic page selections: what a sparse algorithm might select in one cache group, step after
// step, with the locality of published measurements. One generator for the simulator and for the
// server's replayer; exact pseudocode in docs/kv-simulator.md. Whatever is measured with it is
// labelled "synthetic selection". Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kv/sim/pcg64.h"

namespace spindle::kv::sim {

// score = A + b · x + c · noise, per page; A = a · |normal|^1.5 fixed, x an autoregressive process
// of unit variance.
struct SelectionProfile {
  double fixed_weight = 0;       // a
  double drift_weight = 0;       // b
  double noise_weight = 0;       // c
  double drift_correlation = 0;  // of x between steps, 0 … 1
  double shift_probability =
      0;  // per step: a sixteenth of x is drawn again, a run of pages gains 2
};

// Consecutive selections overlap by about 83, 67 and 34 %.
inline constexpr SelectionProfile kStickyProfile = {1.2, 0.8, 0.25, 0.97, 0.02};
inline constexpr SelectionProfile kMediumProfile = {0.9, 0.9, 0.40, 0.95, 0.03};
inline constexpr SelectionProfile kLooseProfile = {0.6, 0.8, 0.70, 0.93, 0.05};

// "sticky", "medium" or "loose".
[[nodiscard]] std::optional<SelectionProfile> FindSelectionProfile(std::string_view name);

struct SelectionOptions {
  SelectionProfile profile = kStickyProfile;
  uint32_t num_pages = 2048;
  uint32_t selected_pages = 32;  // 1 … num_pages
  uint64_t seed = 0;
  uint64_t stream = 0;  // tells groups of one seed apart; the tables use 0
};

class SelectionGenerator {
 public:
  // REQUIRES: selected_pages in 1 … num_pages.
  explicit SelectionGenerator(const SelectionOptions& options);

  [[nodiscard]] uint32_t num_pages() const { return static_cast<uint32_t>(fixed_.size()); }

  // The context has grown. REQUIRES: not fewer than before.
  void Grow(uint32_t num_pages);

  // The selection of the next step: `selected_pages` distinct ids below num_pages(), ascending.
  // O(num_pages); allocates nothing when `pages` has room.
  void Next(std::vector<uint32_t>* pages);

 private:
  void ShiftTopic();

  SelectionProfile profile_;
  uint32_t selected_pages_;
  Pcg64 random_;
  std::vector<double> fixed_;   // A
  std::vector<double> drift_;   // x
  std::vector<double> scores_;  // of the step
  std::vector<double> ranked_;  // the same, partly sorted
};

// The selections of `num_groups` groups over `num_steps` steps, those of group g from stream
// options.stream + g: [num_steps][num_groups][selected_pages]. REQUIRES: that of the generator.
[[nodiscard]] std::vector<uint32_t> DrawSelections(const SelectionOptions& options,
                                                   uint32_t num_steps,
                                                   uint32_t num_groups);

}  // namespace spindle::kv::sim
