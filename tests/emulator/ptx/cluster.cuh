// kernels/ptx/cluster.cuh on the emulator.
#pragma once

#include <cstring>

#include "ptx/ldmatrix.cuh"
#include "ptx/types.cuh"
#include "tests/emulator/builtins.h"

namespace onepass::cuda {

ONEPASS_DEVICE void cluster_sync() { emulator::sync_cluster(); }

template <class T>
ONEPASS_DEVICE T load_cluster(const T* shared, int rank) {
  T x;
  std::memcpy(&x, emulator::read_cluster(rank, shared_address(shared), sizeof(T)), sizeof(T));
  return x;
}

}  // namespace onepass::cuda
