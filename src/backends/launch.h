// From a plan to the code that carries it out.
#pragma once

#include <cstddef>
#include <span>

#include "onepass/attention.h"

namespace onepass {

/// Runs a plan whose arguments and workspace have been checked. @throws InternalError for a plan that names
/// an implementation this library does not have.
void launch(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace, Stream stream);
void launch(const Plan& plan, const BackwardArguments& args, std::span<std::byte> workspace, Stream stream);

}  // namespace onepass
