// One function per verb. Each prints its answer and returns the exit status; failures leave as exceptions.
#pragma once

#include "cli/exit_status.h"
#include "cli/options.h"

namespace onepass::cli {

ExitStatus run_command(const CommandLine& line);
ExitStatus check_command(const CommandLine& line);
ExitStatus bench_command(const CommandLine& line);
/// bench_command's part for --backends cuda.
ExitStatus gpu_bench_command(const CommandLine& line);
ExitStatus plan_command(const CommandLine& line);
ExitStatus kernels_command(const CommandLine& line);
ExitStatus info_command(const CommandLine& line);

}  // namespace onepass::cli
