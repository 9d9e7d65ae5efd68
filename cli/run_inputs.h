// The files of `onepass run` as the arguments of a forward call.
#pragma once

#include <memory>
#include <vector>

#include "cli/options.h"
#include "io/tensor_file.h"
#include "onepass/attention.h"

namespace onepass::cli {

/// Arguments and the memory behind them.
struct RunInputs {
  std::vector<io::HostTensor> storage;
  ForwardArguments args;
  TensorView out_file;  // out as it goes to the file: in the layout of q's file
};

/// Checks that the outputs can be written, reads every file, converts, and allocates the outputs.
/// @throws InvalidArgument, EnvironmentError.
RunInputs load_run_inputs(const RunOptions& options);

}  // namespace onepass::cli
