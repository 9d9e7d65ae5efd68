// Thread blocks of a cluster: their barrier, and each other's shared memory. PTX ISA 9.7.13.3
// (barrier.cluster), 9.7.9.23 (mapa). sm_90.
#pragma once

#include "ptx/ldmatrix.cuh"
#include "ptx/types.cuh"

namespace onepass::cuda {

/// Until all threads of the cluster that have not ended have come here, whole warps at a time. Orders their
/// accesses to memory, also to each other's shared memory.
ONEPASS_DEVICE void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

/// What block `rank` of the cluster has at this address of its shared memory.
ONEPASS_DEVICE float load_cluster(const float* shared, int rank) {
  float x;
  asm volatile(
      "{ .reg .u32 there; mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [there]; }"
      : "=f"(x)
      : "r"(shared_address(shared)), "r"(rank)
      : "memory");
  return x;
}
ONEPASS_DEVICE float4 load_cluster(const float4* shared, int rank) {
  float4 x;
  asm volatile(
      "{ .reg .u32 there; mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [there]; }"
      : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
      : "r"(shared_address(shared)), "r"(rank)
      : "memory");
  return x;
}

}  // namespace onepass::cuda
