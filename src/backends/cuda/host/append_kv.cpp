#include "backends/cuda/host/append_kv.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "backends/cuda/host/call.h"
#include "backends/cuda/host/forward.h"
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/scale_params.h"
#include "plan/cuda_plan.h"
#include "problem/checker.h"
#include "support/message.h"

namespace onepass::cuda {
namespace {

constexpr std::int64_t kMostInt = std::numeric_limits<int>::max();
constexpr int kPieceBytes = 16;

TensorParams tensor_params(const TensorView& t) {
  if (!t.present()) return {};
  const auto row = static_cast<std::size_t>(t.rank - 3);
  return {t.data, t.rank == 4 ? t.strides[0] : 0, t.strides[row], t.strides[row + 1]};
}

IndexParams index_params(const TensorView& t) {
  return {static_cast<const int*>(t.data), t.present() ? t.strides[0] : 0};
}

IndexResultParams result_params(const TensorView& t) {
  return {static_cast<int*>(t.data), t.present() ? t.strides[0] : 0};
}

using Views = std::array<NamedView, 6>;

Views element_tensors(const AppendArguments& args) {
  return {{{"k_new", args.k_new},
           {"v_new", args.v_new},
           {"k_cache", args.k_cache},
           {"v_cache", args.v_cache},
           {"q", args.q},
           {"q_out", args.q_out}}};
}

/// Whether every head's row can be read or written in pieces of eight elements (16 bytes, in a cache with
/// 8 bits 8), whatever its index.
bool in_pieces(const TensorView& t) {
  if (!t.present() || t.num_elements() == 0) return true;
  constexpr std::int64_t kElements = kPieceBytes / 2;
  const auto bytes = static_cast<std::uintptr_t>(kElements * dtype_bytes(t.dtype));
  if (reinterpret_cast<std::uintptr_t>(t.data) % bytes != 0) return false;
  const auto last = static_cast<std::size_t>(t.rank - 1);
  if (t.shape[last] % kElements != 0) return false;
  for (std::size_t i = 0; i < last; ++i) {
    if (t.shape[i] > 1 && t.strides[i] % kElements != 0) return false;
  }
  return true;
}

void check_supported(const char* call, const AppendArguments& args, const AppendProblem& problem) {
  const auto decline = [&](const std::string& given, const char* allowed, const char* fix) {
    throw NotSupported(format_message(call, given, allowed, fix));
  };
  if (args.k_new.dtype != DType::F16 && args.k_new.dtype != DType::BF16) {
    decline(fmt::format("k_new has dtype {} on a GPU", dtype_name(args.k_new.dtype)), "f16 or bf16",
            "convert the tensors, or append on the CPU");
  }
  for (const NamedView& t : element_tensors(args)) {
    const auto last = static_cast<std::size_t>(std::max(t.view.rank - 1, 0));
    if (t.view.present() && t.view.shape[last] > 1 && t.view.strides[last] != 1) {
      decline(fmt::format("{} has stride {} in its last dimension", t.name, t.view.strides[last]),
              "1 on a GPU", "make the last dimension contiguous");
    }
  }
  for (const NamedView& t :
       {NamedView{"rotary_cos", args.rotary_cos}, NamedView{"rotary_sin", args.rotary_sin}}) {
    if (t.view.present() && t.view.shape[1] > 1 && t.view.strides[1] != 1) {
      decline(fmt::format("{} has stride {} in its last dimension", t.name, t.view.strides[1]), "1 on a GPU",
              "make the last dimension contiguous");
    }
  }
  const std::int64_t most =
      std::max({problem.rows_new.total + problem.rows_q.total + problem.batch, problem.capacity,
                problem.cache_rows, problem.num_pages, problem.num_positions});
  if (most > kMostInt) {
    decline(fmt::format("a number of rows is {}", most),
            "rows, capacity, pages and positions below 2^31 on a GPU",
            "append parts of the batch one after another");
  }
}

}  // namespace

AppendLaunch append_launch(const char* call, const AppendArguments& args, const AppendProblem& problem,
                           const AppendOptions& options, int compute_capability, int* error_flag) {
  check_supported(call, args, problem);
  const auto tensors = element_tensors(args);
  const std::int64_t pairs = problem.rotary_dim / 2;
  const bool pieces =
      pairs % (kPieceBytes / 2) == 0 &&
      std::all_of(tensors.begin(), tensors.end(), [](const NamedView& t) { return in_pieces(t.view); });
  AppendLaunch launch;
  launch.spec =
      append_kv_kernel(compute_capability, args.k_new.dtype, args.k_cache.dtype, pieces ? kPieceBytes : 2);
  const int width = launch.spec.load_bytes / 2;

  AppendKvParams& p = launch.params;
  p.k_new = tensor_params(args.k_new);
  p.v_new = tensor_params(args.v_new);
  p.k_cache = tensor_params(args.k_cache);
  p.v_cache = tensor_params(args.v_cache);
  p.q = tensor_params(args.q);
  p.q_out = tensor_params(args.q_out);
  p.cu_seqlens_new = index_params(args.cu_seqlens_new);
  p.cu_seqlens_q = index_params(args.cu_seqlens_q);
  p.seqused_new = index_params(args.seqused_new);
  p.cache_seqlens = index_params(args.cache_seqlens);
  p.cache_batch_idx = index_params(args.cache_batch_idx);
  p.rotary_positions = index_params(args.rotary_positions);
  if (args.block_table.present()) {
    p.block_table = static_cast<const int*>(args.block_table.data);
    p.table_batch_stride = args.block_table.strides[0];
    p.table_page_stride = args.block_table.strides[1];
  }
  if (pairs > 0) {
    p.rotary_cos = args.rotary_cos.data;
    p.rotary_sin = args.rotary_sin.data;
    p.cos_stride = args.rotary_cos.strides[0];
    p.sin_stride = args.rotary_sin.strides[0];
    p.tables_are_f32 = args.rotary_cos.dtype == DType::F32;
  }
  p.k_scale = scale_params(args.k_descale);
  p.v_scale = scale_params(args.v_descale);
  p.seqlens_out = result_params(args.seqlens_out);
  p.overflow = result_params(args.overflow);
  p.error_flag = error_flag;
  p.seqlen_new = fast_divisor(static_cast<int>(problem.rows_new.seqlen));
  p.seqlen_q = fast_divisor(static_cast<int>(problem.rows_q.seqlen));
  p.page_size = fast_divisor(static_cast<int>(problem.page_size));
  p.k_units = fast_divisor(static_cast<int>((problem.head_dim - pairs) / width));
  p.v_units = fast_divisor(static_cast<int>(problem.head_dim_v / width));
  p.capacity = problem.capacity;
  p.batch = static_cast<int>(problem.batch);
  p.num_heads_k = static_cast<int>(problem.num_heads_k);
  p.num_heads_q = static_cast<int>(problem.num_heads_q);
  p.head_dim = static_cast<int>(problem.head_dim);
  p.head_dim_v = static_cast<int>(problem.head_dim_v);
  p.rows_new = static_cast<int>(problem.rows_new.total);
  p.rows_q = static_cast<int>(problem.rows_q.total);
  p.cache_rows = static_cast<int>(problem.cache_rows);
  p.num_pages = static_cast<int>(problem.num_pages);
  p.rotary_pairs = static_cast<int>(pairs);
  p.num_positions = static_cast<int>(problem.num_positions);
  p.interleaved = options.rotary_interleaved;
  p.q_at_first_position = options.q_at_first_position;

  const int warps = launch.spec.num_warps;
  launch.grid = problem.rows_new.total + problem.rows_q.total +
                (args.seqlens_out.present() ? (problem.batch + warps - 1) / warps : 0);
  return launch;
}

void append_kv(const AppendArguments& args, const AppendProblem& problem, const AppendOptions& options,
               Stream stream) {
  constexpr const char* kCall = "append_kv";
  const Driver& driver = Driver::required(kCall);
  const int device_idx = args.k_new.device_idx;
  driver.check_device(kCall, "k_new", device_idx);
  const ContextScope context(driver, device_idx);
  report_kernel_errors(kCall, device_idx);
  const AppendLaunch launch = append_launch(
      kCall, args, problem, options, driver.compute_capability(device_idx), error_flag(driver, device_idx));
  const auto check = [&](const NamedView& t) {
    if (t.view.num_elements() == 0) return;
    check_pointer(driver, kCall, t.name, t.view.data, device_idx,
                  static_cast<int>(dtype_bytes(t.view.dtype)));
  };
  for (const NamedView& t : element_tensors(args)) check(t);
  for (const NamedView& t :
       {NamedView{"cu_seqlens_new", args.cu_seqlens_new}, NamedView{"cu_seqlens_q", args.cu_seqlens_q},
        NamedView{"seqused_new", args.seqused_new}, NamedView{"cache_seqlens", args.cache_seqlens},
        NamedView{"cache_batch_idx", args.cache_batch_idx},
        NamedView{"rotary_positions", args.rotary_positions}, NamedView{"block_table", args.block_table},
        NamedView{"rotary_cos", args.rotary_cos}, NamedView{"rotary_sin", args.rotary_sin},
        NamedView{"k_descale", args.k_descale}, NamedView{"v_descale", args.v_descale},
        NamedView{"seqlens_out", args.seqlens_out}, NamedView{"overflow", args.overflow}}) {
    check(t);
  }
  if (launch.grid == 0) return;
  AppendKvParams params = launch.params;
  launch_kernel(driver, KernelStore::instance().get(launch.spec, device_idx), launch.grid, {&params}, stream);
}

}  // namespace onepass::cuda
