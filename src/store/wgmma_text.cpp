#include "store/wgmma_text.h"

#include <fmt/format.h>

#include <vector>

#include "support/message.h"

namespace onepass {
namespace {

/// `pattern` with each index of [first, first + count), as a list.
std::string listed(std::string_view pattern, int first, int count) {
  std::vector<std::string> items;
  for (int i = first; i < first + count; ++i) items.push_back(fmt::format(fmt::runtime(pattern), i));
  return joined(items);
}

/// Of one step: descriptor register `name` from its low word, operand number `low`, moved on by `offset`.
std::string descriptor(std::string_view name, int low, int offset) {
  return fmt::format("add.u32 low, %{}, {}; mov.b64 {}, {{low, high}}; ", low, offset, name);
}

std::string instruction(DType dtype, int n, std::string_view a, std::string_view predicate,
                        std::string_view flags) {
  const std::string_view type = dtype == DType::F16 ? "f16" : "bf16";
  return fmt::format("wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{} {{{}}}, {}, b, {}, {};", n, type, type,
                     listed("%{}", 0, n / 2), a, predicate, flags);
}

/// The function: one asm statement, as its operands are what costs compile time.
std::string function(std::string_view name, int n, std::string_view parameters,
                     const std::vector<std::string>& lines, std::string_view inputs) {
  return fmt::format(R"(  ONEPASS_DEVICE static void {}(float (&d)[{}], {}) {{
    asm volatile("{{ .reg .pred first, more; .reg .b32 low, high; .reg .b64 a, b;\n"
      "mov.b32 high, {:#x}; setp.eq.u32 more, 0, 0;\n"
      "{}\n}}"
      : {}
      : {});
  }}
)",
                     name, n / 2, parameters, kDescriptorHigh, fmt::join(lines, "\\n\"\n      \""),
                     listed("\"+f\"(d[{}])", 0, n / 2), inputs);
}

}  // namespace

std::string wgmma_from_shared(std::string_view name, DType dtype, int n,
                              const std::vector<StepOffsets>& steps, OperandB operand_b) {
  const int a = n / 2, b = a + 1;
  const std::string_view flags = operand_b == OperandB::Rows ? "1, 1, 0, 1" : "1, 1, 0, 0";
  std::vector<std::string> lines{"setp.ne.u32 first, 0, 0;"};
  for (const StepOffsets& step : steps) {
    lines.push_back(descriptor("a", a, step.a) + descriptor("b", b, step.b) +
                    instruction(dtype, n, "a", &step == &steps.front() ? "first" : "more", flags));
  }
  return function(name, n, "Uint32 a, Uint32 b", lines, R"("r"(a), "r"(b))");
}

std::string wgmma_from_registers(std::string_view name, DType dtype, int n, int steps, int b_offset) {
  const int a = n / 2, b = a + 4 * steps;
  std::vector<std::string> lines{fmt::format("setp.ne.u32 first, %{}, 0;", b + 1)};
  for (int step = 0; step < steps; ++step) {
    lines.push_back(descriptor("b", b, step * b_offset) +
                    instruction(dtype, n, fmt::format("{{{}}}", listed("%{}", a + 4 * step, 4)),
                                step == 0 ? "first" : "more", "1, 1, 1"));
  }
  return function(name, n, fmt::format("const Uint32 (&a)[{}], Uint32 b, int accumulate", 4 * steps), lines,
                  listed("\"r\"(a[{}])", 0, 4 * steps) + R"(, "r"(b), "r"(accumulate))");
}

}  // namespace onepass
