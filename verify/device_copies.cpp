#include "verify/device_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "backends/cuda/host/driver.h"
#include "verify/guarded_buffer.h"

namespace onepass::verify {
namespace {

using cuda::ContextScope;
using cuda::CUdeviceptr;
using cuda::Driver;

const Driver& driver() { return Driver::required("copy to GPU"); }

CUdeviceptr address_of(const std::byte* p) {
  return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(p));
}

/// Both setting and copying may return before the bytes are there, and other streams would not wait for them.
void wait() { driver().check(driver().api().cuStreamSynchronize(nullptr), "cuStreamSynchronize"); }

/// The bytes from the lowest to the highest element; view has elements.
std::pair<std::byte*, std::byte*> memory_of(const TensorView& view) {
  std::int64_t lowest = 0, highest = 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d) {
    const std::int64_t reach = (view.shape[d] - 1) * view.strides[d];
    (reach < 0 ? lowest : highest) += reach;
  }
  auto* data = static_cast<std::byte*>(view.data);
  const std::int64_t bytes = dtype_bytes(view.dtype);
  return {data + lowest * bytes, data + (highest + 1) * bytes};
}

}  // namespace

GuardedDeviceBuffer::GuardedDeviceBuffer(std::size_t bytes, int device_idx)
    : bytes_(bytes), device_idx_(device_idx) {
  const ContextScope context(driver(), device_idx_);
  const std::size_t total = bytes_ + 2 * kGuardBytes;
  CUdeviceptr address = 0;
  driver().check(driver().api().cuMemAlloc_v2(&address, total), "cuMemAlloc");
  base_ = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
  driver().check(driver().api().cuMemsetD8_v2(address, kPoison, total), "cuMemsetD8");
  wait();
}

GuardedDeviceBuffer::GuardedDeviceBuffer(GuardedDeviceBuffer&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(other.bytes_), device_idx_(other.device_idx_) {}

GuardedDeviceBuffer::~GuardedDeviceBuffer() {
  if (base_ == nullptr) return;
  const ContextScope context(driver(), device_idx_);
  driver().api().cuMemFree_v2(address_of(base_));
}

void GuardedDeviceBuffer::upload(const void* host) const {
  if (bytes_ == 0) return;
  const ContextScope context(driver(), device_idx_);
  driver().check(driver().api().cuMemcpyHtoD_v2(address_of(data()), host, bytes_), "cuMemcpyHtoD");
  wait();
}

void GuardedDeviceBuffer::download(void* host) const {
  if (bytes_ == 0) return;
  const ContextScope context(driver(), device_idx_);
  driver().check(driver().api().cuMemcpyDtoH_v2(host, address_of(data()), bytes_), "cuMemcpyDtoH");
}

bool GuardedDeviceBuffer::guard_intact(const std::byte* guard) const {
  std::array<unsigned char, kGuardBytes> bytes{};
  const ContextScope context(driver(), device_idx_);
  driver().check(driver().api().cuMemcpyDtoH_v2(bytes.data(), address_of(guard), bytes.size()),
                 "cuMemcpyDtoH");
  return std::all_of(bytes.begin(), bytes.end(), [](unsigned char c) { return c == kPoison; });
}

bool GuardedDeviceBuffer::guards_intact() const {
  return guard_intact(base_) && guard_intact(data() + bytes_);
}

DeviceCopies::DeviceCopies(std::span<TensorView* const> views, int device_idx) {
  std::vector<Region> spans;
  for (const TensorView* view : views) {
    if (view->num_elements() == 0) continue;
    const auto [begin, end] = memory_of(*view);
    spans.push_back({begin, end});
  }
  std::sort(spans.begin(), spans.end(), [](const Region& a, const Region& b) { return a.begin < b.begin; });
  for (const Region& span : spans) {
    if (!regions_.empty() && span.begin < regions_.back().end) {
      regions_.back().end = std::max(regions_.back().end, span.end);
    } else {
      regions_.push_back(span);
    }
  }
  for (const Region& region : regions_) {
    buffers_.emplace_back(static_cast<std::size_t>(region.end - region.begin), device_idx);
  }
  upload();
  for (TensorView* view : views) {
    if (!view->present()) continue;
    view->device = DeviceKind::Cuda;
    view->device_idx = device_idx;
    if (view->num_elements() == 0) continue;
    auto* host = static_cast<std::byte*>(view->data);
    const auto region = std::find_if(regions_.begin(), regions_.end(),
                                     [&](const Region& r) { return r.begin <= host && host < r.end; });
    view->data =
        buffers_[static_cast<std::size_t>(region - regions_.begin())].data() + (host - region->begin);
  }
}

void DeviceCopies::upload() const {
  for (std::size_t i = 0; i < regions_.size(); ++i) buffers_[i].upload(regions_[i].begin);
}

std::optional<std::string> DeviceCopies::copy_back() const {
  std::optional<std::string> damage;
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    buffers_[i].download(regions_[i].begin);
    if (!buffers_[i].guards_intact()) {
      damage = fmt::format("GPU memory beside a tensor of {} bytes was written", buffers_[i].size());
    }
  }
  return damage;
}

}  // namespace onepass::verify
