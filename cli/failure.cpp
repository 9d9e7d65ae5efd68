#include "cli/failure.h"

#include <fmt/format.h>

#include <cstdio>
#include <new>

#include "cli/json_output.h"
#include "onepass/error.h"
#include "support/message.h"

namespace onepass::cli {

Failure describe_failure(const std::exception_ptr& exception, const std::string& call) {
  try {
    std::rethrow_exception(exception);
  } catch (const InvalidArgument& e) {
    return {ExitStatus::WrongRequest, "invalid_argument", e.what()};
  } catch (const NotSupported& e) {
    return {ExitStatus::Cannot, "not_supported", e.what()};
  } catch (const EnvironmentError& e) {
    return {ExitStatus::Cannot, "environment", e.what()};
  } catch (const InternalError& e) {
    return {ExitStatus::Cannot, "internal", e.what()};
  } catch (const std::bad_alloc&) {
    return {ExitStatus::Cannot, "environment",
            format_message(call, "memory ran out", "problems whose tensors and workspace fit into memory",
                           "make the problem smaller; 'onepass plan' shows its bytes")};
  } catch (const std::exception& e) {
    return {ExitStatus::Cannot, "internal",
            format_message(call, fmt::format("an unexpected failure ({})", e.what()),
                           "failures that onepass can name", "please report this with the command line")};
  }
}

void print_failure(const Failure& failure, bool json) {
  if (json) {
    print_json({{"error", failure_to_json(failure)}});
  } else {
    fmt::print(stderr, "{}\n", failure.message);
  }
}

}  // namespace onepass::cli
