#include <gmock/gmock.h>

#include "backends/cpu/backend.h"
#include "onepass/plan.h"

namespace onepass {
namespace {

TEST(device_info, every_known_device_is_found_by_its_name_and_complete) {
  EXPECT_THAT(known_devices(), ::testing::ElementsAre("a100", "h100", "h200", "l40s", "rtx4090", "b200"));
  for (const std::string& name : known_devices()) {
    const auto device = find_device(name);
    ASSERT_TRUE(device.has_value()) << name;
    EXPECT_EQ(device->name, name);
    EXPECT_EQ(device->kind, DeviceInfo::Kind::Cuda);
    EXPECT_GE(device->compute_capability, 80);
    EXPECT_GT(device->num_processors, 100);
    EXPECT_GT(device->memory_bytes_per_second, 5e11);
    EXPECT_GT(device->f16_flops_per_second, device->f32_flops_per_second);
    EXPECT_GT(device->shared_bytes_per_block, 96 << 10);
    EXPECT_LT(device->shared_bytes_per_block, device->l1_bytes_per_processor);
    EXPECT_GT(device->l2_bytes, 32 << 20);
  }
}

TEST(device_info, unknown_names_are_empty) {
  EXPECT_FALSE(find_device("").has_value());
  EXPECT_FALSE(find_device("H200").has_value());
  EXPECT_FALSE(find_device("gtx1080").has_value());
}

TEST(device_info, ampere_has_no_f8_and_ada_hopper_blackwell_have) {
  EXPECT_EQ(find_device("a100")->f8_flops_per_second, 0);
  for (const char* name : {"h100", "h200", "l40s", "rtx4090", "b200"}) {
    EXPECT_GT(find_device(name)->f8_flops_per_second, find_device(name)->f16_flops_per_second) << name;
  }
}

TEST(device_info, this_cpu_is_complete_and_names_the_instruction_set_in_use) {
  const DeviceInfo device = this_cpu();
  EXPECT_EQ(device.kind, DeviceInfo::Kind::Cpu);
  EXPECT_FALSE(device.name.empty());
  EXPECT_GE(device.num_processors, 1);
  EXPECT_GT(device.memory_bytes, std::int64_t{1} << 24);
  EXPECT_GE(device.l1_bytes_per_processor, 8 << 10);
  EXPECT_GE(device.l2_bytes, device.l1_bytes_per_processor);
  EXPECT_GT(device.memory_bytes_per_second, 1e9);
  EXPECT_GT(device.f32_flops_per_second, 1e8 * device.num_processors);
  EXPECT_GE(device.f16_flops_per_second, device.f32_flops_per_second);
  EXPECT_EQ(device.instruction_set, cpu::simd_instruction_sets().front());
  EXPECT_EQ(device, this_cpu());
}

}  // namespace
}  // namespace onepass
