// From exceptions to one error text (or JSON document) and an exit status.
#pragma once

#include <exception>
#include <string>

#include "cli/exit_status.h"

namespace onepass::cli {

/// A failure in the parts of the three-line form of onepass/error.h.
struct Failure {
  ExitStatus status = ExitStatus::Cannot;
  std::string kind;     // "invalid_argument", "not_supported", "environment", "internal"
  std::string message;  // all three lines
};

/// Sorts any exception into a Failure. `call` names the verb where the exception does not.
Failure describe_failure(const std::exception_ptr& exception, const std::string& call);

/// Text goes to stderr; with `json`, one document {"error": {...}} goes to stdout and stderr stays empty.
void print_failure(const Failure& failure, bool json);

}  // namespace onepass::cli
