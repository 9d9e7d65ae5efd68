// What of the machine the library found, as text for people: for `onepass info` and Python's.
#pragma once

#include <string>

namespace onepass {

/// The GPUs that the driver shows, or why there are none.
std::string gpus_text();
/// The run-time compiler of the kernels, or where it was looked for.
std::string compiler_text();

}  // namespace onepass
