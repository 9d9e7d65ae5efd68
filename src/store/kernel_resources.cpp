#include "store/kernel_resources.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace onepass {
namespace {

/// The largest number that stands right before `words`; -1 when the words are not there.
int largest_before(std::string_view log, std::string_view words) {
  int largest = -1;
  for (std::size_t at = log.find(words); at != std::string_view::npos; at = log.find(words, at + 1)) {
    std::size_t begin = at;
    while (begin > 0 && log[begin - 1] >= '0' && log[begin - 1] <= '9') --begin;
    int value = 0;
    const auto [end, error] = std::from_chars(log.data() + begin, log.data() + at, value);
    if (error == std::errc{}) largest = std::max(largest, value);
  }
  return largest;
}

}  // namespace

KernelResources read_resources(std::string_view log) {
  return {.registers = largest_before(log, " registers"),
          .local_bytes = largest_before(log, " bytes stack frame"),
          .spilled_bytes =
              std::max(largest_before(log, " bytes spill stores"), largest_before(log, " bytes spill loads")),
          .serialized = log.find("wgmma.mma_async instructions are serialized") != std::string_view::npos,
          .registers_stay = log.find("setmaxnreg") != std::string_view::npos};
}

int register_budget(const KernelSpec& spec) {
  constexpr int kMost = 255, kGranularity = 8, kSchedulers = 4;  // a warp's registers are in one of them
  const int warps = std::max(1, spec.num_warps * spec.min_blocks);
  const int of_warp = kRegistersOfSm / kSchedulers / ((warps + kSchedulers - 1) / kSchedulers);
  return std::min(of_warp / 32 / kGranularity * kGranularity, kMost);
}

std::optional<std::string> over_budget(const KernelSpec& spec, const KernelResources& resources) {
  if (resources.registers < 0 || resources.local_bytes < 0 || resources.spilled_bytes < 0) {
    return "the compiler reported no resources";
  }
  if (resources.local_bytes > 0 || resources.spilled_bytes > 0) {
    return fmt::format("{} bytes of local memory, {} spilled; none are allowed", resources.local_bytes,
                       resources.spilled_bytes);
  }
  if (resources.serialized) return "the compiler made each wgmma wait for the one before";
  if (resources.registers_stay)
    return "the compiler left out setmaxnreg, which moves registers between warps";
  if (resources.registers > register_budget(spec)) {
    return fmt::format("{} registers; {} are allowed", resources.registers, register_budget(spec));
  }
  return std::nullopt;
}

}  // namespace onepass
