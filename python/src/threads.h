// Threads after fork(), which multiprocessing and data loaders use: GNU's OpenMP runtime hangs in a child
// whose parent has used it, if the child asks for more than one thread.
#pragma once

namespace onepass::python {

/// Call once, when the module is loaded.
void watch_forks();
/// `asked` threads (0: every core), but 1 in a process that was forked after watch_forks().
int threads_to_use(int asked);

}  // namespace onepass::python
