#include "tests/emulator/run_plan.h"

#include <gtest/gtest.h>

#include <memory>

#include "backends/cuda/host/forward_params.h"
#include "backends/cuda/host/sm90_decode.h"
#include "plan/mixed_plan.h"
#include "plan/planned_kernel.h"
#include "tests/emulator/block.h"
#include "tests/emulator/kernel_table.h"
#include "tests/emulator/tensor_map.h"

namespace onepass::emulator {

cuda::TensorMap encode(const cuda::TiledTensor& tensor) {
  return to_tensor_map({tensor.data, tensor.extents, tensor.steps_bytes, tensor.box});
}

void run_plan(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace) {
  cuda::ForwardParams params = cuda::forward_params(plan, args, workspace);
  const bool mixed = !plan.parts.empty();
  const auto lengths = mixed ? cuda::part_lengths_params(plan, args, workspace) : cuda::PartLengthsParams{};
  int error = 0;
  params.error_flag = &error;
  for (const PlanStep& step : plan.steps) {
    const EmulatedKernel& kernel = kernel_named(step.kernel);
    SCOPED_TRACE(step.kernel);
    const KernelSpec& spec = step.gpu_kernel->spec;
    const void* taken = &params;
    // On the heap from the start: under AddressSanitizer g++ 12 does not align temporaries to 64 bytes.
    std::unique_ptr<cuda::Sm90DecodeParams> decode;
    if (spec.family == KernelFamily::PartLengths) taken = &lengths;
    if (spec.family == KernelFamily::Sm90Decode) {
      decode.reset(new cuda::Sm90DecodeParams(
          cuda::sm90_decode_params(plan, *step.gpu_kernel, args, workspace, params, encode)));
      taken = decode.get();
    }
    try {
      launch([&] { kernel.entry(taken); }, step.num_work_items, num_threads(spec),
             static_cast<int>(shared_bytes(spec)));
    } catch (const Fault& fault) {
      FAIL() << fault.what();
    }
  }
  EXPECT_EQ(error, 0) << "a kernel reports a length or page out of bounds";
  for (std::size_t part = 0; part < plan.parts.size(); ++part) {
    run_plan(plan.parts[part], cuda::part_arguments(plan, part, args, workspace),
             workspace_piece(plan, workspace, kPieceParts).first(plan.parts[part].workspace_bytes()));
  }
}

}  // namespace onepass::emulator
