// Independent pieces of work on every core.
#pragma once

#include <cstddef>
#include <functional>

namespace onepass::cli {

/// Calls work(i) for every i below `count`, on as many threads as this process has cores. The first exception
/// keeps further pieces from starting and leaves from here.
void parallel_for(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace onepass::cli
