// What the process says to the shell.
#pragma once

namespace onepass::cli {

enum class ExitStatus : int {
  Done = 0,
  CheckFailed = 1,   // the computation ran, and its error is past the bound
  WrongRequest = 2,  // usage, an invalid problem, an unusable file
  Cannot = 3,        // the environment (or this version) cannot do it
};

}  // namespace onepass::cli
