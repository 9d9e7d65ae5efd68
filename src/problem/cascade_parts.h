// A cascade as the two forward calls and the merge that it consists of.
#pragma once

#include "onepass/cascade.h"

namespace onepass {

/// Where partial results go: contiguous, in the workspace. Null for planning.
struct CascadeScratch {
  void* prefix_out = nullptr;  // [rows of q, Hq, Dv] of q's dtype
  void* prefix_lse = nullptr;  // f32 [Hq, rows of q]
  void* own_lse = nullptr;     // f32 [Hq, rows of q]; unused where the caller has a softmax_lse
};

struct CascadeParts {
  ForwardArguments prefix, own;
  ForwardOptions prefix_options;  // those of own are the caller's
  MergeArguments merge;           // over own.out
};

/// @throws InvalidArgument for what a cascade does not take; the rules of forward are checked with its parts.
CascadeParts cascade_parts(const char* call, const CascadeArguments& args, const ForwardOptions& options,
                           const CascadeScratch& scratch);

}  // namespace onepass
