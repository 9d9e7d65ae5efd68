#include "tests/emulator/plain_access.h"

#include "tests/emulator/builtins.h"

extern __shared__ __align__(128) char shared[];

namespace onepass::emulator {
namespace {

template <class Wait>
void exchange(Wait wait) {
  volatile int* line = reinterpret_cast<int*>(shared);
  line[threadIdx.x] = 1;
  wait();
  if (line[threadIdx.x ^ 1u] != 1) fault("a neighbour's value is missing");
}

}  // namespace

void exchange_without_barrier() {
  exchange([] {});
}
void exchange_with_barrier() {
  exchange([] { __syncthreads(); });
}

}  // namespace onepass::emulator
