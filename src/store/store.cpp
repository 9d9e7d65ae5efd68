#include "store/store.h"

#include <fmt/format.h>

#include <optional>

#include "store/image_search.h"

namespace onepass {
namespace {

/// Loads an image into the current context, or says why the driver refuses it.
std::optional<std::string> load(const KernelImage& image, LoadedKernel& kernel) {
  const cuda::Driver& driver = *cuda::Driver::instance();
  const cuda::DriverTable& api = driver.api();
  cuda::CUmodule module = nullptr;
  const auto refusal = [&](const char* call, cuda::CUresult result) {
    if (module != nullptr) api.cuModuleUnload(module);
    return fmt::format("{} answered {}", call, driver.error_text(result));
  };
  if (const auto result = api.cuModuleLoadData(&module, image.bytes.c_str()); result != 0) {
    module = nullptr;
    return refusal("cuModuleLoadData", result);
  }
  if (const auto result = api.cuModuleGetFunction(&kernel.function, module, image.entry.c_str());
      result != 0) {
    return refusal("cuModuleGetFunction", result);
  }
  if (const auto result =
          api.cuFuncGetAttribute(&kernel.registers, cuda::kFunctionNumRegisters, kernel.function);
      result != 0) {
    return refusal("cuFuncGetAttribute", result);
  }
  if (kernel.shared_bytes > std::size_t{48} * 1024) {
    if (const auto result = api.cuFuncSetAttribute(kernel.function, cuda::kFunctionMaxDynamicSharedBytes,
                                                   static_cast<int>(kernel.shared_bytes));
        result != 0) {
      return refusal("cuFuncSetAttribute", result);
    }
  }
  return std::nullopt;
}

}  // namespace

KernelStore& KernelStore::instance() {
  static KernelStore* const store = new KernelStore;  // modules live as long as the process
  return *store;
}

const LoadedKernel& KernelStore::get(const KernelSpec& spec, int device_idx, KernelOrigin* origin) {
  const std::pair<int, std::string> key{device_idx, kernel_name(spec)};
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = loaded_.find(key); it != loaded_.end()) {
      if (origin != nullptr) *origin = KernelOrigin::Memory;
      return it->second;
    }
  }
  // Outside the lock: kernels compile in parallel. Two threads may load the same one; the first is kept.
  LoadedKernel kernel{device_idx, nullptr, num_threads(spec), shared_bytes(spec), 0};
  const KernelOrigin found = find_image(process_image_sources(), spec,
                                        [&](const KernelImage& image) { return load(image, kernel); });
  if (origin != nullptr) *origin = found;
  const std::lock_guard lock(mutex_);
  return loaded_.try_emplace(key, kernel).first->second;
}

}  // namespace onepass
