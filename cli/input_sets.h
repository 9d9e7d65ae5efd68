// Copies of a case's tensors, to be used in turn so that a timed call does not find its inputs in a cache.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "onepass/attention.h"
#include "verify/case_tensors.h"

namespace onepass::cli {

/// As many as together exceed the last-level cache of `device` one and a half times, within an eighth
/// of its memory.
std::size_t count_input_sets(const verify::CaseTensors& tensors, const DeviceInfo& device);

/// Equal tensors at different addresses, the first ones being the case's own. Valid while `tensors` lives.
class InputSets {
 public:
  /// When `memory_bound`, count_input_sets of them. Otherwise one: a call that is bound by arithmetic reads
  /// its inputs faster than it needs them, wherever they are.
  InputSets(const verify::CaseTensors& tensors, bool memory_bound, const DeviceInfo& device);

  std::size_t size() const { return args_.size(); }
  const ForwardArguments& operator[](std::size_t i) const { return args_[i]; }

 private:
  std::vector<ForwardArguments> args_;
  std::vector<std::unique_ptr<verify::GuardedBuffer>> memory_;
};

}  // namespace onepass::cli
