#include "backends/cuda/host/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "backends/cuda/host/forward_params.h"
#include "backends/cuda/host/launch.h"
#include "dispatch/device_info.h"
#include "store/kernel_spec.h"
#include "store/store.h"
#include "support/message.h"

namespace onepass::cuda {
namespace {

/// One int per device in host memory that kernels can write: read without waiting for the device.
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

void check_pointers(const Driver& driver, const ForwardArguments& args, const KernelSpec& spec,
                    int device_idx) {
  const auto check = [&](const char* name, const TensorView& view, int alignment) {
    if (view.present() && view.num_elements() > 0)
      check_pointer(driver, "run", name, view.data, device_idx, alignment);
  };
  check("q", args.q, spec.load_bytes);
  check("k", args.k, spec.load_bytes);
  check("v", args.v, spec.load_bytes);
  check("out", args.out, spec.store_bytes);
  check("softmax_lse", args.softmax_lse, 4);
  check("cu_seqlens_q", args.cu_seqlens_q, 4);
  check("cu_seqlens_k", args.cu_seqlens_k, 4);
  check("seqused_q", args.seqused_q, 4);
  check("seqused_k", args.seqused_k, 4);
  check("block_table", args.block_table, 4);
  check("alibi_slopes", args.alibi_slopes, 4);
  check("bias", args.bias, static_cast<int>(dtype_bytes(args.bias.dtype)));
  check("sinks", args.sinks, 4);
}

}  // namespace

void run_forward(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace,
                 Stream stream) {
  const Driver& driver = Driver::required("run");
  const int device_idx = args.q.device_idx;
  driver.check_device("run", "q", device_idx);
  report_kernel_errors("run", device_idx);
  const ContextScope context(driver, device_idx);
  std::vector<std::pair<const LoadedKernel*, std::int64_t>> launches;
  bool score_terms = false;
  for (const PlanStep& step : plan.steps) {
    const KernelSpec spec = parse_kernel_name(step.kernel);
    if (spec.family == KernelFamily::Sm80Forward) {
      check_pointers(driver, args, spec, device_idx);
      score_terms = spec.score_terms;
    }
    launches.emplace_back(&KernelStore::instance().get(spec, device_idx), step.num_work_items);
  }
  if (!workspace.empty()) check_pointer(driver, "run", "workspace", workspace.data(), device_idx, 64);

  ForwardParams params = forward_params(plan, args, workspace, score_terms);
  params.error_flag = error_flag(driver, device_idx);
  for (const auto& [kernel, grid] : launches) {
    launch_kernel(driver, *kernel, grid, params, stream);
  }
}

void report_kernel_errors(const char* call, int device_idx) {
  const Driver* driver = Driver::instance();
  if (driver == nullptr || device_idx < 0 || device_idx >= driver->num_devices()) return;
  const ContextScope context(*driver, device_idx);
  volatile int* flag = error_flag(*driver, device_idx);
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

DeviceInfo device_info(int device_idx, const char* call) {
  const Driver& driver = Driver::required(call);
  driver.check_device(call, "q", device_idx);
  const std::string name = driver.device_name(device_idx);
  DeviceInfo info = device_like(name);  // published throughput of a known model; zeros otherwise
  info.name = name;
  info.kind = DeviceInfo::Kind::Cuda;
  info.compute_capability = driver.compute_capability(device_idx);
  info.num_processors = driver.attribute(kMultiprocessorCount, device_idx);
  info.memory_bytes = static_cast<std::int64_t>(driver.device_memory_bytes(device_idx));
  info.l2_bytes = driver.attribute(kL2CacheBytes, device_idx);
  info.shared_bytes_per_block = driver.attribute(kMaxSharedBytesPerBlockOptin, device_idx);
  return info;
}

StreamMemory::StreamMemory(int device_idx, std::size_t bytes, Stream stream)
    : device_idx_(device_idx), stream_(stream) {
  if (bytes == 0) return;
  const Driver& driver = Driver::required("forward");
  const ContextScope context(driver, device_idx);
  CUdeviceptr address = 0;
  driver.check(driver.api().cuMemAllocAsync(&address, bytes, static_cast<CUstream>(stream.handle)),
               "cuMemAllocAsync");
  memory_ = {reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address)), bytes};
}

StreamMemory::~StreamMemory() {
  if (memory_.empty()) return;
  const Driver& driver = *Driver::instance();
  const ContextScope context(driver, device_idx_);
  driver.api().cuMemFreeAsync(static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(memory_.data())),
                              static_cast<CUstream>(stream_.handle));
}

}  // namespace onepass::cuda
