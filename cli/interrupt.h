// Ctrl-C: the process ends at once and by the signal, but files being put in place are finished first.
#pragma once

namespace onepass::cli {

/// Installs the handlers of SIGINT and SIGTERM. Call once, before any thread starts.
void install_interrupt_handlers();

/// While one exists, an interrupt waits; the last one's destructor delivers it.
class DeferInterrupts {
 public:
  DeferInterrupts();
  ~DeferInterrupts();
  DeferInterrupts(const DeferInterrupts&) = delete;
  DeferInterrupts& operator=(const DeferInterrupts&) = delete;
};

/// Whether a progress line stands on stderr that an interrupt has to end.
void set_progress_line_shown(bool shown);

}  // namespace onepass::cli
