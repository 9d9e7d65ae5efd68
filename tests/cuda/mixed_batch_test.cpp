// Parts of prompts and decoding sequences in one packed call: two or three launches, whose result is that of
// separate calls.
#include "plan/mixed_plan.h"
#include "tests/cuda/on_gpu.h"

namespace onepass {
namespace {

using gpu_mixed = OnGpu;

struct MixedSizes {
  std::vector<std::int32_t> rows, keys;
  std::int64_t heads_q = 32, heads_k = 8, head_dim = 128;
  std::int64_t gap = 0;  // rows of nobody behind each sequence
  bool paged = true, sinks = false;
};

std::int32_t* ints(const TensorView& view) { return static_cast<std::int32_t*>(view.data); }

TensorView keep_ints(Call& call, const std::vector<std::int32_t>& values) {
  const TensorView view = call.keep(HostTensor(DType::I32, {static_cast<std::int64_t>(values.size())}));
  std::copy(values.begin(), values.end(), ints(view));
  return view;
}

void make_call(Call& call, const MixedSizes& s, DType dtype) {
  const auto batch = static_cast<std::int64_t>(s.rows.size());
  std::vector<std::int32_t> cu_q, cu_k = {0};
  std::int64_t total = s.gap;
  for (std::size_t b = 0; b < s.rows.size(); ++b) {
    cu_q.push_back(static_cast<std::int32_t>(total));
    total += s.rows[b] + s.gap;
    cu_k.push_back(cu_k.back() + s.keys[b]);
  }
  cu_q.push_back(static_cast<std::int32_t>(total));
  call.args.q = call.keep(HostTensor(dtype, {total, s.heads_q, s.head_dim}, noise(1)));
  call.args.cu_seqlens_q = keep_ints(call, cu_q);
  if (s.gap > 0) call.args.seqused_q = keep_ints(call, s.rows);
  if (s.paged) {
    constexpr std::int64_t kPage = 16;
    const std::int64_t columns = (*std::max_element(s.keys.begin(), s.keys.end()) + kPage - 1) / kPage;
    call.args.k = call.keep(HostTensor(dtype, {batch * columns, kPage, s.heads_k, s.head_dim}, noise(2)));
    call.args.v = call.keep(HostTensor(dtype, {batch * columns, kPage, s.heads_k, s.head_dim}, noise(3)));
    call.args.block_table = call.keep(HostTensor(DType::I32, {batch, columns}));
    for (std::int64_t i = 0; i < batch * columns; ++i) {
      ints(call.args.block_table)[i] = static_cast<std::int32_t>(batch * columns - 1 - i);
    }
    call.args.seqused_k = keep_ints(call, s.keys);
  } else {
    call.args.k = call.keep(HostTensor(dtype, {cu_k.back(), s.heads_k, s.head_dim}, noise(2)));
    call.args.v = call.keep(HostTensor(dtype, {cu_k.back(), s.heads_k, s.head_dim}, noise(3)));
    call.args.cu_seqlens_k = keep_ints(call, cu_k);
  }
  if (s.sinks) call.args.sinks = call.keep(HostTensor(DType::F32, {s.heads_q}, noise(4)));
  call.options.causal = Causal::BottomRight;
  call.allocate_outputs();
}

void check(const MixedSizes& s, DType dtype) {
  Call call;
  make_call(call, s, dtype);
  const verify::GpuCall gpu("run", call.args, call.options);
  EXPECT_EQ(gpu.plan().implementation, kMixedForward);
  gpu.run();
  EXPECT_EQ(gpu.copy_back(), std::nullopt);
  const verify::CheckReport report = verify::check_result(call.args, call.options);
  EXPECT_TRUE(report.passed) << report.text();
  // As a graph replays it: what the workspace held does not matter.
  const std::vector<unsigned char> first = bytes_of(call.args.out);
  gpu.run();
  EXPECT_EQ(gpu.copy_back(), std::nullopt);
  EXPECT_EQ(bytes_of(call.args.out), first);
}

TEST_F(gpu_mixed, agrees_with_float64_in_pages_and_packed_keys) {
  for (const DType dtype : {DType::BF16, DType::F16}) {
    check({.rows = {1, 300, 1, 1, 0, 12, 1, 13}, .keys = {700, 900, 1, 33, 50, 600, 1000, 513}}, dtype);
    check({.rows = {1, 1, 257, 1, 4}, .keys = {2000, 3, 257, 640, 1111}, .paged = false}, dtype);
    check({.rows = {1, 1, 257, 1, 4},
           .keys = {600, 3, 257, 640, 1111},
           .heads_q = 4,
           .heads_k = 4,
           .head_dim = 64,
           .gap = 3,
           .sinks = true},
          dtype);
    check({.rows = {200, 1, 1, 1}, .keys = {600, 3, 257, 640}, .heads_q = 6, .heads_k = 2, .head_dim = 256},
          dtype);
  }
}

/// `rows`: of the four sequences that the plan is made for.
void check_other_lengths(const std::vector<std::int32_t>& rows, std::size_t num_launches) {
  Call call;
  make_call(call, {.rows = rows, .keys = {900, 700, 1, 1000}}, DType::BF16);
  const verify::GpuCall gpu("run", call.args, call.options);
  ASSERT_EQ(gpu.plan().implementation, kMixedForward);
  ASSERT_EQ(gpu.plan().parts.size(), num_launches);
  for (const std::vector<std::int32_t>& offsets :
       std::vector<std::vector<std::int32_t>>{{0, 1, 2, 3, 4},
                                              {0, 100, 200, 300, 303},
                                              {0, 12, 17, 20, 33},
                                              {0, 0, 0, 0, 0},
                                              {0, 300, 301, 302, 303}}) {
    std::copy(offsets.begin(), offsets.end(), ints(call.args.cu_seqlens_q));
    std::memset(call.args.out.data, verify::kPoison, bytes_of(call.args.out).size());
    gpu.upload();
    gpu.run();
    EXPECT_EQ(gpu.copy_back(), std::nullopt);
    const verify::CheckReport report = verify::check_result(call.args, call.options);
    EXPECT_TRUE(report.passed) << offsets[1] << ": " << report.text();
  }
}

TEST_F(gpu_mixed, lengths_may_change_between_runs_so_that_one_kind_is_absent) {
  check_other_lengths({300, 1, 1, 1}, 2);
  check_other_lengths({300, 7, 1, 1}, 3);
}

}  // namespace
}  // namespace onepass
