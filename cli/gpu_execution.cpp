#include "cli/gpu_execution.h"

#include "support/message.h"

namespace onepass::cli {

double GpuExecution::run() {
  call_.run();
  const double seconds = timer_.seconds([this] { call_.run(); });
  if (const auto damage = call_.copy_back()) {
    throw InternalError(format_message("run", *damage, "writes inside the call's tensors",
                                       "please report this with the files"));
  }
  return seconds;
}

}  // namespace onepass::cli
