#include "backends/cuda/host/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "backends/cuda/host/forward_params.h"
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/sm90_decode.h"
#include "backends/cuda/host/sm90_forward.h"
#include "dispatch/device_info.h"
#include "plan/cuda_plan.h"
#include "plan/planned_kernel.h"
#include "store/store.h"
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

/// `forward` is the plan's forward kernel, which reads and writes rows in pieces; null when it has none.
void check_pointers(const Driver& driver, const ForwardArguments& args, const PlannedKernel* forward,
                    int device_idx) {
  const auto check = [&](const char* name, const TensorView& view, int alignment) {
    if (view.present() && view.num_elements() > 0)
      check_pointer(driver, "run", name, view.data, device_idx, alignment);
  };
  const int load_bytes = forward != nullptr ? forward->spec.load_bytes : 1;
  check("q", args.q, load_bytes);
  check("k", args.k, load_bytes);
  check("v", args.v, load_bytes);
  check("out", args.out, forward != nullptr ? forward->spec.store_bytes : 1);
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

/// The step's kernel on that device: the store is asked by the first run of a plan only.
const LoadedKernel& loaded_kernel(const PlannedKernel& kernel, int device_idx) {
  const LoadedKernel* loaded = kernel.loaded.load(std::memory_order_acquire);
  if (loaded == nullptr || loaded->device_idx != device_idx) {
    loaded = &KernelStore::instance().get(kernel.spec, device_idx);
    kernel.loaded.store(loaded, std::memory_order_release);
  }
  return *loaded;
}

constexpr std::size_t kMostSteps = 3;  // rows of no sequence filled, attention, splits merged

/// What the kernels of one call take. A launch holds addresses of it.
struct CallParams {
  ForwardParams forward{};
  std::optional<Sm90ForwardParams> sm90_forward;  // for a kernel of that family
  std::optional<Sm90DecodeParams> sm90_decode;    // likewise
};

struct Launch {
  const LoadedKernel* kernel;
  KernelParameters parameters;
};

/// A family whose kernels take something of their own fills it here, in a function of its host file, before
/// anything is launched.
KernelParameters kernel_parameters(KernelFamily family, CallParams& params) {
  switch (family) {
    case KernelFamily::Sm90Forward: return {&params.sm90_forward.value()};
    case KernelFamily::Sm90Decode: return {&params.sm90_decode.value()};
    case KernelFamily::Sm80Forward:
    case KernelFamily::MergeSplits:
    case KernelFamily::FillRows: return {&params.forward};
    default: break;
  }
  throw InternalError(format_message("run", "the plan has a kernel that forward does not launch",
                                     "kernels of a plan made by this library", "please report this"));
}

DeviceInfo ask_device_info(const Driver& driver, int device_idx) {
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

void run_forward(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace,
                 Stream stream) {
  const Driver& driver = Driver::required("run");
  const int device_idx = args.q.device_idx;
  driver.check_device("run", "q", device_idx);
  const ContextScope context(driver, device_idx);
  int* const flag = error_flag(driver, device_idx);
  take_report("run", flag);
  const PlannedKernel* const forward = forward_kernel(plan);
  check_pointers(driver, args, forward, device_idx);
  if (!workspace.empty()) check_pointer(driver, "run", "workspace", workspace.data(), device_idx, 64);

  CallParams params{forward_params(plan, args, workspace), std::nullopt, std::nullopt};
  params.forward.error_flag = flag;
  if (forward != nullptr && forward->spec.family == KernelFamily::Sm90Forward) {
    params.sm90_forward = sm90_forward_params(driver, plan, *forward, args, workspace, params.forward);
  }
  if (forward != nullptr && forward->spec.family == KernelFamily::Sm90Decode) {
    const auto encode = [&](const TiledTensor& tensor) { return encode_tensor_map(driver, tensor); };
    params.sm90_decode = sm90_decode_params(plan, *forward, args, workspace, params.forward, encode);
  }
  std::array<Launch, kMostSteps> launches{};
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const PlannedKernel& kernel = *plan.steps[i].gpu_kernel;
    launches.at(i) = {&loaded_kernel(kernel, device_idx), kernel_parameters(kernel.spec.family, params)};
  }
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    launch_kernel(driver, *launches[i].kernel, plan.steps[i].num_work_items, launches[i].parameters, stream);
  }
}

void report_kernel_errors(const char* call, int device_idx) {
  const Driver* driver = Driver::instance();
  if (driver == nullptr || device_idx < 0 || device_idx >= driver->num_devices()) return;
  const ContextScope context(*driver, device_idx);
  take_report(call, error_flag(*driver, device_idx));
}

const DeviceInfo& device_info(int device_idx, const char* call) {
  const Driver& driver = Driver::required(call);
  driver.check_device(call, "q", device_idx);
  static std::mutex mutex;
  static std::map<int, DeviceInfo> known;  // by index; what is in a map stays where it is
  const std::lock_guard lock(mutex);
  auto it = known.find(device_idx);
  if (it == known.end()) it = known.emplace(device_idx, ask_device_info(driver, device_idx)).first;
  return it->second;
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
