// Kernels whose loads and stores go through no wrapper.
#pragma once

namespace onepass::emulator {

/// Each thread writes an int of shared memory and reads its neighbour's.
void exchange_without_barrier();
void exchange_with_barrier();

}  // namespace onepass::emulator
