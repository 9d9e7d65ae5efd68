// The cases of a command: texts from its arguments and lines of its files.
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"
#include "problem/case_text.h"

namespace onepass::cli {

struct NamedCase {
  std::string text;  // canonical
  Case values;
};

/// Texts first, then files in order. A line of a file is a case text; '#' starts a comment, blank lines are
/// skipped. @throws InvalidArgument naming file and line, or when there is no case at all.
std::vector<NamedCase> collect_cases(const std::string& call, const CaseOptions& options);

/// Checks a case and that somebody runs it as asked, so that a list does not stop halfway. Uses no memory for
/// tensors. @throws InvalidArgument, NotSupported, EnvironmentError without the asked GPU, naming the case.
void check_runnable(const std::string& call, const NamedCase& named, const ExecutionOptions& execution);

/// For commands that have no use for gradients. @throws NotSupported naming the first backward case.
void require_forward(const std::string& call, const std::vector<NamedCase>& cases);

}  // namespace onepass::cli
