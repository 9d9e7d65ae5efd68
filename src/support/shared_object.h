// A shared library opened at run time.
#pragma once

#include <string>

namespace onepass {

/// The file that this code was loaded from: a shared library, or the program it is linked into.
std::string this_binary();

class SharedObject {
 public:
  SharedObject() = default;
  /// Opens `path` (a name or a full path); valid() says whether it worked, error() why not.
  explicit SharedObject(const std::string& path);

  bool valid() const { return handle_ != nullptr; }
  const std::string& error() const { return error_; }
  const std::string& path() const { return path_; }

  /// Sets `function` to the symbol, or to null; false when it is missing.
  template <class Function>
  bool load(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(symbol(name));
    return function != nullptr;
  }

 private:
  void* symbol(const char* name) const;

  void* handle_ = nullptr;  // stays open until the process ends: code and contexts may still be in use
  std::string path_, error_;
};

}  // namespace onepass
