// Bytes that page tables really take: the two-level tables of a filled fast tier, and flat tables
// sized for the longest context, allocated too as far as they fit into 1 GiB.
//   metadata_bench [--no-refault-maps] POINT…
// POINT: LAYERS:HEADS:PAGE_TOKENS:REQUESTS:TOKENS:RESIDENT; every request has TOKENS tokens, every
// (request, layer, head) RESIDENT pages in fast frames. Prints one line of JSON per point.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/prefix_key.h"
#include "kv/fast/flat_page_table.h"
#include "kv/kv_sequence.h"
#include "support/metadata_fill.h"

namespace spindle::bench {
namespace {

constexpr uint64_t kMaxFlatBytes = uint64_t{1} << 30;

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "metadata_bench: %s\n", message.c_str());
  std::exit(2);
}

test::MetadataCase ParsePoint(const std::string& text) {
  std::vector<uint32_t> numbers;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ':'))) {
    uint32_t number = 0;
    if (!absl::SimpleAtoi(part, &number) || number == 0) {
      Fail("expected numbers above 0, got '" + text + "'");
    }
    numbers.push_back(number);
  }
  if (numbers.size() != 6 || numbers[5] > numbers[4] / numbers[2]) {
    Fail(
        "a point is LAYERS:HEADS:PAGE_TOKENS:REQUESTS:TOKENS:RESIDENT, and RESIDENT at most "
        "TOKENS / PAGE_TOKENS; got '" +
        text + "'");
  }
  return {.name = "",
          .layers = numbers[0],
          .heads = numbers[1],
          .page_tokens = numbers[2],
          .requests = numbers[3],
          .max_tokens = numbers[4],
          .tokens = numbers[4],
          .resident_pages = numbers[5],
          .clustered = false};
}

// What the host needs to find the pages of all layers and heads: a slot and an address per stripe.
double HostBytes(const test::MetadataCase& of) {
  std::vector<kv::Sequence> sequences(of.requests);
  size_t bytes = 0;
  for (kv::Sequence& sequence : sequences) {
    sequence.slots.resize((of.tokens + kStripeTokens - 1) / kStripeTokens);
    sequence.stripes.resize(sequence.slots.size());
    bytes += sequence.slots.capacity() * sizeof(sequence.slots[0]) +
             sequence.stripes.capacity() * sizeof(sequence.stripes[0]);
  }
  return static_cast<double>(bytes);
}

// Bytes of flat tables that were allocated; 0 where they would take too much.
double AllocatedFlatBytes(const test::MetadataCase& of, double flat_bytes) {
  if (flat_bytes > static_cast<double>(kMaxFlatBytes)) {
    return 0;
  }
  std::vector<std::unique_ptr<kv::FlatPageTable>> tables;
  uint64_t bytes = 0;
  for (uint64_t group = 0; group < uint64_t{of.layers} * of.heads * of.requests; ++group) {
    tables.push_back(std::make_unique<kv::FlatPageTable>(of.max_tokens / of.page_tokens));
    bytes += tables.back()->allocated_bytes();
  }
  return static_cast<double>(bytes);
}

int Main(int argc, char** argv) {
  bool refault_maps = true;
  std::vector<std::string> points;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--no-refault-maps") {
      refault_maps = false;
    } else {
      points.push_back(argument);
    }
  }
  if (points.empty()) {
    Fail("use: metadata_bench [--no-refault-maps] POINT...");
  }
  for (const std::string& text : points) {
    const test::MetadataCase of = ParsePoint(text);
    const test::MetadataResult result = test::MeasureMetadata(of, refault_maps);
    std::printf(
        "{\"point\": \"%s\", \"refault_maps\": %s, \"fast_bytes\": %.0f, \"formula_bytes\": %.0f, "
        "\"host_bytes\": %.0f, \"flat_tight_bytes\": %.0f, \"flat_worst_bytes\": %.0f, "
        "\"flat_allocated_bytes\": %.0f}\n",
        text.c_str(),
        refault_maps ? "true" : "false",
        static_cast<double>(result.bytes.total()),
        result.formula,
        HostBytes(of),
        result.flat_tight,
        result.flat_worst,
        AllocatedFlatBytes(of, result.flat_tight));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace spindle::bench

int main(int argc, char** argv) {
  return spindle::bench::Main(argc, argv);
}
