#include "api/status_guard.h"

#include <fmt/format.h>

#include <string>

#include "support/message.h"

namespace onepass::c {
namespace {

struct LastError {
  std::string text;
  const char* shown = "";
};

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): errno's kin
thread_local LastError this_thread;

template <class MakeText>
void keep(const char* when_out_of_memory, MakeText&& make_text) noexcept {
  try {
    this_thread.text = make_text();
    this_thread.shown = this_thread.text.c_str();
  } catch (...) {
    this_thread.shown = when_out_of_memory;
  }
}

}  // namespace

void clear_last_error() noexcept { this_thread.shown = ""; }

void set_last_error(const char* call, std::string_view message) noexcept {
  keep("onepass: a call failed, and there is no memory left to say why.", [&] {
    const std::size_t name_end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789");
    const bool named = name_end != std::string_view::npos && message[name_end] == ':';
    return named ? std::string(call).append(message.substr(name_end))
                 : std::string(call).append(": ").append(message);
  });
}

void set_unexpected_error(const char* call, std::string_view what) noexcept {
  keep("onepass: an unexpected exception, and there is no memory left to say which.", [&] {
    return format_message(call, fmt::format("an unexpected exception was caught ({})", what),
                          "onepass's own exceptions and std::bad_alloc",
                          "please report this with the text above");
  });
}

void set_out_of_memory_error(const char* call) noexcept {
  keep("onepass: there is no memory left.", [&] {
    return format_message(call, "the system gave no memory for the workspace or the plan",
                          "requests that fit this machine's free memory",
                          "free memory, or use fewer splits or threads");
  });
}

const char* last_error() noexcept { return this_thread.shown; }

}  // namespace onepass::c
