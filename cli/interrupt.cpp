#include "cli/interrupt.h"

#include <csignal>

#include <unistd.h>

#include <atomic>

namespace onepass::cli {
namespace {

std::atomic<int> deferrals{0};
std::atomic<int> pending_signal{0};
std::atomic<bool> progress_line_shown{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "a signal handler may touch only lock-free atomics");

void end_by(int signal) {
  // Only async-signal-safe calls. Ending by the signal itself tells a shell's loop to stop as well.
  if (progress_line_shown.exchange(false)) {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, "\r\033[K", 4);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void handle(int signal) {
  if (deferrals.load() > 0) {
    pending_signal.store(signal);
  } else {
    end_by(signal);
  }
}

}  // namespace

void install_interrupt_handlers() {
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction action = {};
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART | SA_NODEFER;  // NODEFER: end_by raises the same signal from inside
    struct sigaction previous = {};
    sigaction(signal, nullptr, &previous);
    if (previous.sa_handler != SIG_IGN)
      sigaction(signal, &action, nullptr);  // nohup and the like stay in force
  }
}

DeferInterrupts::DeferInterrupts() { deferrals.fetch_add(1); }

DeferInterrupts::~DeferInterrupts() {
  if (deferrals.fetch_sub(1) == 1) {
    if (const int signal = pending_signal.exchange(0); signal != 0) end_by(signal);
  }
}

void set_progress_line_shown(bool shown) { progress_line_shown.store(shown); }

}  // namespace onepass::cli
