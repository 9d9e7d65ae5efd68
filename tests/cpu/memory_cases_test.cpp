// Sizes and addresses: offsets past 32 bits, exact workspaces, errors that leave memory alone, peak memory.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpu/call.h"
#include "tests/cpu/sizes.h"
#include "verify/case_tensors.h"

namespace onepass {
namespace {

/// Address space without memory behind it until touched.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~SparseMemory() { munmap(data_, bytes_); }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

/// Elements of `to` become those of `from`, which has the same shape.
void copy_elements(const TensorView& from, const TensorView& to) {
  std::array<std::int64_t, TensorView::kMaxRank> idx{};
  for (std::int64_t n = 0; n < from.num_elements(); ++n) {
    std::int64_t source = 0, destination = 0;
    for (std::size_t d = 0; d < static_cast<std::size_t>(from.rank); ++d) {
      source += idx[d] * from.strides[d];
      destination += idx[d] * to.strides[d];
    }
    store_float(to.data, to.dtype, destination, load_float(from.data, from.dtype, source));
    for (auto d = static_cast<std::size_t>(from.rank); d-- > 0 && ++idx[d] == from.shape[d];) idx[d] = 0;
  }
}

TEST(memory_cases, r27_offsets_past_32_bits_in_rows_heads_and_pages_read_and_write_the_right_elements) {
  on_cpu_targets([](const Target& target) {
    constexpr std::int64_t kFar =
        (std::int64_t{1} << 31) + 64;  // elements; wraps to a negative 32-bit number
    const std::size_t span =
        static_cast<std::size_t>(kFar * 3 + 4096) * static_cast<std::size_t>(dtype_bytes(target.dtype));
    Call near;
    for (auto [view, seed] : {std::pair{&near.args.q, 1}, {&near.args.k, 2}, {&near.args.v, 3}}) {
      *view = near.keep(HostTensor(target.dtype, {1, 3, 2, 8}, noise(seed)));
    }
    near.options.causal = Causal::BottomRight;
    near.run(target);

    const std::vector<std::int64_t> shape = {1, 3, 2, 8};
    const std::vector<std::vector<std::int64_t>> orders = {{0, kFar, 8, 1},
                                                           {0, 8, kFar, 1}};  // far rows, far heads
    for (const auto& strides : orders) {
      std::vector<std::unique_ptr<SparseMemory>> memory;
      const auto far = [&](const TensorView& like) {
        memory.push_back(std::make_unique<SparseMemory>(span));
        const TensorView view = make_view(memory.back()->data(), like.dtype, shape, strides);
        copy_elements(like, view);
        return view;
      };
      ForwardArguments args;
      args.q = far(near.args.q);
      args.k = far(near.args.k);
      args.v = far(near.args.v);
      args.out = far(near.args.q);  // holds other numbers until written
      run_on(target, args, near.options);
      HostTensor out(target.dtype, shape);
      copy_elements(args.out, out.view());
      EXPECT_EQ(bytes_of(out.view()), bytes_of(near.args.out)) << strides[1];
    }

    // A pool whose second page lies far away.
    SparseMemory k_pool(span), v_pool(span);
    const std::vector<std::int64_t> pool_shape = {2, 4, 2, 8}, pool_strides = {kFar, 16, 8, 1};
    Call paged;
    paged.args.q = near.args.q;
    paged.args.k = make_view(k_pool.data(), target.dtype, pool_shape, pool_strides);
    paged.args.v = make_view(v_pool.data(), target.dtype, pool_shape, pool_strides);
    for (auto [from, to] : {std::pair{near.args.k, paged.args.k}, {near.args.v, paged.args.v}}) {
      TensorView page = to;
      page.shape[0] = 1;
      page.shape[1] = 3;
      page.data = static_cast<char*>(page.data) + kFar * dtype_bytes(target.dtype);
      copy_elements(from, page);
    }
    HostTensor table(DType::I32, {1, 1});
    static_cast<std::int32_t*>(table.view().data)[0] = 1;
    paged.args.block_table = paged.keep(std::move(table));
    paged.args.seqused_k = paged.keep(HostTensor{3});
    paged.options = near.options;
    paged.run(target);
    EXPECT_EQ(bytes_of(paged.args.out), bytes_of(near.args.out));
  });
}

TEST(memory_cases, r30_many_short_sequences) {
  constexpr std::int64_t kBatch = full_or_sanitized(65536, 512), kHeads = 8, kDim = 64;
  constexpr std::int64_t kElements = kBatch * 4 * kHeads * kDim;
  SparseMemory zeros(kElements * 2);  // q and k: read only, so pages of zeros that cost nothing
  const auto v = std::make_unique<std::uint16_t[]>(kElements);
  for (std::int64_t n = 0; n < kElements; ++n) {
    v[static_cast<std::size_t>(n)] = float_to_f16(static_cast<float>(n / (kHeads * kDim) % 4 + 1));
  }
  const auto out = std::make_unique<std::uint16_t[]>(kElements);
  ForwardArguments args;
  args.q = make_view(zeros.data(), DType::F16, {kBatch, 4, kHeads, kDim});
  args.k = args.q;
  args.v = make_view(v.get(), DType::F16, {kBatch, 4, kHeads, kDim});
  args.out = make_view(out.get(), DType::F16, {kBatch, 4, kHeads, kDim});
  on_targets({DType::F16}, [&](const Target& target) {
    std::memset(out.get(), 0xff, kElements * 2);
    run_on(target, args, {});
    const std::uint16_t want = float_to_f16(2.5f);
    std::int64_t wrong = 0;
    for (std::int64_t n = 0; n < kElements; ++n) wrong += out[static_cast<std::size_t>(n)] != want;
    EXPECT_EQ(wrong, 0);
  });
}

TEST(memory_cases, r33_a_length_past_the_table_is_an_error_and_nothing_is_written) {
  on_cpu_targets([](const Target& target) {
    Call call;
    call.args.q = call.keep(HostTensor(target.dtype, {1, 1, 1, 8}, constant(0)));
    call.args.k = call.args.v = call.keep(HostTensor(target.dtype, {4, 16, 1, 8}, constant(1)));
    HostTensor table(DType::I32, {1, 4});
    for (std::int32_t n = 0; n < 4; ++n) static_cast<std::int32_t*>(table.view().data)[n] = n;
    call.args.block_table = call.keep(std::move(table));
    call.args.seqused_k = call.keep(HostTensor{64});
    call.run(target);  // as long as the table
    EXPECT_EQ(call.out({0, 0, 0, 0}), 1.0f);

    call.args.seqused_k = call.keep(HostTensor{65});
    call.allocate_outputs();
    const std::vector<std::vector<unsigned char>> before = {
        bytes_of(call.args.out), bytes_of(call.args.softmax_lse), bytes_of(call.args.k),
        bytes_of(call.args.block_table)};
    try {
      run_on(target, call.args, call.options);
      FAIL() << "no error";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("seqused_k[0] is 65"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("4 pages of 16"), std::string::npos) << error.what();
    }
    EXPECT_EQ(before, (std::vector<std::vector<unsigned char>>{
                          bytes_of(call.args.out), bytes_of(call.args.softmax_lse), bytes_of(call.args.k),
                          bytes_of(call.args.block_table)}));
    for (const HostTensor& tensor : call.memory) EXPECT_TRUE(tensor.memory().guards_intact());
  });
}

TEST(memory_cases, a_page_out_of_the_pool_is_an_error_and_nothing_is_written) {
  on_cpu_targets([](const Target& target) {
    for (const std::int32_t page : {-1, 4, std::numeric_limits<std::int32_t>::max()}) {
      Call call;
      call.args.q = call.keep(HostTensor(target.dtype, {1, 1, 1, 8}, constant(0)));
      call.args.k = call.args.v = call.keep(HostTensor(target.dtype, {4, 16, 1, 8}, constant(1)));
      HostTensor table(DType::I32, {1, 2});
      static_cast<std::int32_t*>(table.view().data)[0] = 0;
      static_cast<std::int32_t*>(table.view().data)[1] = page;
      call.args.block_table = call.keep(std::move(table));
      call.args.seqused_k = call.keep(HostTensor{17});
      call.allocate_outputs();
      const auto before = bytes_of(call.args.out);
      EXPECT_THROW(run_on(target, call.args, call.options), InvalidArgument) << page;
      EXPECT_EQ(before, bytes_of(call.args.out));
    }
  });
}

void expect_exact_workspace(DType dtype, const std::string& text) {
  check_on_targets({dtype}, text);  // in workspaces of exactly the planned size, between guards

  const verify::CaseTensors tensors =
      verify::make_tensors(parse_case(std::string(dtype_name(dtype)) + "_" + text));
  const Plan planned = plan(tensors.args, tensors.options);
  ASSERT_GT(planned.workspace_bytes(), 0u);
  verify::GuardedBuffer workspace(planned.workspace_bytes());
  try {
    run(planned, tensors.args, {static_cast<std::byte*>(workspace.data()), workspace.size() - 1});
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(std::to_string(workspace.size() - 1) + " bytes"), std::string::npos) << message;
    EXPECT_NE(message.find(std::to_string(workspace.size()) + " bytes"), std::string::npos) << message;
  }
  EXPECT_EQ(tensors.damage(), std::nullopt);
}

TEST(memory_cases, r44_a_workspace_of_exactly_the_planned_size_suffices_and_one_byte_less_is_an_error) {
  for (const int head_dim : {128, 256}) {
    expect_exact_workspace(
        DType::BF16, fmt::format("b{}_hq64_hk4_sq1_sk3_ragged_d{}", full_or_sanitized(528, 66), head_dim));
    for (const DType dtype : kFloatTypes) {  // enough keys for each split to have some
      expect_exact_workspace(
          dtype, fmt::format("b3_hq{}_hk4_sq1_sk600_split2_d{}", full_or_sanitized(64, 16), head_dim));
    }
  }
}

constexpr std::size_t kPeakBound = 64u << 20;  // beside inputs and outputs

TEST(memory_cases, the_workspace_of_a_long_sequence_stays_far_below_the_score_matrix) {
  for (const char* dtype : {"f32", "f16", "bf16"}) {
    for (const char* rest : {"_b1_hq1_sq32768_d64", "_b1_hq1_sq32768_d128_causal",
                             "_b1_hq1_sq1_sk1048576_d128", "_b1_hq32_hk8_sq1_sk32768_d128"}) {
      for (const int threads : {1, 2, 16, 64}) {
        auto shapes = verify::case_shapes(parse_case(std::string(dtype) + rest));
        shapes.options.num_threads = threads;
        EXPECT_LT(plan(shapes.args, shapes.options).workspace_bytes(), kPeakBound)
            << dtype << rest << " threads " << threads;
      }
    }
  }
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// A sanitizer's shadow memory is resident too, and grows with what a program touches.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMeasuresOwnMemoryOnly = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kMeasuresOwnMemoryOnly = false;
#else
constexpr bool kMeasuresOwnMemoryOnly = true;
#endif
#else
constexpr bool kMeasuresOwnMemoryOnly = true;
#endif

TEST(memory_cases, resident_memory_grows_by_less_than_64_mb_while_a_long_sequence_is_computed) {
  // The window leaves the lengths, and so every buffer, as they are, and makes the run short.
  verify::CaseTensors tensors = verify::make_tensors(parse_case("f32_b1_hq1_sq32768_d64_wl255_wr0_nopoison"));
  const std::size_t before = resident_bytes();
  std::atomic<bool> finished = false;
  std::size_t peak = before;
  std::thread observer([&] {
    while (!finished) {
      peak = std::max(peak, resident_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  tensors.options.num_threads = 2;
  forward(tensors.args, tensors.options);
  finished = true;
  observer.join();
  EXPECT_TRUE(std::isfinite(static_cast<const float*>(tensors.args.out.data)[32767 * 64]));
  if (kMeasuresOwnMemoryOnly) {
    EXPECT_LT(peak - before, kPeakBound);
  }
}

}  // namespace
}  // namespace onepass
