// The kernels in this program, written by write_kernels.cpp from the plans of cases.h.
#pragma once

#include <span>
#include <string>

namespace onepass::emulator {

struct EmulatedKernel {
  const char* name;                   // kernel_name(spec)
  void (*entry)(const void* params);  // of the type that the kernel is launched with
};

/// For the text that is generated: a kernel takes its parameters by value.
template <class Params>
void enter(void (*kernel)(Params), const void* params) {
  kernel(*static_cast<const Params*>(params));
}

std::span<const EmulatedKernel> kernel_table();

/// @throws std::runtime_error when write_kernels has not written it.
const EmulatedKernel& kernel_named(const std::string& name);

}  // namespace onepass::emulator
