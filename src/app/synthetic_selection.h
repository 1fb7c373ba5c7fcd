// Decoding over drawn pages, for measurements of the KV tiers. Thread-safety: pure function.
#pragma once

#include "absl/status/statusor.h"
#include "config/load_options.h"
#include "engine/sparse_decode.h"
#include "kv/kv_geometry.h"

namespace spindle::app {

// The schedule of the profile for all groups of a model, drawn for contexts of `max_model_len`
// tokens. No algorithm without a profile. About 10 ns per page, step and group.
// ERRORS: kInvalidArgument naming the option (more pages than a context has).
[[nodiscard]] absl::StatusOr<engine::SparseDecode> MakeSyntheticDecode(
    const config::SyntheticSelection& selection,
    const kv::KvGeometry& geometry,
    uint32_t max_model_len);

}  // namespace spindle::app
