// Every load and store of the kernels, also those that do not go through a wrapper of ptx/: the kernels are
// compiled with -fsanitize=thread, which calls these functions before each access, and linked without its
// runtime.
#include "tests/emulator/block.h"
#include "tests/emulator/shared_memory.h"

namespace onepass::emulator {
namespace {

void load(const void* p, int bytes, int alignment) {
  if (SharedMemory::contains(p)) read_shared(SharedMemory::address_of(p), bytes, alignment, "a load");
}
void store(const void* p, int bytes, int alignment) {
  if (SharedMemory::contains(p)) write_shared(SharedMemory::address_of(p), bytes, alignment, "a store");
}

}  // namespace
}  // namespace onepass::emulator

using onepass::emulator::load;
using onepass::emulator::store;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

void __tsan_read1(void* p) { load(p, 1, 1); }
void __tsan_read2(void* p) { load(p, 2, 2); }
void __tsan_read4(void* p) { load(p, 4, 4); }
void __tsan_read8(void* p) { load(p, 8, 8); }
void __tsan_read16(void* p) { load(p, 16, 16); }
void __tsan_write1(void* p) { store(p, 1, 1); }
void __tsan_write2(void* p) { store(p, 2, 2); }
void __tsan_write4(void* p) { store(p, 4, 4); }
void __tsan_write8(void* p) { store(p, 8, 8); }
void __tsan_write16(void* p) { store(p, 16, 16); }

void __tsan_unaligned_read2(void* p) { load(p, 2, 1); }
void __tsan_unaligned_read4(void* p) { load(p, 4, 1); }
void __tsan_unaligned_read8(void* p) { load(p, 8, 1); }
void __tsan_unaligned_read16(void* p) { load(p, 16, 1); }
void __tsan_unaligned_write2(void* p) { store(p, 2, 1); }
void __tsan_unaligned_write4(void* p) { store(p, 4, 1); }
void __tsan_unaligned_write8(void* p) { store(p, 8, 1); }
void __tsan_unaligned_write16(void* p) { store(p, 16, 1); }
void __tsan_read_range(void* p, unsigned long bytes) { load(p, static_cast<int>(bytes), 1); }
void __tsan_write_range(void* p, unsigned long bytes) { store(p, static_cast<int>(bytes), 1); }
}
