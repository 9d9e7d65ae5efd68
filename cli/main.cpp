// The onepass program: command line -> verb -> exit status.
#include <exception>

#include "cli/commands.h"
#include "cli/failure.h"
#include "cli/interrupt.h"
#include "cli/options.h"

namespace {

using namespace onepass::cli;

ExitStatus dispatch(const CommandLine& line) {
  switch (line.verb) {
    case Verb::Run: return run_command(line);
    case Verb::Check: return check_command(line);
    case Verb::Bench: return bench_command(line);
    case Verb::Plan: return plan_command(line);
    case Verb::Kernels: return kernels_command(line);
    case Verb::Info: return info_command(line);
  }
  return ExitStatus::Cannot;
}

}  // namespace

int main(int argc, char** argv) {
  install_interrupt_handlers();
  try {
    const auto line = parse_command_line(argc, argv);
    return static_cast<int>(line ? dispatch(*line) : ExitStatus::Done);
  } catch (...) {
    const Failure failure = describe_failure(std::current_exception(), call_name(argc, argv));
    try {
      print_failure(failure, wants_json(argc, argv));
    } catch (const std::exception&) {
      // stdout is gone; the exit status still tells.
    }
    return static_cast<int>(failure.status);
  }
}
