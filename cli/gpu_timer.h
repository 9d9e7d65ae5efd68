// The time that a GPU spends, by its own clock.
#pragma once

#include <functional>

#include "backends/cuda/host/driver.h"

namespace onepass::cli {

/// Two events of the default stream of a GPU.
class GpuTimer {
 public:
  /// @throws EnvironmentError without a GPU.
  explicit GpuTimer(int device_idx);
  ~GpuTimer();
  GpuTimer(const GpuTimer&) = delete;
  GpuTimer& operator=(const GpuTimer&) = delete;

  /// Seconds between the start and the end of what `queue_work` queues on the default stream; waits
  /// for the end.
  double seconds(const std::function<void()>& queue_work) const;

 private:
  const cuda::Driver& driver_;
  int device_idx_;
  cuda::CUevent begin_ = nullptr, end_ = nullptr;
};

}  // namespace onepass::cli
