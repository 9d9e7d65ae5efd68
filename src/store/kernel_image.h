// A compiled kernel, as every source of the store hands it out.
#pragma once

#include <cstdint>
#include <string>

namespace onepass {

enum class ImageKind : std::uint8_t {
  Cubin,  // machine code of one architecture
  Ptx,    // text that the driver compiles for any GPU since the architecture in the kernel's name
};

/// Where a kernel came from.
enum class KernelOrigin : std::uint8_t { Memory, Bundle, Disk, Compiled };

struct KernelImage {
  std::string bytes;
  std::string entry;  // the function's name: that of the spec it was compiled from
  ImageKind kind = ImageKind::Cubin;
  KernelOrigin origin = KernelOrigin::Compiled;
  int registers = 0;  // of a thread, as the compiler reported; 0: not known
};

}  // namespace onepass
