// Where the tensors of a case lie: lengths of sequences, shapes, strides and buffers, without any memory.
#pragma once

#include <cstdint>
#include <vector>

#include "onepass/attention.h"
#include "problem/case_text.h"

namespace onepass::verify {

/// The rows that one side (queries or keys) has, sequence by sequence.
struct Side {
  std::vector<std::int64_t> start, used;  // per sequence; start only matters when packed
  std::int64_t longest = 0;               // rows that a sequence has room for
  std::int64_t end = 0;                   // of the last sequence in a packed buffer
  std::int64_t rows = 0;                  // of a packed buffer, which may have unused rows past the end
};

struct CaseLayout {
  /// One allocation, and the views into it.
  struct Buffer {
    const char* name;
    DType dtype;
    std::int64_t elements;
    bool is_output;
  };
  struct Slice {
    TensorView ForwardArguments::*view;
    std::size_t buffer_idx;
    std::int64_t origin;  // element of the buffer at which element [0, 0, ...] of the view lies
  };

  ForwardArguments args;  // shapes and strides; data is null
  Side q, k;
  std::int64_t num_pages = 0;  // of a paged pool; two of them are not used
  std::vector<Buffer> buffers;
  std::vector<Slice> slices;
};

CaseLayout lay_out(const Case& c);

/// Pages that hold `tokens` tokens.
constexpr std::int64_t pages_of(std::int64_t tokens, std::int64_t page_size) {
  return (tokens + page_size - 1) / page_size;
}

/// What random streams are for; part of every key.
enum class Stream : std::int64_t {
  LengthsQ,
  LengthsK,
  GapsQ,
  GapsK,
  Pages,
  Q,
  K,
  V,
  Bias,
  Slopes,
  Sinks,
  DescaleK,
  DescaleV,
  Dout,
  Dlse,
};

}  // namespace onepass::verify
