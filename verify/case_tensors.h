// The tensors of a case: shapes and strides alone (for plans), or with memory and values (for runs).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "onepass/attention.h"
#include "problem/case_text.h"
#include "verify/guarded_buffer.h"

namespace onepass::verify {

/// A call's arguments and the memory behind them. Values depend on the seed and on a value's place (tensor,
/// sequence, head, row) only, so cases that differ in layout or memory order hold the same numbers.
///
/// With poison, NaN fills everything that a correct backend does not let into a result: rows of no sequence,
/// rows past the lengths in use, unused pages and slots, elements between strides, guards at both ends of
/// every buffer, K and V rows that no query row of the sequence sees, Q rows that see no key, bias of masked
/// pairs. Odd seeds start tensors one element past a 64-byte boundary.
struct CaseTensors {
  ForwardArguments args;
  ForwardOptions options;

  /// Makes every output byte poison again, for another run.
  void poison_outputs();
  /// What a run should not have touched and did: guards, bytes between output elements, inputs. Empty when
  /// all is well.
  std::optional<std::string> damage() const;

  struct Buffer {
    std::string name;
    std::unique_ptr<GuardedBuffer> memory;
    TensorView output;           // the view into an output buffer; absent for inputs
    std::size_t input_hash = 0;  // of an input buffer, when made
  };
  std::vector<Buffer> buffers;
};

/// What beside the elements of output views was written, and inputs whose content is another; empty when
/// none.
std::optional<std::string> damage_of(const std::vector<CaseTensors::Buffer>& buffers);

std::size_t content_hash(const GuardedBuffer& memory);

/// Allocates and fills. @throws EnvironmentError when the machine has less memory than the case needs.
CaseTensors make_tensors(const Case& c);

/// The same views with null data, and options that carry max_seqlen: enough for plan(), and no
/// memory is used.
struct CaseShapes {
  ForwardArguments args;
  ForwardOptions options;
};
CaseShapes case_shapes(const Case& c);

}  // namespace onepass::verify
