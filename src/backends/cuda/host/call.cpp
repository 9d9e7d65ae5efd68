#include "backends/cuda/host/call.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "backends/cuda/kernels/params.h"
#include "support/message.h"

namespace onepass::cuda {
namespace {

/// @throws InvalidArgument when a kernel has reported an error since the last call with this flag.
void take_report(const char* call, volatile int* flag) {
  const int error = *flag;
  if (error == 0) return;
  *flag = 0;
  const bool page = error == static_cast<int>(KernelError::PageOutOfPool);
  throw_invalid(call,
                page ? "an earlier call on this GPU met a block_table entry outside its pool"
                     : "an earlier call on this GPU met a length past its tensors or its plan's bounds",
                page ? "entries from 0 to the number of pages - 1 in the columns that seqused_k uses"
                     : "offsets and lengths inside the tensors, and up to max_seqlen_q and max_seqlen_k",
                "correct the index tensors of that call; it stayed in bounds, and its result is not valid");
}

const Driver& driver_of(const TensorView& q) {
  const Driver& driver = Driver::required("run");
  driver.check_device("run", "q", q.device_idx);
  return driver;
}

}  // namespace

int* error_flag(const Driver& driver, int device_idx) {
  static std::mutex mutex;
  static std::vector<int*> flags;
  const std::lock_guard lock(mutex);
  flags.resize(std::max(flags.size(), static_cast<std::size_t>(driver.num_devices())), nullptr);
  int*& flag = flags.at(static_cast<std::size_t>(device_idx));
  if (flag == nullptr) {
    constexpr unsigned kPortableMapped = 1u | 2u;
    void* memory = nullptr;
    driver.check(driver.api().cuMemHostAlloc(&memory, sizeof(int), kPortableMapped), "cuMemHostAlloc");
    flag = static_cast<int*>(memory);
    *flag = 0;
  }
  return flag;
}

Call::Call(const TensorView& q)
    : driver_(driver_of(q)),
      device_idx_(q.device_idx),
      context_(driver_, device_idx_),
      error_flag_(onepass::cuda::error_flag(driver_, device_idx_)) {
  take_report("run", error_flag_);
}

void Call::check(const char* name, const TensorView& view, int alignment) const {
  if (view.present() && view.num_elements() > 0)
    check_pointer(driver_, "run", name, view.data, device_idx_, alignment);
}

void Call::check_forward(const ForwardArguments& args, int load_bytes, int out_bytes) const {
  check("q", args.q, load_bytes);
  check("k", args.k, load_bytes);
  check("v", args.v, load_bytes);
  check("out", args.out, out_bytes);
  check("softmax_lse", args.softmax_lse, 4);
  check("cu_seqlens_q", args.cu_seqlens_q, 4);
  check("cu_seqlens_k", args.cu_seqlens_k, 4);
  check("seqused_q", args.seqused_q, 4);
  check("seqused_k", args.seqused_k, 4);
  check("block_table", args.block_table, 4);
  check("alibi_slopes", args.alibi_slopes, 4);
  check("bias", args.bias, static_cast<int>(dtype_bytes(args.bias.dtype)));
  check("sinks", args.sinks, 4);
  check("k_descale", args.k_descale, 4);
  check("v_descale", args.v_descale, 4);
}

void Call::check_workspace(std::span<std::byte> workspace) const {
  if (!workspace.empty()) check_pointer(driver_, "run", "workspace", workspace.data(), device_idx_, 64);
}

const LoadedKernel& Call::loaded(const PlannedKernel& kernel) const {
  const LoadedKernel* loaded = kernel.loaded.load(std::memory_order_acquire);
  if (loaded == nullptr || loaded->device_idx != device_idx_) {
    loaded = &KernelStore::instance().get(kernel.spec, device_idx_);
    kernel.loaded.store(loaded, std::memory_order_release);
  }
  return *loaded;
}

void throw_unknown_kernel(const char* call) {
  throw InternalError(format_message("run",
                                     std::string("the plan has a kernel that ") + call + " does not launch",
                                     "kernels of a plan made by this library", "please report this"));
}

void report_kernel_errors(const char* call, int device_idx) {
  const Driver* driver = Driver::instance();
  if (driver == nullptr || device_idx < 0 || device_idx >= driver->num_devices()) return;
  const ContextScope context(*driver, device_idx);
  take_report(call, error_flag(*driver, device_idx));
}

}  // namespace onepass::cuda
