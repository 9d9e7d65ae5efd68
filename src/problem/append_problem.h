// The checked form of one append_kv call: plain values, everything optional resolved.
#pragma once

#include <cstdint>

#include "onepass/append_kv.h"

namespace onepass {

/// Rows of a batch, dense or packed.
struct BatchRows {
  std::int64_t seqlen = 0;  // of every sequence; packed: unused
  std::int64_t total = 0;   // of the tensor
};

struct AppendProblem {
  std::int64_t batch = 0;
  std::int64_t num_heads_k = 0, num_heads_q = 0;  // num_heads_q: 0 without q
  std::int64_t head_dim = 0, head_dim_v = 0;
  BatchRows rows_new, rows_q;

  std::int64_t capacity = 0;                                 // rows of one sequence in the cache
  std::int64_t cache_rows = 0;                               // sequences of a contiguous cache
  std::int64_t page_size = 0, num_pages = 0, max_pages = 0;  // paged only
  std::int64_t rotary_dim = 0, num_positions = 0;            // R and the rows of the tables; 0 without
};

/// Checks every rule, addresses included, and of tensors in host memory every index value.
/// @throws InvalidArgument.
AppendProblem validate_append(const char* call, const AppendArguments& args, const AppendOptions& options);

}  // namespace onepass
