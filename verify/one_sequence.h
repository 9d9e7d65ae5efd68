// A batch taken apart: what a batch-invariant call must give alike, whatever stands beside a sequence.
#pragma once

#include <vector>

#include "onepass/attention.h"

namespace onepass::verify {

/// The call of sequence b without the others: the same tensors where they are, with a batch of 1.
ForwardArguments one_sequence(const ForwardArguments& args, std::int64_t b);

/// The same sequences, last one first. For q that is not packed.
ForwardArguments in_reverse(const ForwardArguments& args);

/// Bytes of sequence b's rows of out and softmax_lse (host memory).
std::vector<char> bytes_of_sequence(const ForwardArguments& args, std::int64_t b);

}  // namespace onepass::verify
