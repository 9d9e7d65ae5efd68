// The text of append_kv on the CPU, against plain loops.
#include <gtest/gtest.h>

#include "backends/cuda/host/append_kv.h"
#include "tests/cpu/append_case.h"
#include "tests/emulator/block.h"
#include "tests/emulator/cases.h"
#include "tests/emulator/kernel_table.h"

namespace onepass::emulator {
namespace {

/// As append_kv launches it on a GPU, twice: to write the same rows again changes nothing.
void run(AppendCase& c, int* error_flag) {
  // Index values that lead nowhere are the kernel's to find.
  for (TensorView* view : c.views()) view->device = DeviceKind::Cuda;
  const AppendProblem problem = validate_append("append_kv", c.args, c.options);
  const cuda::AppendLaunch launched =
      cuda::append_launch("append_kv", c.args, problem, c.options, kForwardInstructions, error_flag);
  for (TensorView* view : c.views()) view->device = DeviceKind::Cpu;
  const EmulatedKernel& kernel = kernel_named(kernel_name(launched.spec));
  try {
    for (const BlockOrder order : {BlockOrder::Ascending, BlockOrder::Descending}) {
      if (launched.grid == 0) continue;
      launch([&] { kernel.entry(&launched.params); }, {launched.grid, num_threads(launched.spec),
                                                       static_cast<int>(shared_bytes(launched.spec)), order});
    }
  } catch (const Fault& fault) {
    FAIL() << fault.what();
  }
}

TEST(emulated_append_kv, writes_rows_where_they_belong_and_leaves_alone_what_does_not_fit) {
  std::int64_t misfits = 0;
  for (std::int64_t seed = 0; seed < 24; ++seed) {
    for (const DType dtype : {DType::F16, DType::BF16}) {
      for (const bool in_pieces : {false, true}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " seed " + std::to_string(seed) +
                     (in_pieces ? " pieces" : ""));
        AppendCase c(seed, {dtype, in_pieces, seed % 2 == 1});
        int error = 0;
        ASSERT_NO_FATAL_FAILURE(run(c, &error));
        c.expect_right();
        if (::testing::Test::HasFailure()) return;
        EXPECT_EQ(error, 0);
        misfits += c.num_misfits();
      }
    }
  }
  EXPECT_GT(misfits, 10);
}

TEST(emulated_append_kv, divides_rows_for_a_cache_of_8_bits) {
  for (std::int64_t seed = 100; seed < 116; ++seed) {
    for (const DType dtype : {DType::F16, DType::BF16}) {
      for (const DType stored : {DType::F8E4M3, DType::F8E5M2, DType::I8}) {
        for (const bool in_pieces : {false, true}) {
          SCOPED_TRACE(std::string(dtype_name(dtype)) + " to " + dtype_name(stored) + " seed " +
                       std::to_string(seed) + (in_pieces ? " pieces" : ""));
          AppendCase c(seed, {dtype, in_pieces, seed % 2 == 1, stored});
          int error = 0;
          ASSERT_NO_FATAL_FAILURE(run(c, &error));
          c.expect_right();
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST(emulated_append_kv, raises_the_devices_flag_where_the_call_has_none) {
  for (std::int64_t seed = 1; seed < 40; seed += 2) {
    AppendCase c(seed, {DType::BF16, true, true});
    c.args.overflow = {};
    if (!c.args.seqlens_out.present()) continue;
    int error = 0;
    ASSERT_NO_FATAL_FAILURE(run(c, &error));
    EXPECT_EQ(error != 0, c.num_misfits() > 0) << "seed " << seed;
  }
}

}  // namespace
}  // namespace onepass::emulator
