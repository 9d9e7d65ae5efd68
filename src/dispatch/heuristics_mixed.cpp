#include "dispatch/heuristics_mixed.h"

#include <algorithm>

#include "dispatch/heuristics_decode.h"
#include "dispatch/key_parts.h"

namespace onepass {
namespace {

constexpr std::int64_t kMeanOfMixed = 64;  // rows of the sequences but one: half a tile of a prefill kernel
constexpr std::int64_t kManyKeys = 512;    // on average; below, an almost empty tile is soon done (a guess)

/// The launches below that of the longest, where `few` rows are few and the other sequences have `others` in
/// all. With one row or hardly more each, they decode: then the tile of one query is enough, and a sequence
/// that does not fit it goes to the longest's launch. With less than one each the longest is shorter than it
/// may be, and nothing is known of them.
std::vector<std::int64_t> launches_of_few(const AttentionProblem& problem, const DeviceInfo& device,
                                          std::int64_t few, std::int64_t others) {
  AttentionProblem short_ones = problem;
  short_ones.seqlen_q = few;
  if (decline_sm90_decode(short_ones, device)) return {few};  // to a kernel with one tile for all of them
  const DecodeTileRows tile = decode_tile_rows(problem);
  const bool decode = others >= problem.batch - 1 && others * 4 <= (problem.batch - 1) * 5;
  if (decode) return {std::min(few, tile.of_one_query)};
  return tile.widest < few ? std::vector{few, tile.widest} : std::vector{few};
}

}  // namespace

std::int64_t most_few_rows(const AttentionProblem& problem, const DeviceInfo& device) {
  AttentionProblem few = problem;
  const std::int64_t most = most_rows_of_parts(problem);
  for (few.seqlen_q = most; few.seqlen_q > 0; --few.seqlen_q) {
    if (!decline_sm90_decode(few, device)) return few.seqlen_q;
  }
  return most;
}

std::vector<std::int64_t> choose_launch_rows(const AttentionProblem& problem, const DeviceInfo& device) {
  if (device.kind != DeviceInfo::Kind::Cuda || problem.gradient) return {};
  if (problem.q_layout != SequenceLayout::Packed) return {};
  if (problem.batch_invariant) {
    const std::int64_t few = most_few_rows(problem, device);
    return problem.seqlen_q > few ? std::vector{problem.seqlen_q, few} : std::vector<std::int64_t>{};
  }
  if (problem.batch < 2) return {};
  // Of packed prompts alone the short ones have few keys, too. Pages may hold any number.
  const std::int64_t keys =
      problem.k_layout == SequenceLayout::Packed ? problem.total_k / problem.batch : problem.seqlen_k;
  if (keys < kManyKeys) return {};
  const std::int64_t few = most_few_rows(problem, device);
  if (problem.seqlen_q < 2 * kMeanOfMixed || problem.seqlen_q <= 2 * few) return {};
  // If one sequence has as many rows as any may have, the others share the rest.
  const std::int64_t others = std::max<std::int64_t>(0, problem.total_q - problem.seqlen_q);
  if (others >= kMeanOfMixed * (problem.batch - 1)) return {};
  std::vector<std::int64_t> rows = launches_of_few(problem, device, few, others);
  rows.insert(rows.begin(), problem.seqlen_q);
  return rows;
}

}  // namespace onepass
