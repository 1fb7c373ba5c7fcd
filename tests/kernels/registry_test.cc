// Which tables this CPU offers and under which names.
#include "kernels/registry.h"

#include <gtest/gtest.h>

#include "kernels/kernel_cases.h"

namespace spindle::kernels {
namespace {

TEST(RegistryTest, ReferenceAndBaselineAreAlwaysThereAndComplete) {
  for (const Isa isa : kAllIsas) {
    const KernelTable* table = FindKernels(isa);
    if (isa <= Isa::kBaseline) {
      ASSERT_NE(table, nullptr);
    }
    if (table == nullptr) {
      continue;
    }
    EXPECT_EQ(table->isa, isa);
    EXPECT_EQ(FindKernelsByName(table->name), table);
    EXPECT_TRUE(table->packed_bytes && table->row_format && table->pack && table->gemm &&
                table->dequantize_row && table->norm_rows && table->prepare_rows &&
                table->swiglu_rows && table->embed_rows && table->rope_append &&
                table->plan_attention && table->attention && table->merge_attention &&
                table->summarize && table->top_k && table->collect_at_least)
        << table->name;
  }
}

TEST(RegistryTest, TheBestTableIsTheLastOneThere) {
  const KernelTable* best = BestKernels();
  ASSERT_NE(best, nullptr);
  EXPECT_EQ(FindKernelsByName("auto"), best);
  for (const Isa isa : kAllIsas) {
    if (isa > best->isa) {
      EXPECT_EQ(FindKernels(isa), nullptr) << IsaName(isa);
    }
  }
}

TEST(RegistryTest, UnknownNamesFindNothing) {
  for (const std::string_view name : {"", "AMX", "avx", "neon"}) {
    EXPECT_EQ(FindKernelsByName(name), nullptr) << name;
  }
}

}  // namespace
}  // namespace spindle::kernels
