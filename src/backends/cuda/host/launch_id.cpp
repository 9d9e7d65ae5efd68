#include "backends/cuda/host/launch_id.h"

#include <atomic>

namespace onepass::cuda {

unsigned next_launch_id() {
  static std::atomic<unsigned> counter = 0;
  unsigned id = 0;
  while (id == 0)
    id = (counter.fetch_add(1, std::memory_order_relaxed) + 1) * 0x9E3779B1u;  // odd: one to one
  return id;
}

}  // namespace onepass::cuda
