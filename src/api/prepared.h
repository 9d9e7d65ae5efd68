// What forward() and backward() do before they take memory for a workspace, for callers with an allocator of
// their own.
#pragma once

#include <memory>

#include "onepass/attention.h"

namespace onepass {

/// Checks every rule and finds or makes the plan. The call goes on with launch(*plan, args, workspace,
/// stream).
/// @throws InvalidArgument, NotSupported, on a GPU EnvironmentError; `call` names the function.
std::shared_ptr<const Plan> prepared_forward(const char* call, const ForwardArguments& args,
                                             const ForwardOptions& options);
std::shared_ptr<const Plan> prepared_backward(const char* call, const BackwardArguments& args,
                                              const ForwardOptions& options);

}  // namespace onepass
