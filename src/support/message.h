// Building blocks of error texts, so that every message has the same three lines.
#pragma once

#include <string>

#include "onepass/error.h"
#include "onepass/tensor_view.h"

namespace onepass {

/// "<call>: <given>.\n  Allowed: <allowed>.\n  Fix: <fix>."
std::string format_message(const std::string& call, const std::string& given, const std::string& allowed,
                           const std::string& fix);

[[noreturn]] void throw_invalid(const std::string& call, const std::string& given, const std::string& allowed,
                                const std::string& fix);

/// "[2, 512, 32, 64]"
std::string shape_string(const TensorView& view);
std::string strides_string(const TensorView& view);

}  // namespace onepass
