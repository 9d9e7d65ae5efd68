// What the process says to the shell.
#pragma once

namespace onepass::cli {

enum ExitStatus : int {
  kDone = 0,
  kCheckFailed = 1,   // the computation ran, and its error is past the bound
  kWrongRequest = 2,  // usage, an invalid problem, an unusable file
  kCannot = 3,        // the environment (or this version) cannot do it
};

}  // namespace onepass::cli
