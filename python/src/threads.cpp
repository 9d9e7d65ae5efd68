#include "threads.h"

#include <pthread.h>

namespace onepass::python {
namespace {

bool forked = false;  // written by the only thread of a new process

}  // namespace

void watch_forks() {
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
}

int threads_to_use(int asked) { return forked && asked >= 0 ? 1 : asked; }

}  // namespace onepass::python
