// A libcuda.so.1 for programs that link it: the loader has it in memory when the library asks for that
// name. It has two GPUs whose memory is host memory, loads every image, keeps what is launched and runs
// nothing. A tensor map of it is the tensor's address and bytes of kMapFill.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "backends/cuda/host/driver.h"
#include "backends/cuda/kernels/params.h"

namespace onepass::fake {

inline constexpr int kNumDevices = 2;
inline constexpr unsigned char kMapFill = 0x5a;
inline constexpr int kNumRegisters = 72;  // of every kernel

struct Launch {
  const std::string* kernel;  // its name
  int device_idx;             // of the current context
  unsigned grid, threads, shared_bytes;
  void* stream;
  cuda::ForwardParams params;     // what every kernel of a plan takes
  cuda::Sm90ForwardParams sm90;   // and of sm90_forward, what is around it
  cuda::Sm90DecodeParams decode;  // likewise of sm90_decode
};

/// What the driver was asked since the last clear().
struct Log {
  std::vector<const char*> calls;  // names of functions, in order; room for many, so that no call allocates
  std::vector<Launch> launches;
  void clear();
};
Log& log();

/// Memory of a GPU, until the program ends.
std::byte* device_memory(std::size_t bytes, int device_idx);

/// Name of the kernel that no module has; empty: every module has every kernel.
std::string& missing_kernel();

/// Whether streams are captured: what is allocated on one then is memory that the driver does not know yet.
bool& captures();

/// The current context of this thread as a device; -1: none.
int current_device();

}  // namespace onepass::fake
