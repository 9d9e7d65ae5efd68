#include "support/shared_object.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <system_error>

namespace onepass {

std::string this_binary() {
  std::error_code error;
  Dl_info info{};
  void* map = nullptr;
  if (dladdr1(reinterpret_cast<void*>(&this_binary), &info, &map, RTLD_DL_LINKMAP) != 0 && map != nullptr) {
    const char* name = static_cast<const link_map*>(map)->l_name;
    if (name != nullptr && name[0] != '\0') return std::filesystem::canonical(name, error).string();
  }
  return std::filesystem::canonical("/proc/self/exe", error)
      .string();  // the loader does not name the program
}

SharedObject::SharedObject(const std::string& path) : path_(path) {
  handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) {
    const char* reason = dlerror();
    error_ = reason != nullptr ? reason : "unknown error";
  }
}

void* SharedObject::symbol(const char* name) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, name);
}

}  // namespace onepass
