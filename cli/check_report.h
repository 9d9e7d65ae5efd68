// The judgement of verify/check.h as text and JSON.
#pragma once

#include <string>

#include "cli/json_output.h"
#include "verify/check.h"

namespace onepass::cli {

/// "e 0.0012 <= 0.0043 (e0 0.0021), Frobenius 0.0031 <= 0.01, lse 2e-07 <= 0.001", or what went wrong.
std::string summary(const verify::CheckReport& report);

Json to_json(const verify::CheckReport& report);

}  // namespace onepass::cli
