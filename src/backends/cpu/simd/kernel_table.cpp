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
  static const KernelTable table{hwy::TargetName(HWY_TARGET), prefill_item, decode_item, merge_row, product_f32};
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

}  // namespace

const KernelTable& active_kernels() {
  const KernelTable* forced = forced_table.load();
  return forced != nullptr ? *forced : *HWY_DYNAMIC_DISPATCH(kernel_table)();
}

std::vector<std::string> simd_instruction_sets() {
  std::vector<std::string> names;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

void force_simd_instruction_set(const std::string& name) {
  if (name.empty()) return forced_table.store(nullptr);
  std::string known;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (name == hwy::TargetName(target)) return forced_table.store(table_of(target));
    known += (known.empty() ? "" : ", ") + std::string(hwy::TargetName(target));
  }
  throw_invalid("force_simd_instruction_set", "name is \"" + name + "\"", "one of " + known,
                "choose a name of simd_instruction_sets(), or the empty name for the best");
}

}  // namespace onepass::cpu
#endif  // HWY_ONCE
