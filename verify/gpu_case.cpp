#include "verify/gpu_case.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "backends/cuda/host/driver.h"
#include "problem/validate.h"
#include "support/message.h"
#include "verify/case_tensors.h"

namespace onepass::verify {
namespace {

using cuda::ContextScope;
using cuda::CUdeviceptr;
using cuda::Driver;

constexpr std::size_t kGuard = 1024;

const Driver& require_driver() {
  if (Driver::instance() != nullptr) return *Driver::instance();
  throw EnvironmentError(format_message("check on GPU", Driver::missing_reason(),
                                        "an NVIDIA GPU with its driver", "check on the CPU"));
}

/// Device memory between two guards of poison.
class DeviceBuffer {
 public:
  DeviceBuffer(const Driver& driver, std::size_t bytes) : driver_(driver), bytes_(bytes) {
    driver_.check(driver_.api().cuMemAlloc_v2(&base_, bytes_ + 2 * kGuard), "cuMemAlloc");
    const std::vector<unsigned char> poison(bytes_ + 2 * kGuard, kPoison);
    driver_.check(driver_.api().cuMemcpyHtoD_v2(base_, poison.data(), poison.size()), "cuMemcpyHtoD");
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : driver_(other.driver_), base_(other.base_), bytes_(other.bytes_) {
    other.base_ = 0;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  ~DeviceBuffer() {
    if (base_ != 0) driver_.api().cuMemFree_v2(base_);
  }

  void* data() const { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(base_ + kGuard)); }
  std::size_t size() const { return bytes_; }
  void upload(const void* host) {
    if (bytes_ > 0)
      driver_.check(driver_.api().cuMemcpyHtoD_v2(base_ + kGuard, host, bytes_), "cuMemcpyHtoD");
  }
  /// Copies the contents to `host`; false when a guard was written.
  bool download(void* host) const {
    std::vector<unsigned char> all(bytes_ + 2 * kGuard);
    driver_.check(driver_.api().cuMemcpyDtoH_v2(all.data(), base_, all.size()), "cuMemcpyDtoH");
    if (bytes_ > 0) std::memcpy(host, all.data() + kGuard, bytes_);
    const auto intact = [](auto begin, auto end) {
      return std::all_of(begin, end, [](unsigned char c) { return c == kPoison; });
    };
    return intact(all.begin(), all.begin() + kGuard) && intact(all.end() - kGuard, all.end());
  }

 private:
  const Driver& driver_;
  CUdeviceptr base_ = 0;
  std::size_t bytes_;
};

/// The views of `args` with addresses inside the device copies.
ForwardArguments on_device(const ForwardArguments& args, const CaseTensors& host,
                           const std::vector<DeviceBuffer>& device, int device_idx) {
  ForwardArguments moved = args;
  for (TensorView* view :
       {&moved.q, &moved.k, &moved.v, &moved.out, &moved.softmax_lse, &moved.cu_seqlens_q,
        &moved.cu_seqlens_k, &moved.seqused_q, &moved.seqused_k, &moved.block_table, &moved.alibi_slopes,
        &moved.bias, &moved.sinks, &moved.k_descale, &moved.v_descale}) {
    if (!view->present()) continue;
    view->device = DeviceKind::Cuda;
    view->device_idx = device_idx;
    const auto* address = static_cast<const unsigned char*>(view->data);
    for (std::size_t i = 0; i < device.size(); ++i) {
      const unsigned char* begin = host.buffers[i].memory->bytes();
      if (address < begin || address > begin + host.buffers[i].memory->size()) continue;
      view->data = static_cast<unsigned char*>(device[i].data()) + (address - begin);
      break;
    }
  }
  return moved;
}

}  // namespace

CheckReport check_case_on_gpu(const Case& c, int device_idx) {
  const Driver& driver = require_driver();
  CaseTensors host = make_tensors(c);
  const ContextScope context(driver, device_idx);
  std::vector<DeviceBuffer> device;
  for (const CaseTensors::Buffer& buffer : host.buffers) {
    device.emplace_back(driver, buffer.memory->size()).upload(buffer.memory->bytes());
  }

  ForwardOptions options = host.options;
  const AttentionProblem problem = validate_problem("check", host.args, host.options);
  options.max_seqlen_q = problem.seqlen_q;  // lengths lie in device memory, so the bounds are given
  options.max_seqlen_k = problem.seqlen_k;
  options.backend = Backend::Cuda;
  const ForwardArguments args = on_device(host.args, host, device, device_idx);
  const Plan planned = plan(args, options);
  DeviceBuffer workspace(driver, planned.workspace_bytes());
  run(planned, args, {static_cast<std::byte*>(workspace.data()), workspace.size()});
  driver.check(driver.api().cuStreamSynchronize(nullptr), "cuStreamSynchronize");

  std::string damage;
  for (std::size_t i = 0; i < device.size(); ++i) {
    if (!device[i].download(host.buffers[i].memory->data()))
      damage = "memory beside " + host.buffers[i].name + " was written";
  }
  std::vector<unsigned char> rest(workspace.size());
  if (!workspace.download(rest.data())) damage = "memory beside the workspace was written";
  CheckReport report = check_result(host.args, host.options);
  if (const std::optional<std::string> host_damage = host.damage()) damage = *host_damage;
  if (!damage.empty()) {
    report.passed = false;
    report.failure = damage;
  }
  report.repeat = "onepass check " + to_string(c) + " --backend cuda";
  return report;
}

}  // namespace onepass::verify
