// The instruction sets that were compiled in, the one in use, and a way for tests to choose another.
#include "backends/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/simd/kernel_table.cpp"
#include "hwy/foreach_target.h"
// After foreach_target
#include "backends/cpu/simd/targets-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

const KernelTable* kernel_table() {
  static const KernelTable table{hwy::TargetName(HWY_TARGET),
                                 prefill_item,
                                 decode_item,
                                 merge_row,
                                 gradient_item,
                                 bias_item,
                                 row_delta,
                                 product_f32,
                                 nullptr};
  return &table;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <atomic>

#include "backends/cpu/backend.h"
#include "backends/cpu/simd/kernel_table.h"
#include "backends/cpu/simd/product_bf16.h"
#include "support/message.h"

namespace onepass::cpu {
namespace {

HWY_EXPORT(kernel_table);

std::atomic<const KernelTable*> forced_table{nullptr};

/// The table of one instruction set, obtained by pretending that the machine has no other.
const KernelTable* table_of(std::int64_t target) {
  hwy::GetChosenTarget().Update(target);
  const KernelTable* table = HWY_DYNAMIC_DISPATCH(kernel_table)();
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return table;
}

/// What this machine runs, best first: Highway's targets, and the best of them with products on pairs of
/// bf16.
std::vector<const KernelTable*> list_tables() {
  std::vector<const KernelTable*> tables;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) tables.push_back(table_of(target));
  if (has_product_bf16()) {
    static KernelTable with_bf16;
    with_bf16 = *tables.front();
    with_bf16.instruction_set = "AVX3_BF16";
    with_bf16.product_bf16 = product_bf16;
    tables.insert(tables.begin() + (prefers_product_bf16() ? 0 : 1), &with_bf16);
  }
  return tables;
}

const std::vector<const KernelTable*>& tables() {
  static const std::vector<const KernelTable*> list = list_tables();
  return list;
}

}  // namespace

const KernelTable& active_kernels() {
  const KernelTable* forced = forced_table.load();
  return forced != nullptr ? *forced : *tables().front();
}

std::vector<std::string> simd_instruction_sets() {
  std::vector<std::string> names;
  for (const KernelTable* table : tables()) names.emplace_back(table->instruction_set);
  return names;
}

void force_simd_instruction_set(const std::string& name) {
  if (name.empty()) return forced_table.store(nullptr);
  std::string known;
  for (const KernelTable* table : tables()) {
    if (name == table->instruction_set) return forced_table.store(table);
    known += (known.empty() ? "" : ", ") + std::string(table->instruction_set);
  }
  throw_invalid("force_simd_instruction_set", "name is \"" + name + "\"", "one of " + known,
                "choose a name of simd_instruction_sets(), or the empty name for the best");
}

}  // namespace onepass::cpu
#endif  // HWY_ONCE
