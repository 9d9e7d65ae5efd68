#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "cli/interrupt.h"

namespace onepass::cli {
namespace {
constexpr auto kFirst = std::chrono::milliseconds(250);
constexpr auto kBetweenRedraws = std::chrono::milliseconds(100);
constexpr auto kBetweenLines = std::chrono::seconds(5);
}  // namespace

bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }

Progress::Progress(bool enabled)
    : enabled_(enabled), terminal_(stderr_is_terminal()), next_(Clock::now() + kFirst) {}

Progress::~Progress() { clear(); }

void Progress::show(std::int64_t done, std::int64_t total, std::string_view what) {
  if (!enabled_ || Clock::now() < next_) return;
  if (terminal_) {
    fmt::print(stderr, "\r\033[K[{}/{}] {}", done, total, what);
    std::fflush(stderr);
    shown_ = true;
    set_progress_line_shown(true);
    next_ = Clock::now() + kBetweenRedraws;
  } else {
    fmt::print(stderr, "[{}/{}] {}\n", done, total, what);
    next_ = Clock::now() + kBetweenLines;
  }
}

void Progress::clear() {
  if (!shown_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  shown_ = false;
  set_progress_line_shown(false);
}

}  // namespace onepass::cli
