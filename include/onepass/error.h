// onepass/error.h - the four kinds of failure, one exception tree.
//
// Every message has the form
//   <call>: <argument> <what was given>.
//     Allowed: <the rule, with its numbers>.
//     Fix: <one thing the caller can do>.
// and is raised before any work starts: when an exception leaves a call, no output was written.
#pragma once

#include <stdexcept>
#include <string>

#include "onepass/version.h"

namespace onepass {

/// Base of everything that onepass throws (std::bad_alloc aside).
class ONEPASS_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller's tensors or options break a rule of the interface (Python: ValueError).
class ONEPASS_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// The request is well formed, but no implementation takes it (Python: NotImplementedError).
/// The message lists each implementation with its reason.
class ONEPASS_API NotSupported : public Error {
 public:
  using Error::Error;
};

/// Something outside the library is missing or failed: driver, compiler, file, cache folder.
class ONEPASS_API EnvironmentError : public Error {
 public:
  using Error::Error;
};

/// A fault of onepass itself; the message asks for a report and names the problem.
class ONEPASS_API InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace onepass
