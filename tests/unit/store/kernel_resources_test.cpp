#include "store/kernel_resources.h"

#include <gmock/gmock.h>

namespace onepass {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

constexpr const char* kLog =
    "ptxas info    : 0 bytes gmem\n"
    "ptxas info    : Compiling entry function 'kernel' for 'sm_90a'\n"
    "ptxas info    : Function properties for kernel\n"
    "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    "ptxas info    : Used 168 registers, used 1 barriers\n";

KernelSpec four_warps_twice() {
  KernelSpec spec;
  spec.num_warps = 4;
  spec.min_blocks = 2;
  return spec;
}

TEST(kernel_resources, are_read_from_the_compilers_log) {
  EXPECT_EQ(read_resources(kLog), (KernelResources{168, 0, 0}));
  EXPECT_EQ(read_resources("    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
                           "ptxas info    : Used 255 registers\n"),
            (KernelResources{255, 16, 20}));
}

TEST(kernel_resources, of_several_functions_the_most_counts) {
  EXPECT_EQ(read_resources(std::string(kLog) +
                           "    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
                           "ptxas info    : Used 32 registers\n"),
            (KernelResources{168, 8, 0}));
}

TEST(kernel_resources, that_the_compiler_did_not_report_are_over_budget) {
  EXPECT_THAT(over_budget(four_warps_twice(), read_resources("")),
              Optional(HasSubstr("reported no resources")));
}

TEST(kernel_resources, the_budget_is_an_sms_registers_over_the_threads_it_must_hold) {
  KernelSpec spec = four_warps_twice();
  EXPECT_EQ(register_budget(spec), 255);  // 65536 / 256 = 256
  spec.min_blocks = 3;
  EXPECT_EQ(register_budget(spec), 168);  // 170.7, in eights
  spec.num_warps = 8;
  spec.min_blocks = 2;
  EXPECT_EQ(register_budget(spec), 128);
  spec.num_warps = 5;
  EXPECT_EQ(register_budget(spec), 168);  // three warps in a partition of 16384
}

TEST(kernel_resources, registers_and_local_memory_have_limits) {
  KernelSpec spec = four_warps_twice();
  spec.min_blocks = 3;
  EXPECT_EQ(over_budget(spec, {168, 0, 0}), std::nullopt);
  EXPECT_THAT(over_budget(spec, {169, 0, 0}), Optional(HasSubstr("169 registers; 168 are allowed")));
  EXPECT_THAT(over_budget(spec, {100, 8, 0}), Optional(HasSubstr("8 bytes of local memory")));
  EXPECT_THAT(over_budget(spec, {100, 0, 4}), Optional(HasSubstr("4 spilled")));
}

TEST(kernel_resources, products_that_wait_for_each_other_are_over_budget) {
  const KernelResources resources = read_resources(
      std::string("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
                  "serialized due to insufficient register resources for the wgmma pipeline in function "
                  "'kernel'\n") +
      kLog);
  EXPECT_TRUE(resources.serialized);
  EXPECT_THAT(over_budget(four_warps_twice(), resources), Optional(HasSubstr("each wgmma wait")));
  EXPECT_FALSE(read_resources(kLog).serialized);
}

TEST(kernel_resources, registers_that_do_not_move_between_warps_are_over_budget) {
  const KernelResources resources = read_resources(
      std::string("ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain "
                  "minimum register requirements in function 'kernel'\n") +
      kLog);
  EXPECT_TRUE(resources.registers_stay);
  EXPECT_THAT(over_budget(four_warps_twice(), resources), Optional(HasSubstr("left out setmaxnreg")));
  EXPECT_FALSE(read_resources(kLog).registers_stay);
}

}  // namespace
}  // namespace onepass
