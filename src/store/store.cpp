#include "store/store.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "store/disk_cache.h"
#include "store/nvrtc.h"
#include "support/config.h"
#include "support/message.h"

namespace onepass {
namespace {

struct Image {
  std::string bytes;
  KernelOrigin origin;
};

Image find_image(const KernelSpec& spec) {
  const Nvrtc* nvrtc = Nvrtc::instance();
  if (nvrtc == nullptr) {
    throw EnvironmentError(
        format_message("load kernel", fmt::format("{}: {}", kernel_name(spec), Nvrtc::missing_reason()),
                       "NVRTC 12 or 13 for kernels that are not shipped",
                       "install NVIDIA's nvrtc package, or set ONEPASS_NVRTC to libnvrtc.so.13"));
  }
  const DiskCache disk(config().cache_folder);
  const std::string key = cache_key(spec, nvrtc->major(), nvrtc->minor());
  if (std::optional<std::string> image = disk.read(key)) return {std::move(*image), KernelOrigin::Disk};
  Image image{nvrtc->compile(spec).image, KernelOrigin::Compiled};
  disk.write(key, image.bytes);
  return image;
}

LoadedKernel load(const KernelSpec& spec, const std::string& image) {
  const cuda::Driver& driver = *cuda::Driver::instance();
  const cuda::DriverTable& api = driver.api();
  LoadedKernel kernel{nullptr, num_threads(spec), shared_bytes(spec)};
  cuda::CUmodule module = nullptr;
  driver.check(api.cuModuleLoadData(&module, image.data()), "cuModuleLoadData");
  driver.check(api.cuModuleGetFunction(&kernel.function, module, kernel_name(spec).c_str()),
               "cuModuleGetFunction");
  if (kernel.shared_bytes > std::size_t{48} * 1024) {
    driver.check(api.cuFuncSetAttribute(kernel.function, cuda::kFunctionMaxDynamicSharedBytes,
                                        static_cast<int>(kernel.shared_bytes)),
                 "cuFuncSetAttribute");
  }
  return kernel;
}

}  // namespace

KernelStore& KernelStore::instance() {
  static KernelStore* const store = new KernelStore;  // modules live as long as the process
  return *store;
}

const LoadedKernel& KernelStore::get(const KernelSpec& spec, int device_idx, KernelOrigin* origin) {
  static std::mutex mutex;
  static std::map<std::pair<int, std::string>, LoadedKernel> loaded;
  const std::pair<int, std::string> key{device_idx, kernel_name(spec)};
  {
    const std::lock_guard lock(mutex);
    if (const auto it = loaded.find(key); it != loaded.end()) {
      if (origin != nullptr) *origin = KernelOrigin::Memory;
      return it->second;
    }
  }
  const Image image = find_image(spec);  // outside the lock: kernels compile in parallel
  if (origin != nullptr) *origin = image.origin;
  const std::lock_guard lock(mutex);
  if (const auto it = loaded.find(key); it != loaded.end()) return it->second;
  return loaded.emplace(key, load(spec, image.bytes)).first->second;
}

}  // namespace onepass
