// A property that must hold for every input; its failure is a finding like a crash.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace onepass::fuzz {

inline void require(bool holds, const std::string& property) {
  if (holds) return;
  std::fprintf(stderr, "property broken: %s\n", property.c_str());
  std::abort();
}

/// Runs `action`. The one exception that an input may cause is InvalidArgument in its three lines: everything
/// else leaves the fuzzer, which reports it.
/// @return whether the input was accepted.
template <class InvalidArgument, class Action>
bool accepted(const Action& action) {
  try {
    action();
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    std::size_t num_lines = 1;
    for (const char c : message) num_lines += c == '\n' ? 1 : 0;
    require(num_lines == 3, "messages have three lines, not: " + message);
    return false;
  }
  return true;
}

}  // namespace onepass::fuzz
