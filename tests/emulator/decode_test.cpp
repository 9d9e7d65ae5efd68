// The text of sm90_decode, run on the CPU and held to the float64 evaluation.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backends/cuda/host/forward_params.h"
#include "backends/cuda/host/sm90_decode.h"
#include "backends/cuda/kernels/sm90/decode_layout.h"
#include "dispatch/accounting.h"
#include "plan/cuda_plan.h"
#include "plan/planned_kernel.h"
#include "problem/case_text.h"
#include "tests/emulator/block.h"
#include "tests/emulator/cases.h"
#include "tests/emulator/kernel_table.h"
#include "tests/emulator/plan_on.h"
#include "tests/emulator/run_plan.h"
#include "verify/check.h"

namespace onepass::emulator {
namespace {

/// A plan's kernels with what they are launched with, any number of times.
class Call {
 public:
  Call(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace)
      : plan_(plan), forward_(cuda::forward_params(plan, args, workspace)) {
    forward_.error_flag = &error_;
    for (const PlanStep& step : plan.steps) {
      const PlannedKernel& kernel = *step.gpu_kernel;
      if (kernel.spec.family == KernelFamily::Sm90Decode)
        decode_.reset(new cuda::Sm90DecodeParams(
            cuda::sm90_decode_params(plan, kernel, args, workspace, forward_, encode)));
    }
  }

  void run(BlockOrder order) {
    for (const PlanStep& step : plan_.steps) {
      SCOPED_TRACE(step.kernel);
      const EmulatedKernel& kernel = kernel_named(step.kernel);
      const KernelSpec& spec = step.gpu_kernel->spec;
      const bool decodes = spec.family == KernelFamily::Sm90Decode;
      const void* params = decodes ? static_cast<const void*>(decode_.get()) : &forward_;
      try {
        launch([&] { kernel.entry(params); },
               {step.num_work_items, num_threads(spec), static_cast<int>(shared_bytes(spec)), order,
                spec.cluster ? cuda::kClusterBlocks : 1});
      } catch (const Fault& fault) {
        FAIL() << fault.what();
      }
    }
  }
  int error() const { return error_; }

 private:
  const Plan& plan_;
  int error_ = 0;
  cuda::ForwardParams forward_;
  // On the heap from the start: under AddressSanitizer g++ 12 does not align temporaries to 64 bytes.
  std::unique_ptr<cuda::Sm90DecodeParams> decode_;
};

/// Bytes of out and lse.
std::vector<char> result_bytes(const verify::CaseTensors& tensors) {
  std::vector<char> bytes;
  for (const auto& buffer : tensors.buffers) {
    if (!buffer.output.present()) continue;
    const char* data = static_cast<const char*>(buffer.memory->data());
    bytes.insert(bytes.end(), data, data + buffer.memory->size());
  }
  return bytes;
}

void check_case(const DeviceInfo& device, const char* text, bool stays) {
  SCOPED_TRACE(text);
  verify::CaseTensors tensors = verify::make_tensors(parse_case(text));
  const Plan plan = plan_on(device, tensors);
  ASSERT_EQ(plan.implementation, "sm90_decode");
  ASSERT_EQ(forward_kernel(plan)->spec.stays, stays);
  ASSERT_EQ(forward_kernel(plan)->spec.ragged, stays && is_ragged(*plan.problem)) << "shares of the keys";
  verify::GuardedBuffer memory(plan.workspace_bytes());
  const std::span workspace(static_cast<std::byte*>(memory.data()), memory.size());
  Call call(plan, tensors.args, workspace);
  ASSERT_NO_FATAL_FAILURE(call.run(BlockOrder::Ascending));
  const verify::CheckReport report = verify::check_result(tensors.args, tensors.options);
  EXPECT_TRUE(report.passed) << report.text();
  EXPECT_EQ(tensors.damage(), std::nullopt);
  EXPECT_TRUE(memory.guards_intact()) << "memory beside the workspace was written";
  EXPECT_EQ(call.error(), 0) << "a kernel reports a length or page out of bounds";
  const std::vector<char> first = result_bytes(tensors);

  // As a graph replays it, and as another launch finds the workspace.
  Call another(plan, tensors.args, workspace);
  for (Call* again : {&call, &another}) {
    tensors.poison_outputs();
    ASSERT_NO_FATAL_FAILURE(again->run(BlockOrder::Descending));
    EXPECT_EQ(result_bytes(tensors), first);
  }
}

class emulated_decode : public ::testing::TestWithParam<EmulatedCase> {};
TEST_P(emulated_decode, agrees_with_float64_and_with_itself_in_any_order_of_blocks) {
  check_case(emulated_device(GetParam().device, kDecodeInstructions), GetParam().text, false);
}
INSTANTIATE_TEST_SUITE_P(cases, emulated_decode, ::testing::ValuesIn(kDecodeCases), case_test_name);

class emulated_staying_decode : public ::testing::TestWithParam<EmulatedCase> {};
TEST_P(emulated_staying_decode, agrees_with_float64_and_with_itself_in_any_order_of_blocks) {
  check_case(small_device(std::stoi(GetParam().device)), GetParam().text, true);
}
INSTANTIATE_TEST_SUITE_P(cases, emulated_staying_decode, ::testing::ValuesIn(kStayingDecodeCases),
                         case_test_name);

// ---- what device memory holds

// Pages that are copied as boxes, and pages that are gathered key by key.
constexpr const char* kPagedCases[] = {"bf16_b3_hq8_hk2_sq1_sk200_d128_page16_ragged_split2",
                                       "bf16_b3_hq8_hk2_sq1_sk200_d128_page5_ragged_split2"};

int* ints_of(const TensorView& view) { return static_cast<int*>(view.data); }

/// A plan of tensors whose indices change between its runs, as a graph replays it.
struct PagedCall {
  explicit PagedCall(const char* text) : tensors(verify::make_tensors(parse_case(text))) {
    EXPECT_EQ(forward_kernel(plan)->spec.gather, text == kPagedCases[1]);
  }
  verify::CaseTensors tensors;
  Plan plan = plan_on(emulated_device("h200", kDecodeInstructions), tensors);
  verify::GuardedBuffer memory{plan.workspace_bytes()};
  Call call{plan, tensors.args, {static_cast<std::byte*>(memory.data()), memory.size()}};
};

class emulated_decode_indices : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(boxes_and_gathered, emulated_decode_indices, ::testing::ValuesIn(kPagedCases),
                         [](const auto& each) {
                           return std::string(each.index == 0 ? "boxes" : "gathered");
                         });

TEST_P(emulated_decode_indices, lengths_are_read_by_each_run) {
  PagedCall paged(GetParam());
  int* const used = ints_of(paged.tensors.args.seqused_k);
  for (const int change :
       {0, -1, -15, -1000}) {  // shorter: pages past the first lengths lead out of the pool
    for (int b = 0; b < 3; ++b) used[b] = std::max(0, used[b] + change);
    paged.tensors.poison_outputs();
    ASSERT_NO_FATAL_FAILURE(paged.call.run(BlockOrder::Ascending));
    const verify::CheckReport report = verify::check_result(paged.tensors.args, paged.tensors.options);
    EXPECT_TRUE(report.passed) << change << ": " << report.text();
    EXPECT_EQ(paged.call.error(), 0);
  }
}

TEST_P(emulated_decode_indices, a_page_outside_the_pool_is_reported_and_not_read) {
  for (const int page : {-1, 1 << 20}) {
    PagedCall paged(GetParam());
    ints_of(paged.tensors.args.block_table)[0] = page;  // of the first sequence, which has keys
    ints_of(paged.tensors.args.seqused_k)[0] = 16;
    ASSERT_NO_FATAL_FAILURE(paged.call.run(BlockOrder::Ascending));
    EXPECT_EQ(paged.call.error(), static_cast<int>(cuda::KernelError::PageOutOfPool));
  }
}

TEST_P(emulated_decode_indices, a_length_past_the_plans_bound_is_cut_and_reported) {
  PagedCall paged(GetParam());
  ints_of(paged.tensors.args.seqused_k)[1] = 1 << 30;
  ASSERT_NO_FATAL_FAILURE(paged.call.run(BlockOrder::Ascending));
  EXPECT_NE(paged.call.error(), 0);
  EXPECT_TRUE(paged.memory.guards_intact());
}

// ---- whatever device memory holds

/// Numbers of all sizes in every index tensor of a case, whose differences are int32; false when it has none.
bool scramble_indices(const ForwardArguments& args, std::mt19937& random) {
  constexpr int kMost = std::numeric_limits<int>::max() / 2, kLeast = std::numeric_limits<int>::min() / 2;
  bool found = false;
  for (const TensorView* view :
       {&args.cu_seqlens_q, &args.cu_seqlens_k, &args.seqused_q, &args.seqused_k, &args.block_table}) {
    if (!view->present()) continue;
    found = true;
    for (std::int64_t i = 0; i < view->num_elements(); ++i) {
      const int values[] = {kLeast, -1, 0, 1, 17, 64, 200, kMost, static_cast<int>(random()) / 2};
      ints_of(*view)[i] = values[random() % std::size(values)];
    }
  }
  return found;
}

void check_any_indices(const DeviceInfo& device, const char* text) {
  SCOPED_TRACE(text);
  verify::CaseTensors tensors = verify::make_tensors(parse_case(text));
  const Plan plan = plan_on(device, tensors);
  verify::GuardedBuffer memory(plan.workspace_bytes());
  Call call(plan, tensors.args, {static_cast<std::byte*>(memory.data()), memory.size()});
  std::mt19937 random(1);
  for (const BlockOrder order : {BlockOrder::Ascending, BlockOrder::Descending}) {
    if (!scramble_indices(tensors.args, random)) return;
    ASSERT_NO_FATAL_FAILURE(call.run(order));
    EXPECT_TRUE(memory.guards_intact());
    for (const auto& buffer : tensors.buffers) EXPECT_TRUE(buffer.memory->guards_intact()) << buffer.name;
  }
}

TEST(emulated_decode_any_indices, whatever_they_are_a_launch_ends_and_stays_in_its_memory) {
  const DeviceInfo device = emulated_device("h200", kDecodeInstructions);
  for (const EmulatedCase& each : kDecodeCases) check_any_indices(device, each.text);
  for (const EmulatedCase& each : kStayingDecodeCases) {
    check_any_indices(small_device(std::stoi(each.device)), each.text);
  }
}

}  // namespace
}  // namespace onepass::emulator
