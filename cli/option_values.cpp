#include "cli/option_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "problem/attention_problem.h"
#include "support/message.h"

namespace onepass::cli {
namespace {

[[noreturn]] void fail(const OptionName& name, const std::string& text, const std::string& allowed,
                       const std::string& fix) {
  throw_invalid(name.call, fmt::format("{} is \"{}\"", name.option, text), allowed, fix);
}

template <class T>
bool parse_whole(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

template <class T>
struct Word {
  const char* text;
  T value;
};

template <class T, std::size_t N>
T parse_word(const OptionName& name, const std::string& text, const Word<T> (&words)[N]) {
  std::vector<std::string> allowed;
  for (const Word<T>& word : words) {
    if (text == word.text) return word.value;
    allowed.emplace_back(word.text);
  }
  fail(name, text, joined(allowed), fmt::format("use {} {}", name.option, allowed.front()));
}

constexpr Backend kBackends[] = {Backend::Auto, Backend::Cpu, Backend::Reference, Backend::Cuda};

}  // namespace

std::int64_t parse_integer(const OptionName& name, const std::string& text, std::int64_t min,
                           std::int64_t max) {
  std::int64_t value = 0;
  if (parse_whole(text, value) && value >= min && value <= max) return value;
  fail(name, text, fmt::format("a whole number from {} to {}", min, max),
       fmt::format("use {} {}", name.option, std::clamp<std::int64_t>(1, min, max)));
}

double parse_number(const OptionName& name, const std::string& text) {
  double value = 0;
  if (parse_whole(text, value) && std::isfinite(value)) return value;
  fail(name, text, "a finite number such as 0.125 or -1e-3", fmt::format("give {} a number", name.option));
}

double parse_seconds(const OptionName& name, const std::string& text) {
  constexpr double kDay = 86400;
  const double value = parse_number(name, text);
  if (value >= 0 && value <= kDay) return value;
  fail(name, text, fmt::format("0 to {} seconds", kDay), fmt::format("use {} 0.5", name.option));
}

std::pair<std::int64_t, std::int64_t> parse_window(const OptionName& name, const std::string& text) {
  const std::size_t comma = text.find(',');
  std::int64_t left = 0, right = 0;
  if (comma != std::string::npos && parse_whole(std::string_view(text).substr(0, comma), left) &&
      parse_whole(std::string_view(text).substr(comma + 1), right) && left >= -1 && right >= -1) {
    return {left, right};
  }
  fail(name, text, "L,R: keys to the left and right of a query's position, -1 for no limit on that side",
       fmt::format("use {} 255,0 for the last 256 keys", name.option));
}

Causal parse_causal(const OptionName& name, const std::string& text) {
  if (text.empty()) return Causal::BottomRight;
  static constexpr Word<Causal> kWords[] = {{"bottom-right", Causal::BottomRight},
                                            {"top-left", Causal::TopLeft}};
  return parse_word(name, text, kWords);
}

DType parse_float_dtype(const OptionName& name, const std::string& text) {
  static constexpr Word<DType> kWords[] = {{"f32", DType::F32}, {"f16", DType::F16}, {"bf16", DType::BF16}};
  return parse_word(name, text, kWords);
}

Backend parse_backend(const OptionName& name, const std::string& text) {
  std::vector<std::string> allowed;
  for (const Backend backend : kBackends) {
    if (text == backend_name(backend)) return backend;
    allowed.emplace_back(backend_name(backend));
  }
  fail(name, text, joined(allowed), fmt::format("use {} auto", name.option));
}

BenchBackends parse_backends(const OptionName& name, const std::string& text) {
  static constexpr std::string_view kSets[][2] = {{"cpu", "reference"}, {"cuda", "naive"}};  // by processor
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    words.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  const auto has = [&](std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  for (const auto& [first, second] : kSets) {
    const std::size_t known = (has(first) ? 1u : 0u) + (has(second) ? 1u : 0u);
    if (known == 0 || known != words.size()) continue;
    if (first == "cpu") {
      BenchBackends backends{{}, false};
      for (const std::string& word : words) backends.list.push_back(parse_backend(name, word));
      return backends;
    }
    if (has("cuda")) return {{Backend::Cuda}, has("naive")};
  }
  fail(name, text, "cpu, reference or both, separated by a comma; or cuda, or cuda,naive",
       fmt::format("use {} cpu,reference", name.option));
}

bool parse_heads_first(const OptionName& name, const std::string& text) {
  static constexpr Word<bool> kWords[] = {{"bshd", false}, {"bhsd", true}};
  return parse_word(name, text, kWords);
}

}  // namespace onepass::cli
