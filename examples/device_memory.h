// Memory of the CPU or of GPU 0, for examples that run on both. An engine has an allocator of its own; here
// the driver's functions are looked up at run time, so that the example builds without a CUDA toolkit.
#pragma once

#include <dlfcn.h>
#include <onepass/tensor_view.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace example {

class Driver {
 public:
  static const Driver& instance() {
    static const Driver driver;
    return driver;
  }

  int (*allocate)(unsigned long long* address, std::size_t bytes) = nullptr;
  int (*free)(unsigned long long address) = nullptr;
  int (*to_device)(unsigned long long target, const void* source, std::size_t bytes) = nullptr;
  int (*to_host)(void* target, unsigned long long source, std::size_t bytes) = nullptr;  // waits for the GPU

  static void check(int result, const char* function) {
    if (result != 0) throw std::runtime_error(std::string(function) + " failed: " + std::to_string(result));
  }

 private:
  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) throw std::runtime_error("there is no CUDA driver here");
    const auto find = [&](auto& function, const char* name) {
      void* address = dlsym(library, name);
      if (address == nullptr) throw std::runtime_error(std::string("the driver lacks ") + name);
      std::memcpy(&function, &address, sizeof(address));
    };
    int (*init)(unsigned) = nullptr;
    int (*retain)(void**, int) = nullptr;
    int (*set_current)(void*) = nullptr;
    find(init, "cuInit");
    find(retain, "cuDevicePrimaryCtxRetain");
    find(set_current, "cuCtxSetCurrent");
    find(allocate, "cuMemAlloc_v2");
    find(free, "cuMemFree_v2");
    find(to_device, "cuMemcpyHtoD_v2");
    find(to_host, "cuMemcpyDtoH_v2");
    void* context = nullptr;
    check(init(0), "cuInit");
    check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(set_current(context), "cuCtxSetCurrent");
  }
};

/// Bytes on a device, and copies between them and host memory.
class Memory {
 public:
  Memory(onepass::DeviceKind device, std::size_t bytes) : device_(device) {
    if (device == onepass::DeviceKind::Cpu) {
      data_ = std::malloc(bytes > 0 ? bytes : 1);
      if (data_ == nullptr) throw std::bad_alloc();
      return;
    }
    unsigned long long address = 0;
    Driver::check(Driver::instance().allocate(&address, bytes > 0 ? bytes : 1), "cuMemAlloc");
    data_ = reinterpret_cast<void*>(address);
  }
  ~Memory() {
    if (device_ == onepass::DeviceKind::Cpu) {
      std::free(data_);
    } else if (data_ != nullptr) {
      Driver::instance().free(reinterpret_cast<unsigned long long>(data_));
    }
  }
  Memory(Memory&& other) noexcept : device_(other.device_), data_(std::exchange(other.data_, nullptr)) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Memory& operator=(Memory&&) = delete;

  void write(const void* source, std::size_t bytes) {
    if (device_ == onepass::DeviceKind::Cpu) {
      std::memcpy(data_, source, bytes);
    } else {
      Driver::check(Driver::instance().to_device(reinterpret_cast<unsigned long long>(data_), source, bytes),
                    "cuMemcpyHtoD");
    }
  }
  void read(void* target, std::size_t bytes) const {
    if (device_ == onepass::DeviceKind::Cpu) {
      std::memcpy(target, data_, bytes);
    } else {
      Driver::check(Driver::instance().to_host(target, reinterpret_cast<unsigned long long>(data_), bytes),
                    "cuMemcpyDtoH");
    }
  }

  /// A row-major view of it.
  onepass::TensorView view(onepass::DType dtype, std::initializer_list<std::int64_t> shape) const {
    onepass::TensorView view = onepass::make_view(data_, dtype, shape);
    view.device = device_;
    return view;
  }

 private:
  onepass::DeviceKind device_;
  void* data_ = nullptr;
};

}  // namespace example
