#include "dispatch/key_parts.h"

#include <algorithm>

namespace onepass {

std::int64_t most_rows_of_parts(const AttentionProblem& problem) {
  constexpr std::int64_t kPackedRows = 64;
  return std::max<std::int64_t>(1, kPackedRows / problem.group());
}

std::int64_t num_split_rows(const AttentionProblem& problem) {
  if (!problem.batch_invariant) return problem.total_q * problem.num_heads_q;
  return problem.batch * problem.num_heads_q * std::min(problem.seqlen_q, most_rows_of_parts(problem));
}

}  // namespace onepass
