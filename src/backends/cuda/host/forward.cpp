#include "backends/cuda/host/forward.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "backends/cuda/host/call.h"
#include "backends/cuda/host/forward_params.h"
#include "backends/cuda/host/sm90_decode.h"
#include "backends/cuda/host/sm90_forward.h"
#include "dispatch/device_info.h"
#include "plan/cuda_plan.h"
#include "plan/mixed_plan.h"
#include "plan/planned_kernel.h"

namespace onepass::cuda {
namespace {

/// What the kernels of one call take. A launch holds addresses of it.
struct CallParams {
  ForwardParams forward{};
  std::optional<Sm90ForwardParams> sm90_forward;  // for a kernel of that family
  std::optional<Sm90DecodeParams> sm90_decode;    // likewise
  std::optional<PartLengthsParams> part_lengths;  // likewise
};

/// A family whose kernels take something of their own fills it here, in a function of its host file, before
/// anything is launched.
KernelParameters kernel_parameters(KernelFamily family, CallParams& params) {
  switch (family) {
    case KernelFamily::Sm90Forward: return {&params.sm90_forward.value()};
    case KernelFamily::Sm90Decode: return {&params.sm90_decode.value()};
    case KernelFamily::PartLengths: return {&params.part_lengths.value()};
    case KernelFamily::Sm80Forward:
    case KernelFamily::MergeSplits:
    case KernelFamily::FillRows: return {&params.forward};
    default: break;
  }
  throw_unknown_kernel("forward");
}

/// A plan's steps with all that they take: whatever can fail has been done.
class PreparedForward {
 public:
  PreparedForward(const Call& call, const Plan& plan, const ForwardArguments& args,
                  std::span<std::byte> workspace)
      : call_(call) {
    const PlannedKernel* const forward = forward_kernel(plan);
    call.check_forward(args, forward != nullptr ? forward->spec.load_bytes : 1,
                       forward != nullptr ? forward->spec.store_bytes : 1);
    call.check_workspace(workspace);
    params_.forward = forward_params(plan, args, workspace);
    params_.forward.error_flag = call.error_flag();
    if (forward != nullptr && forward->spec.family == KernelFamily::Sm90Forward) {
      params_.sm90_forward =
          sm90_forward_params(call.driver(), plan, *forward, args, workspace, params_.forward);
    }
    if (forward != nullptr && forward->spec.family == KernelFamily::Sm90Decode) {
      const auto encode = [&](const TiledTensor& tensor) { return encode_tensor_map(call.driver(), tensor); };
      params_.sm90_decode = sm90_decode_params(plan, *forward, args, workspace, params_.forward, encode);
    }
    if (!plan.parts.empty()) params_.part_lengths = part_lengths_params(plan, args, workspace);
    launches_ = call.prepare(plan, [&](KernelFamily family) { return kernel_parameters(family, params_); });
  }
  PreparedForward(const PreparedForward&) = delete;  // launches hold addresses of the parameters
  PreparedForward& operator=(const PreparedForward&) = delete;

  void queue(Stream stream) const { call_.queue(launches_, stream); }

 private:
  const Call& call_;
  CallParams params_;
  Call::Launches launches_;
};

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

void run_forward(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace,
                 Stream stream) {
  const Call call(args.q);
  const PreparedForward prepared(call, plan, args, workspace);
  prepared.queue(stream);
}

void run_mixed(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace,
               Stream stream) {
  const Call call(args.q);
  const std::span<std::byte> memory = workspace_piece(plan, workspace, kPieceParts);
  const PreparedForward lengths(call, plan, args, workspace);  // and rows of no sequence
  std::array<std::optional<PreparedForward>, kMostParts> parts;
  for (std::size_t i = 0; i < plan.parts.size(); ++i) {
    parts.at(i).emplace(call, plan.parts[i], part_arguments(plan, i, args, workspace),
                        memory.first(plan.parts[i].workspace_bytes()));
  }
  lengths.queue(stream);
  for (std::size_t i = 0; i < plan.parts.size(); ++i) parts.at(i)->queue(stream);
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

}  // namespace onepass::cuda
