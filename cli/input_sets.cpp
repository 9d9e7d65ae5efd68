#include "cli/input_sets.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

std::size_t count_sets(double bytes, const DeviceInfo& device) {
  const double wanted =
      std::ceil(kCacheMultiple * static_cast<double>(device.l2_bytes) / std::max(bytes, 1.0));
  const double room =
      std::floor(kMemoryShare * static_cast<double>(device.memory_bytes) / std::max(bytes, 1.0));
  return static_cast<std::size_t>(std::clamp(std::min(wanted, room), 1.0, kMostSets));
}

constexpr TensorView ForwardArguments::*kViews[] = {&ForwardArguments::q,
                                                    &ForwardArguments::k,
                                                    &ForwardArguments::v,
                                                    &ForwardArguments::out,
                                                    &ForwardArguments::softmax_lse,
                                                    &ForwardArguments::cu_seqlens_q,
                                                    &ForwardArguments::cu_seqlens_k,
                                                    &ForwardArguments::seqused_q,
                                                    &ForwardArguments::seqused_k,
                                                    &ForwardArguments::block_table,
                                                    &ForwardArguments::alibi_slopes,
                                                    &ForwardArguments::bias,
                                                    &ForwardArguments::sinks,
                                                    &ForwardArguments::k_descale,
                                                    &ForwardArguments::v_descale};

/// Turns the views that lead into [from, from + bytes) to the same place in `to`.
void move_views(ForwardArguments& args, const unsigned char* from, std::size_t bytes, void* to) {
  for (const auto member : kViews) {
    TensorView& view = args.*member;
    const auto* data = static_cast<const unsigned char*>(view.data);
    if (data == nullptr || data < from || data >= from + bytes) continue;
    view.data = static_cast<unsigned char*>(to) + (data - from);
  }
}

}  // namespace

InputSets::InputSets(const verify::CaseTensors& tensors, bool memory_bound, const DeviceInfo& device) {
  const std::size_t count = memory_bound ? count_sets(total_bytes(tensors), device) : 1;
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
