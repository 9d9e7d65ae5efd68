// What forward(), backward() and cascade() do before they take memory for a workspace, for callers with an
// allocator of their own.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "onepass/attention.h"
#include "onepass/cascade.h"

namespace onepass {

/// Checks every rule and finds or makes the plan. The call goes on with launch(*plan, args, workspace,
/// stream).
/// @throws InvalidArgument, NotSupported, on a GPU EnvironmentError; `call` names the function.
std::shared_ptr<const Plan> prepared_forward(const char* call, const ForwardArguments& args,
                                             const ForwardOptions& options);
std::shared_ptr<const Plan> prepared_backward(const char* call, const BackwardArguments& args,
                                              const ForwardOptions& options);

/// A cascade's checks of shapes and its plan; its run checks the data. Both name `call`.
/// @throws as the functions above.
CascadePlan prepared_cascade(const char* call, const CascadeArguments& args, const ForwardOptions& options);
void run_prepared(const char* call, const CascadePlan& plan, const CascadeArguments& args,
                  std::span<std::byte> workspace, Stream stream);

}  // namespace onepass
