#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "module.h"
#include "onepass/attention.h"
#include "support/message.h"
#include "threads.h"

namespace nb = nanobind;

namespace onepass::python {
namespace {

template <class Value>
using Word = std::pair<std::string_view, Value>;

constexpr std::array kCausalWords = {Word<Causal>{"none", Causal::None},
                                     Word<Causal>{"bottom-right", Causal::BottomRight},
                                     Word<Causal>{"top-left", Causal::TopLeft}};
constexpr std::array kBackendWords = {
    Word<Backend>{"auto", Backend::Auto}, Word<Backend>{"cpu", Backend::Cpu},
    Word<Backend>{"reference", Backend::Reference}, Word<Backend>{"cuda", Backend::Cuda}};

template <class Words>
auto value_of(const char* argument, const std::string& given, const Words& words) {
  for (const auto& [word, value] : words) {
    if (word == given) return value;
  }
  std::vector<std::string> known;
  for (const auto& [word, value] : words) known.emplace_back(word);
  throw_invalid("onepass", fmt::format("{} is '{}'", argument, given), joined(known),
                fmt::format("pass one of these words for {}", argument));
}

}  // namespace

void bind_options(nb::module_& module) {
  nb::class_<ForwardOptions>(module, "ForwardOptions", "The values of one call.")
      .def(
          "__init__",
          [](ForwardOptions* self, const std::string& causal, std::int64_t window_left,
             std::int64_t window_right, std::optional<double> softmax_scale, double softcap,
             std::optional<std::int64_t> max_seqlen_q, std::optional<std::int64_t> max_seqlen_k,
             const std::string& backend, int num_threads, int num_splits, bool batch_invariant) {
            new (self) ForwardOptions{.causal = value_of("causal", causal, kCausalWords),
                                      .window_left = window_left,
                                      .window_right = window_right,
                                      .softmax_scale = softmax_scale,
                                      .softcap = softcap,
                                      .max_seqlen_q = max_seqlen_q,
                                      .max_seqlen_k = max_seqlen_k,
                                      .backend = value_of("backend", backend, kBackendWords),
                                      .num_threads = threads_to_use(num_threads),
                                      .num_splits = num_splits,
                                      .batch_invariant = batch_invariant};
          },
          nb::arg("causal"), nb::arg("window_left"), nb::arg("window_right"), nb::arg("softmax_scale").none(),
          nb::arg("softcap"), nb::arg("max_seqlen_q").none(), nb::arg("max_seqlen_k").none(),
          nb::arg("backend"), nb::arg("num_threads"), nb::arg("num_splits"),
          nb::arg("batch_invariant") = false);
}

}  // namespace onepass::python
