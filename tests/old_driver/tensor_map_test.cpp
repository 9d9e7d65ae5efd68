// On a driver from before CUDA 12.
#include "tests/fake_driver/gpu_run.h"

namespace onepass::fake {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(GpuRun, a_driver_without_tensor_maps_is_named_before_anything_is_launched) {
  const Plan kept = sm90_plan();
  ASSERT_EQ(kept.implementation, "sm90_forward");
  const std::string message = refusal(kept, tensors_on(0));
  EXPECT_THAT(message, HasSubstr("run: the NVIDIA driver has no cuTensorMapEncodeTiled"));
  EXPECT_THAT(message, HasSubstr("\n  Fix: update the driver"));
  EXPECT_THAT(log().launches, IsEmpty());
}

}  // namespace
}  // namespace onepass::fake
