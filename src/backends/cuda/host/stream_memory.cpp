#include "backends/cuda/host/stream_memory.h"

#include <cstdint>

#include "backends/cuda/host/driver.h"

namespace onepass::cuda {
namespace {

thread_local std::span<const std::byte> of_call;  // a call has one such memory at most

std::uintptr_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

StreamMemory::StreamMemory(int device_idx, std::size_t bytes, Stream stream)
    : device_idx_(device_idx), stream_(stream) {
  if (bytes == 0) return;
  const Driver& driver = Driver::required("forward");
  const ContextScope context(driver, device_idx);
  CUdeviceptr address = 0;
  driver.check(driver.api().cuMemAllocAsync(&address, bytes, static_cast<CUstream>(stream.handle)),
               "cuMemAllocAsync");
  memory_ = {reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address)), bytes};
  of_call = memory_;
}

StreamMemory::~StreamMemory() {
  if (memory_.empty()) return;
  of_call = {};
  const Driver& driver = *Driver::instance();
  const ContextScope context(driver, device_idx_);
  driver.api().cuMemFreeAsync(static_cast<CUdeviceptr>(address_of(memory_.data())),
                              static_cast<CUstream>(stream_.handle));
}

bool StreamMemory::holds(const void* pointer) {
  return address_of(pointer) - address_of(of_call.data()) < of_call.size();
}

}  // namespace onepass::cuda
