// One line on stderr that says how far a long command is.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace onepass::cli {

/// Shown only if `enabled` (stderr is a terminal, or --progress), and only after a quarter of a second, so
/// that short commands print nothing. On a terminal the line is redrawn in place and removed at the end;
/// elsewhere a line is written every few seconds.
class Progress {
 public:
  explicit Progress(bool enabled);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// "[done/total] what", at most ten times a second.
  void show(std::int64_t done, std::int64_t total, std::string_view what);
  /// Removes the line, so that a result can be printed in its place.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  const bool enabled_;
  const bool terminal_;
  bool shown_ = false;
  Clock::time_point next_;
};

/// Whether stderr is a terminal.
bool stderr_is_terminal();

}  // namespace onepass::cli
