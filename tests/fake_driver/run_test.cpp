// run() of a plan for a GPU, on a driver that runs nothing: every call to the driver is seen.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "onepass/cascade.h"
#include "plan/cuda_plan.h"
#include "store/bundle_writer.h"
#include "store/kernel_spec.h"
#include "store/source_writer.h"
#include "tests/fake_driver/gpu_run.h"
#include "tests/unit/store/temporary_folder.h"

namespace onepass::fake {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Queries that have keys of their own behind a prefix.
CascadeArguments cascade_tensors() {
  CascadeArguments args;
  args.own = decode_tensors_on(0);
  for (TensorView* view : {&args.k_prefix, &args.v_prefix}) {
    *view = tensor_on(0, DType::BF16, {kSeqlen, kHeads, kHeadDim});
  }
  return args;
}

/// A bundle with an image for every kernel of the plans below; the fake driver does not look inside.
class BundleOfFakes : public ::testing::Environment {
 public:
  void SetUp() override {
    const CascadePlan cascade = plan(cascade_tensors());
    std::set<std::string> names = {kernel_name(merge_states_kernel(90))};
    for (const Plan& plan : {plan_with_splits(2), sm80_plan(), sm90_plan(), ticket_plan(), decode_plan(),
                             cascade.prefix, cascade.own}) {
      for (const PlanStep& step : plan.steps) names.insert(step.kernel);
    }
    std::vector<KernelImage> images;
    for (const std::string& name : names) {
      images.push_back({"image of " + name, name, ImageKind::Cubin, KernelOrigin::Bundle});
    }
    const std::string path = (folder_.path / "kernels.bundle").string();
    std::ofstream(path, std::ios::binary) << bundle_bytes({sources_hash(), 13, 0, images});
    ::setenv("ONEPASS_BUNDLE", path.c_str(), /*overwrite=*/1);
    ::setenv("ONEPASS_CACHE_DIR", (folder_.path / "cache").c_str(), /*overwrite=*/1);
  }

 private:
  onepass::testing::TemporaryFolder folder_;
};

const ::testing::Environment* const kBundle = ::testing::AddGlobalTestEnvironment(new BundleOfFakes);

/// What a further run of a plan asks the driver while the device's context is current.
std::vector<std::string> calls_of_a_further_run(const Plan& kept, const ForwardArguments& args) {
  run(kept, args, {});
  const cuda::ContextScope current(*cuda::Driver::instance(), 0);
  log().clear();
  run(kept, args, {});
  return {log().calls.begin(), log().calls.end()};
}

TEST_F(GpuRun, a_kept_plan_asks_for_each_tensor_once_and_launches) {
  const Plan kept = sm80_plan();
  ASSERT_EQ(kept.implementation, "sm80_forward");
  EXPECT_THAT(calls_of_a_further_run(kept, sm80_tensors()),
              ElementsAre("cuCtxGetCurrent", "cuPointerGetAttributes", "cuPointerGetAttributes",
                          "cuPointerGetAttributes", "cuPointerGetAttributes", "cuPointerGetAttributes",
                          "cuLaunchKernel"));
}

TEST_F(GpuRun, a_call_like_an_earlier_one_asks_no_more_than_a_kept_plan) {
  const ForwardArguments args = sm80_tensors();
  forward(args);
  const cuda::ContextScope current(*cuda::Driver::instance(), 0);
  log().clear();
  forward(args);
  EXPECT_THAT(log().calls, SizeIs(7)) << "of which one a tensor, and one launch";
  EXPECT_THAT(log().launches, SizeIs(1));
}

TEST_F(GpuRun, sm90_forward_asks_for_three_tensor_maps_besides) {
  const Plan kept = sm90_plan();
  ASSERT_EQ(kept.implementation, "sm90_forward");
  EXPECT_THAT(calls_of_a_further_run(kept, tensors_on(0)),
              ElementsAre("cuCtxGetCurrent", "cuPointerGetAttributes", "cuPointerGetAttributes",
                          "cuPointerGetAttributes", "cuPointerGetAttributes", "cuPointerGetAttributes",
                          "cuTensorMapEncodeTiled", "cuTensorMapEncodeTiled", "cuTensorMapEncodeTiled",
                          "cuLaunchKernel"));
}

TEST_F(GpuRun, sm90_forward_takes_its_maps_the_order_of_tiles_and_a_ticket_of_this_launch) {
  const ForwardArguments args = tensors_on(0);
  const Plan kept = ticket_plan();
  const std::span<std::byte> workspace = workspace_for(kept);
  log().clear();
  run(kept, args, workspace);
  run(kept, args, workspace);
  ASSERT_EQ(log().launches.size(), 2u);
  const cuda::Sm90ForwardParams& first = log().launches[0].sm90;
  const std::pair<const cuda::TensorMap*, const TensorView*> maps[] = {
      {&first.q, &args.q}, {&first.k, &args.k}, {&first.v, &args.v}};
  for (const auto& [map, view] : maps) {
    void* address = nullptr;
    std::memcpy(&address, map->opaque, sizeof(address));
    EXPECT_EQ(address, view->data);
    EXPECT_EQ(map->opaque[sizeof(map->opaque) - 1], kMapFill);
  }
  EXPECT_EQ(first.forward.o.data, args.out.data);
  EXPECT_EQ(static_cast<void*>(first.ticket), workspace.data());
  EXPECT_EQ(first.num_tiles, kBatch * kHeads);  // 96 rows are one tile
  EXPECT_EQ(first.head_group.divisor, kBatch * kHeads);
  EXPECT_EQ(first.group_tiles.divisor, kBatch * kHeads);
  EXPECT_GT(first.launch_id, 1u << 16) << "small integers are what a used workspace holds";
  EXPECT_NE(log().launches[1].sm90.launch_id, 0u);
  EXPECT_NE(log().launches[1].sm90.launch_id, first.launch_id);
}

TEST_F(GpuRun, sm90_forward_takes_its_tiles_as_the_plan_has_them) {
  const ForwardArguments args = tensors_on(0);
  Plan kept = ticket_plan();
  kept.device.l2_bytes = 1;  // with which planning would choose groups of one head
  log().clear();
  run(kept, args, workspace_for(kept));
  ASSERT_EQ(log().launches.size(), 1u);
  EXPECT_EQ(log().launches[0].sm90.head_group.divisor, kBatch * kHeads);
  EXPECT_EQ(log().launches[0].sm90.draw_early, 1);
}

TEST_F(GpuRun, sm90_decode_takes_its_maps_boxes_and_counts_of_this_launch) {
  const ForwardArguments args = decode_tensors_on(0);
  const Plan kept = decode_plan();
  ASSERT_EQ(kept.implementation, "sm90_decode");
  const std::span<std::byte> workspace = workspace_for(kept);
  log().clear();
  run(kept, args, workspace);
  run(kept, args, workspace);
  ASSERT_EQ(log().launches.size(), 2u);
  EXPECT_EQ(std::count(log().calls.begin(), log().calls.end(), std::string("cuTensorMapEncodeTiled")), 4);
  const cuda::Sm90DecodeParams& first = log().launches[0].decode;
  const std::pair<const cuda::TensorMap*, const TensorView*> maps[] = {{&first.k, &args.k},
                                                                       {&first.v, &args.v}};
  for (const auto& [map, view] : maps) {
    void* address = nullptr;
    std::memcpy(&address, map->opaque, sizeof(address));
    EXPECT_EQ(address, view->data);
  }
  EXPECT_EQ(first.box_keys, 128);
  EXPECT_EQ(first.boxes, 1);
  EXPECT_EQ(first.forward.num_splits.divisor, 2);
  EXPECT_EQ(static_cast<void*>(first.forward.split_o), workspace.data());
  EXPECT_EQ(reinterpret_cast<std::byte*>(first.arrivals) - workspace.data(),
            static_cast<std::ptrdiff_t>(kept.workspace.back().offset_bytes));
  EXPECT_NE(first.launch_id, 0u);
  EXPECT_NE(log().launches[1].decode.launch_id, first.launch_id);
}

TEST_F(GpuRun, a_plan_that_ran_tells_the_registers_of_what_the_driver_loaded) {
  const Plan kept = sm80_plan();
  EXPECT_THAT(kept.explain(), Not(HasSubstr("loaded by the driver")));
  run(kept, sm80_tensors(), {});
  EXPECT_THAT(kept.explain(), HasSubstr("registers       72 a thread, as loaded by the driver"));
}

TEST_F(GpuRun, a_context_of_another_device_is_current_again_afterwards) {
  const ForwardArguments args = tensors_on(1);
  const Plan kept = plan(args);
  run(kept, args, {});
  const cuda::ContextScope current(*cuda::Driver::instance(), 0);
  log().clear();
  run(kept, args, {});
  EXPECT_EQ(current_device(), 0);
  ASSERT_EQ(log().launches.size(), 1u);
  EXPECT_EQ(log().launches[0].device_idx, 1);
  EXPECT_EQ(std::count(log().calls.begin(), log().calls.end(), std::string("cuCtxPushCurrent")), 1);
}

TEST_F(GpuRun, one_plan_serves_two_devices_and_its_copies) {
  const Plan kept = plan(tensors_on(0));
  const Plan copy = kept;
  for (const int device_idx : {0, 1, 0, 1}) {
    const ForwardArguments args = tensors_on(device_idx);
    for (const Plan* plan : {&kept, &copy}) {
      log().clear();
      run(*plan, args, {});
      ASSERT_EQ(log().launches.size(), 1u);
      EXPECT_EQ(log().launches[0].device_idx, device_idx);
      EXPECT_EQ(log().launches[0].params.q.data, args.q.data);
    }
  }
}

TEST_F(GpuRun, one_plan_serves_several_threads_on_two_devices) {
  const Plan kept = plan(tensors_on(0));
  const std::array<ForwardArguments, kNumDevices> args = {tensors_on(0), tensors_on(1)};
  constexpr std::size_t kThreads = 4, kRuns = 50;
  log().clear();
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < kRuns; ++i) EXPECT_NO_THROW(run(kept, args[t % kNumDevices], {}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(log().launches.size(), kThreads * kRuns);
  for (const Launch& launch : log().launches) {
    EXPECT_EQ(launch.params.q.data, args[static_cast<std::size_t>(launch.device_idx)].q.data);
  }
}

TEST_F(GpuRun, steps_are_launched_in_order_with_the_plans_numbers) {
  const ForwardArguments args = tensors_on(0);
  const Plan split = plan_with_splits(2);
  ASSERT_EQ(split.steps.size(), 2u);
  const std::span<std::byte> workspace = workspace_for(split);
  int queue = 0;
  log().clear();
  run(split, args, workspace, {&queue});
  ASSERT_EQ(log().launches.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const Launch& launch = log().launches[i];
    EXPECT_EQ(*launch.kernel, split.steps[i].kernel);
    EXPECT_EQ(launch.grid, split.steps[i].num_work_items);
    EXPECT_EQ(launch.threads, static_cast<unsigned>(split.steps[i].num_threads));
    EXPECT_EQ(launch.stream, &queue);
    EXPECT_EQ(launch.params.o.data, args.out.data);
    EXPECT_EQ(static_cast<void*>(launch.params.split_o), workspace.data());
    EXPECT_EQ(launch.params.num_splits.divisor, 2);
  }
}

TEST_F(GpuRun, host_memory_and_memory_of_another_gpu_are_named_and_nothing_is_launched) {
  const ForwardArguments args = tensors_on(0), other = tensors_on(1);
  const Plan split = plan_with_splits(2);
  const std::span<std::byte> workspace = workspace_for(split);
  std::vector<std::byte> host(1 << 20);
  constexpr std::pair<const char*, TensorView ForwardArguments::*> kTensors[] = {
      {"q", &ForwardArguments::q},
      {"k", &ForwardArguments::k},
      {"v", &ForwardArguments::v},
      {"out", &ForwardArguments::out},
      {"softmax_lse", &ForwardArguments::softmax_lse}};
  for (const auto& [name, member] : kTensors) {
    ForwardArguments bad = args;
    (bad.*member).data = host.data();
    EXPECT_THAT(refusal(split, bad, workspace),
                HasSubstr(std::string(name) + " is said to be on GPU 0, but"));
    EXPECT_THAT(log().launches, IsEmpty());
    (bad.*member).data = (other.*member).data;
    EXPECT_THAT(refusal(split, bad, workspace), HasSubstr(std::string(name) + " is memory of GPU 1, but"));
    EXPECT_THAT(log().launches, IsEmpty());
  }
  EXPECT_THAT(refusal(split, args, workspace_for(split, 1)), HasSubstr("workspace is memory of GPU 1, but"));
  EXPECT_THAT(log().launches, IsEmpty());
}

TEST_F(GpuRun, a_capture_takes_calls_whose_workspace_it_allocates) {
  log().clear();
  captures() = true;
  forward(decode_tensors_on(0), {.num_splits = 2});
  EXPECT_THAT(log().launches, SizeIs(1));
  log().clear();
  cascade(cascade_tensors());
  captures() = false;
  EXPECT_THAT(log().launches, SizeIs(3)) << "two forward kernels and a merge";
  EXPECT_THAT(refusal(decode_plan(), decode_tensors_on(0), {reinterpret_cast<std::byte*>(64), 1 << 20}),
              HasSubstr("workspace is said to be on GPU 0, but its address is host memory"));
}

TEST_F(GpuRun, a_plan_that_only_fills_rows_asks_for_its_tensors_too) {
  ForwardArguments args;
  for (TensorView* view : {&args.q, &args.k, &args.v, &args.out}) {
    *view = tensor_on(0, DType::BF16, {kSeqlen, kHeads, kHeadDim});
  }
  args.cu_seqlens_q = args.cu_seqlens_k = tensor_on(0, DType::I32, {kBatch + 1});
  const Plan fills = plan(args, {.max_seqlen_q = 0, .max_seqlen_k = 8});
  ASSERT_EQ(fills.steps.size(), 1u);
  std::vector<std::byte> host(1 << 20);
  args.out.data = host.data();
  EXPECT_THAT(refusal(fills, args), HasSubstr("out is said to be on GPU 0, but"));
}

TEST_F(GpuRun, tensors_of_another_plan_are_refused_before_the_driver_is_asked) {
  const Plan kept = plan(tensors_on(0));
  ForwardArguments bad = tensors_on(0);
  bad.q.strides[0] += 8;
  EXPECT_THAT(refusal(kept, bad), HasSubstr("but the plan is for"));
  EXPECT_THAT(log().calls, IsEmpty());
}

TEST_F(GpuRun, nothing_is_launched_when_the_last_kernel_cannot_be_loaded) {
  const Plan split = plan_with_splits(2);
  missing_kernel() = split.steps.back().kernel;
  // Device 1: no other test has loaded the merging kernel there.
  EXPECT_THAT(refusal(split, tensors_on(1), workspace_for(split, 1)),
              HasSubstr("load kernel: " + split.steps.back().kernel));
  EXPECT_THAT(log().launches, IsEmpty());
}

TEST_F(GpuRun, what_a_kernel_reported_is_thrown_once_by_the_next_call) {
  const ForwardArguments args = tensors_on(0);
  const Plan kept = plan(args);
  log().clear();
  run(kept, args, {});
  ASSERT_EQ(log().launches.size(), 1u);
  *log().launches[0].params.error_flag = static_cast<int>(cuda::KernelError::LengthPastCapacity);
  EXPECT_THAT(refusal(kept, args), HasSubstr("an earlier call on this GPU met a length past"));
  EXPECT_THAT(log().launches, IsEmpty());
  EXPECT_EQ(refusal(kept, args), "no error");
}

}  // namespace
}  // namespace onepass::fake
