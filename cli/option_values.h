// The values of single options: text to value, or one error that names the option and what it allows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "cli/options.h"
#include "onepass/attention.h"

namespace onepass::cli {

/// An option of a verb, for messages.
struct OptionName {
  std::string call;    // "onepass run"
  std::string option;  // "--threads"
};

std::int64_t parse_integer(const OptionName& name, const std::string& text, std::int64_t min,
                           std::int64_t max);
double parse_number(const OptionName& name, const std::string& text);
double parse_seconds(const OptionName& name, const std::string& text);  // 0 to a day
/// "L,R".
std::pair<std::int64_t, std::int64_t> parse_window(const OptionName& name, const std::string& text);
Causal parse_causal(const OptionName& name, const std::string& text);  // "" is bottom-right
DType parse_float_dtype(const OptionName& name, const std::string& text);
Backend parse_backend(const OptionName& name, const std::string& text);
/// "cpu,reference" or "cuda,naive": no repetition, no "auto", one processor.
BenchBackends parse_backends(const OptionName& name, const std::string& text);
/// true for "bhsd", false for "bshd".
bool parse_heads_first(const OptionName& name, const std::string& text);

}  // namespace onepass::cli
