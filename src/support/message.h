// Building blocks of error texts, so that every message has the same three lines.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "onepass/error.h"
#include "onepass/tensor_view.h"

namespace onepass {

/// "<call>: <given>.\n  Allowed: <allowed>.\n  Fix: <fix>."
std::string format_message(const std::string& call, const std::string& given, const std::string& allowed,
                           const std::string& fix);

[[noreturn]] void throw_invalid(const std::string& call, const std::string& given, const std::string& allowed,
                                const std::string& fix);

/// "f16, bf16". fmt::join would be compiled anew in every file.
std::string joined(std::span<const std::string> words, std::string_view separator = ", ");
std::string joined(std::span<const std::int64_t> numbers);

/// "[2, 512, 32, 64]"
std::string list_string(std::span<const std::int64_t> numbers);
std::string shape_string(const TensorView& view);
std::string strides_string(const TensorView& view);

}  // namespace onepass
