#include "store/wgmma_text.h"

#include <fmt/format.h>

#include <vector>

#include "support/message.h"

namespace onepass {
namespace {

/// "%first, ..., %(first + count - 1)", or the same of `pattern` with the index.
std::string listed(std::string_view pattern, int first, int count) {
  std::vector<std::string> items;
  for (int i = first; i < first + count; ++i) items.push_back(fmt::format(fmt::runtime(pattern), i));
  return joined(items);
}

std::string_view ptx_type(DType dtype) { return dtype == DType::F16 ? "f16" : "bf16"; }

/// The instruction with `a` as its first operand's text; the predicate is operand number `predicate`.
std::string product(DType dtype, int n, std::string_view a, int b, std::string_view flags) {
  return fmt::format(
      R"(    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{predicate}, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{type}.{type} {{{d}}}, {a}, %{b}, p, {flags}; }}\n"
      : {outputs}
)",
      fmt::arg("predicate", b + 1), fmt::arg("n", n), fmt::arg("type", ptx_type(dtype)),
      fmt::arg("d", listed("%{}", 0, n / 2)), fmt::arg("a", a), fmt::arg("b", b), fmt::arg("flags", flags),
      fmt::arg("outputs", listed("\"+f\"(d[{}])", 0, n / 2)));
}

}  // namespace

std::string wgmma_from_shared(std::string_view name, DType dtype, int n) {
  const int sums = n / 2;
  return fmt::format(
      "  ONEPASS_DEVICE static void {}(float (&d)[{}], Uint64 a, Uint64 b, int accumulate) {{\n{}"
      "      : \"l\"(a), \"l\"(b), \"r\"(accumulate));\n  }}\n",
      name, sums, product(dtype, n, fmt::format("%{}", sums), sums + 1, "1, 1, 0, 0"));
}

std::string wgmma_from_registers(std::string_view name, DType dtype, int n) {
  const int sums = n / 2;
  const std::string a = fmt::format("{{{}}}", listed("%{}", sums, 4));
  return fmt::format(
      "  ONEPASS_DEVICE static void {}(float (&d)[{}], const Uint32* a, Uint64 b, int accumulate) {{\n{}"
      "      : {}, \"l\"(b), \"r\"(accumulate));\n  }}\n",
      name, sums, product(dtype, n, a, sums + 4, "1, 1, 1"), listed("\"r\"(a[{}])", 0, 4));
}

}  // namespace onepass
