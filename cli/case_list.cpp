#include "cli/case_list.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "cli/execution.h"
#include "io/file_context.h"
#include "plan/make_plan.h"
#include "support/message.h"
#include "verify/case_tensors.h"
#include "verify/gradient_tensors.h"

namespace onepass::cli {
namespace {

constexpr std::size_t kMaxLine = 4096;  // no case text is this long; guards against files that are no text

std::string case_of_line(const std::string& line) {
  const std::string content = line.substr(0, line.find('#'));
  const std::size_t begin = content.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return {};
  return content.substr(begin, content.find_last_not_of(" \t\r") - begin + 1);
}

NamedCase parse_named(const std::string& text) {
  const Case values = parse_case(text);
  return {to_string(values), values};
}

void add_file(const std::string& call, const std::string& path, std::vector<NamedCase>& cases) {
  const io::FileContext context{call + ": --file", path};
  errno = 0;
  std::ifstream file(path);
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.size() > kMaxLine || line.find('\0') != std::string::npos) {
      context.fail(fmt::format("holds no text in line {}", number),
                   "one case text a line, and comments after #", "pass a list such as cases/smoke.txt");
    }
    const std::string text = case_of_line(line);
    if (text.empty()) continue;
    try {
      cases.push_back(parse_named(text));
    } catch (const InvalidArgument& e) {
      throw InvalidArgument(fmt::format("{} line {}: {}", path, number, e.what()));
    }
  }
  if (!file.eof()) {
    context.fail(fmt::format("cannot be read ({})", std::strerror(errno != 0 ? errno : EIO)),
                 "a readable text file", "correct the path");
  }
}

}  // namespace

std::vector<NamedCase> collect_cases(const std::string& call, const CaseOptions& options) {
  std::vector<NamedCase> cases;
  for (const std::string& text : options.texts) cases.push_back(parse_named(text));
  for (const std::string& path : options.files) add_file(call, path, cases);
  if (cases.empty()) {
    throw_invalid(call, "no case is given", "one case text or more, or --file with a list of them",
                  fmt::format("try {} {}", call, kCaseExample));
  }
  return cases;
}

void require_forward(const std::string& call, const std::vector<NamedCase>& cases) {
  for (const NamedCase& named : cases) {
    if (!named.values.backward) continue;
    throw NotSupported(format_message(call, fmt::format("{} is a backward call", named.text),
                                      "cases of forward calls, without 'bwd'",
                                      "check it with onepass check, or drop 'bwd'"));
  }
}

void check_runnable(const std::string& call, const NamedCase& named, const ExecutionOptions& execution) {
  const std::string about = fmt::format("{}: {}", call, named.text);
  const DeviceInfo device = device_of(execution.backend, about.c_str());
  const ForwardOptions options = with_execution(verify::case_shapes(named.values).options, execution);
  make_plan(about.c_str(), verify::problem_of_case(about.c_str(), named.values, options),
            {options.backend, options.num_threads, options.num_splits}, device);
}

}  // namespace onepass::cli
