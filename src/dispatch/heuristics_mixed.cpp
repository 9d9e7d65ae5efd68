#include "dispatch/heuristics_mixed.h"

#include <algorithm>

#include "dispatch/heuristics_decode.h"
#include "dispatch/key_parts.h"

namespace onepass {
namespace {

constexpr std::int64_t kMeanOfMixed = 64;  // rows of the sequences but one: half a tile of a prefill kernel
constexpr std::int64_t kManyKeys = 512;    // on average; below, an almost empty tile is soon done (a guess)

}  // namespace

std::int64_t most_few_rows(const AttentionProblem& problem, const DeviceInfo& device) {
  AttentionProblem few = problem;
  const std::int64_t most = most_rows_of_parts(problem);
  for (few.seqlen_q = most; few.seqlen_q > 0; --few.seqlen_q) {
    if (!decline_sm90_decode(few, device)) return few.seqlen_q;
  }
  return most;
}

std::optional<std::int64_t> choose_few_rows(const AttentionProblem& problem, const DeviceInfo& device) {
  if (device.kind != DeviceInfo::Kind::Cuda || problem.gradient) return std::nullopt;
  if (problem.q_layout != SequenceLayout::Packed) return std::nullopt;
  if (problem.batch_invariant) {
    const std::int64_t few = most_few_rows(problem, device);
    return problem.seqlen_q > few ? std::optional(few) : std::nullopt;
  }
  if (problem.batch < 2) return std::nullopt;
  // Of packed prompts alone the short ones have few keys, too. Pages may hold any number.
  const std::int64_t keys =
      problem.k_layout == SequenceLayout::Packed ? problem.total_k / problem.batch : problem.seqlen_k;
  if (keys < kManyKeys) return std::nullopt;
  const std::int64_t few = most_few_rows(problem, device);
  if (problem.seqlen_q < 2 * kMeanOfMixed || problem.seqlen_q <= 2 * few) return std::nullopt;
  // If one sequence has as many rows as any may have, the others share the rest.
  const std::int64_t others = std::max<std::int64_t>(0, problem.total_q - problem.seqlen_q);
  if (others >= kMeanOfMixed * (problem.batch - 1)) return std::nullopt;
  return few;
}

}  // namespace onepass
