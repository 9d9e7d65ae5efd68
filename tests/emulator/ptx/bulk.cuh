// kernels/ptx/bulk.cuh on the emulator.
#pragma once

#include <cstring>

#include "ptx/ldmatrix.cuh"
#include "ptx/types.cuh"
#include "tests/emulator/builtins.h"

namespace onepass::cuda {

ONEPASS_DEVICE void bulk_load(Uint64* barrier, Uint32 shared, const void* global, int bytes) {
  emulator::issue_bulk_copy(shared_address(barrier), shared, bytes,
                            [global, bytes](char* target) { std::memcpy(target, global, bytes); });
}
ONEPASS_DEVICE void bulk_store(void* global, Uint32 shared, int bytes) {
  emulator::issue_bulk_store(shared, bytes,
                             [global, bytes](const char* source) { std::memcpy(global, source, bytes); });
}
ONEPASS_DEVICE void bulk_add(float* global, Uint32 shared, int bytes) {
  emulator::issue_bulk_store(shared, bytes, [global, bytes](const char* source) {
    for (int i = 0; i < bytes / 4; ++i) {
      float x;
      std::memcpy(&x, source + 4 * i, 4);
      global[i] += x;
    }
  });
}
ONEPASS_DEVICE void bulk_commit() { emulator::commit_bulk_stores(); }
ONEPASS_DEVICE void bulk_wait_read() { emulator::wait_bulk_stores(); }
ONEPASS_DEVICE void bulk_wait() { emulator::wait_bulk_stores(); }
ONEPASS_DEVICE void fence_proxy_async_all() {}

}  // namespace onepass::cuda
