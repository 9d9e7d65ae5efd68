#include "cli/input_sets.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "verify/tensor_views.h"

namespace onepass::cli {
namespace {

constexpr double kCacheMultiple = 1.5;
constexpr double kMemoryShare = 1.0 / 8;
constexpr double kMostSets = 4096;

double total_bytes(const verify::CaseTensors& tensors) {
  double bytes = 0;
  for (const auto& buffer : tensors.buffers) bytes += static_cast<double>(buffer.memory->size());
  return bytes;
}

/// Turns the views that lead into [from, from + bytes) to the same place in `to`.
void move_views(ForwardArguments& args, const unsigned char* from, std::size_t bytes, void* to) {
  for (TensorView* view : verify::all_views(args)) {
    const auto* data = static_cast<const unsigned char*>(view->data);
    if (data == nullptr || data < from || data >= from + bytes) continue;
    view->data = static_cast<unsigned char*>(to) + (data - from);
  }
}

}  // namespace

std::size_t count_input_sets(const verify::CaseTensors& tensors, const DeviceInfo& device) {
  const double bytes = std::max(total_bytes(tensors), 1.0);
  const double wanted = std::ceil(kCacheMultiple * static_cast<double>(device.l2_bytes) / bytes);
  const double room = std::floor(kMemoryShare * static_cast<double>(device.memory_bytes) / bytes);
  return static_cast<std::size_t>(std::clamp(std::min(wanted, room), 1.0, kMostSets));
}

InputSets::InputSets(const verify::CaseTensors& tensors, bool memory_bound, const DeviceInfo& device) {
  const std::size_t count = memory_bound ? count_input_sets(tensors, device) : 1;
  args_.assign(count, tensors.args);
  for (std::size_t i = 1; i < count; ++i) {
    for (const auto& buffer : tensors.buffers) {
      const verify::GuardedBuffer& from = *buffer.memory;
      memory_.push_back(std::make_unique<verify::GuardedBuffer>(from.size()));
      std::memcpy(memory_.back()->data(), from.bytes(), from.size());
      move_views(args_[i], from.bytes(), from.size(), memory_.back()->data());
    }
  }
}

}  // namespace onepass::cli
