// A run with a kept plan allocates nothing: every operator new of this program is counted.
#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/fake_driver/gpu_run.h"

namespace {

std::atomic<int> num_allocations{0};

}  // namespace

void* operator new(std::size_t bytes) {
  ++num_allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes); memory != nullptr) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace onepass::fake {
namespace {

TEST_F(GpuRun, a_kept_plan_allocates_nothing) {
  const std::pair<Plan, ForwardArguments> calls[] = {{plan_with_splits(2), tensors_on(0)},
                                                     {sm80_plan(), sm80_tensors()},
                                                     {sm90_plan(), tensors_on(0)},
                                                     {ticket_plan(), tensors_on(0)},
                                                     {decode_plan(), decode_tensors_on(0)}};
  for (const auto& [kept, args] : calls) {
    const std::span<std::byte> workspace = workspace_for(kept);
    run(kept, args, workspace);
    log().clear();
    const int before = num_allocations;
    EXPECT_GT(before, 0) << "planning allocates, so nothing is counted";
    run(kept, args, workspace);
    EXPECT_EQ(num_allocations - before, 0) << kept.steps[0].kernel;
    EXPECT_EQ(log().launches.size(), kept.steps.size());
  }
}

}  // namespace
}  // namespace onepass::fake
