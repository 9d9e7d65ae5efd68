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

/// Gives o = 0 and lse = -inf to the query rows that belong to no sequence, once more: what else was written
/// there since the plan ran is gone.
void fill_unowned_rows(const Plan& plan, const ForwardArguments& args, Stream stream);

}  // namespace onepass
