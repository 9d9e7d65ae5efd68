#include "cli/gpu_timer.h"

namespace onepass::cli {

GpuTimer::GpuTimer(int device_idx) : driver_(cuda::Driver::required("time")), device_idx_(device_idx) {
  const cuda::ContextScope context(driver_, device_idx_);
  driver_.check(driver_.api().cuEventCreate(&begin_, 0), "cuEventCreate");
  driver_.check(driver_.api().cuEventCreate(&end_, 0), "cuEventCreate");
}

GpuTimer::~GpuTimer() {
  const cuda::ContextScope context(driver_, device_idx_);
  driver_.api().cuEventDestroy_v2(begin_);
  driver_.api().cuEventDestroy_v2(end_);
}

double GpuTimer::seconds(const std::function<void()>& queue_work) const {
  const cuda::ContextScope context(driver_, device_idx_);
  driver_.check(driver_.api().cuEventRecord(begin_, nullptr), "cuEventRecord");
  queue_work();
  driver_.check(driver_.api().cuEventRecord(end_, nullptr), "cuEventRecord");
  driver_.check(driver_.api().cuEventSynchronize(end_), "cuEventSynchronize");
  float milliseconds = 0;
  driver_.check(driver_.api().cuEventElapsedTime(&milliseconds, begin_, end_), "cuEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace onepass::cli
