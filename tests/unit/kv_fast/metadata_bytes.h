// Bytes of metadata of a filled fast tier, printed beside the formula and flat tables.
// Thread-safety: single-threaded tests.
#pragma once

#include <iomanip>
#include <iostream>

#include "support/metadata_fill.h"

namespace spindle::kv {

inline test::MetadataResult MeasureAndPrint(const test::MetadataCase& of, bool refault_maps) {
  test::MetadataResult result = test::MeasureMetadata(of, refault_maps);
  const auto total = static_cast<double>(result.bytes.total());
  constexpr double kMiB = 1 << 20;
  std::cout << std::fixed << std::setprecision(2) << of.name << (refault_maps ? ", maps: " : ": ")
            << total / kMiB << " MiB (directory "
            << static_cast<double>(result.bytes.directory) / kMiB << ", leaves "
            << static_cast<double>(result.bytes.leaves) / kMiB << ", frames "
            << static_cast<double>(result.bytes.frames) / kMiB << ", run tables "
            << static_cast<double>(result.bytes.run_tables) / kMiB << ", groups "
            << static_cast<double>(result.bytes.groups) / kMiB << ", slack "
            << static_cast<double>(result.bytes.slack) / kMiB << "), " << total / result.formula
            << " of the formula, flat worst / ours " << result.flat_worst / total
            << ", flat tight / ours " << result.flat_tight / total << '\n';
  return result;
}

}  // namespace spindle::kv
