#include <algorithm>
#include <stdexcept>

#include "tests/emulator/kernel_table.h"

namespace onepass::emulator {

const EmulatedKernel& kernel_named(const std::string& name) {
  const auto table = kernel_table();
  const auto found = std::find_if(table.begin(), table.end(), [&](const auto& k) { return k.name == name; });
  if (found == table.end()) throw std::runtime_error("write_kernels has not written " + name);
  return *found;
}

}  // namespace onepass::emulator
