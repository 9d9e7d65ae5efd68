#include "dispatch/accounting.h"

#include <algorithm>
#include <numeric>

namespace onepass {
namespace {

// Sum over t in [0, count) of first + step * t, each clamped to [0, limit]; step > 0.
double sum_clamped(Index first, Index step, Index count, Index limit) {
  const auto first_at_least = [&](Index value) {  // smallest t with first + step * t >= value
    return first >= value ? Index{0} : std::min(count, (value - first + step - 1) / step);
  };
  const Index begin = first_at_least(0);
  const Index end = std::max(begin, first_at_least(limit));
  const auto terms = static_cast<double>(end - begin);
  const double ends =
      static_cast<double>(first) * 2 + static_cast<double>(step) * static_cast<double>(begin + end - 1);
  return terms * ends / 2 + static_cast<double>(count - end) * static_cast<double>(limit);
}

double ratio(double a, double b) { return b > 0 ? a / b : 0.0; }

double device_flops_per_second(const AttentionProblem& problem, const DeviceInfo& device) {
  return problem.q_dtype == DType::F32 ? device.f32_flops_per_second : device.f16_flops_per_second;
}

// No row of any sequence sees more keys than this.
double most_keys_of_a_row(const AttentionProblem& problem) {
  Index most = problem.seqlen_k;
  if (problem.causal == Causal::TopLeft) most = std::min<Index>(most, problem.seqlen_q);
  const Index right = problem.causal == Causal::BottomRight ? 0 : problem.window_right;
  if (problem.window_left >= 0 && right >= 0) most = std::min(most, problem.window_left + right + 1);
  return static_cast<double>(most);
}

/// What follows from FLOPs and bytes.
void add_rates(Accounting& a, const AttentionProblem& problem, const DeviceInfo& device) {
  a.intensity_materialised = ratio(a.flops, a.bytes_materialised);
  a.intensity_one_pass = ratio(a.flops, a.bytes_one_pass);
  const double flops_per_second = device_flops_per_second(problem, device);
  a.ridge = ratio(flops_per_second, device.memory_bytes_per_second);
  a.seconds_compute = ratio(a.flops, flops_per_second);
  a.seconds_memory = ratio(a.bytes_lower_bound, device.memory_bytes_per_second);
  a.seconds_lower_bound = std::max(a.seconds_compute, a.seconds_memory);
}

}  // namespace

bool is_ragged(const AttentionProblem& problem) {
  return problem.q_layout != SequenceLayout::Dense || problem.k_layout != SequenceLayout::Dense ||
         problem.has_seqused_q || problem.has_seqused_k;
}

double count_visible_pairs(KeyBand band, Index seqlen_q, Index seqlen_k) {
  if (band.lower > band.upper) return 0;
  // Keys j <= i + upper less keys j < i + lower.
  return sum_clamped(band.upper + 1, 1, seqlen_q, seqlen_k) - sum_clamped(band.lower, 1, seqlen_q, seqlen_k);
}

double count_visited_keys(KeyBand band, Index seqlen_q, Index seqlen_k, Index group, Index tile_m) {
  const Index rows = seqlen_q * group;
  if (band.lower > band.upper || rows == 0) return 0;
  // Tile m starts at query floor(m * tile_m / group) and ends before ceil((m + 1) * tile_m / group). Both
  // repeat with a period in m, so that the tiles of one residue are an arithmetic series.
  const Index divisor = std::gcd(group, tile_m);
  const Index period = group / divisor;
  const Index queries_per_period = tile_m / divisor;
  const Index whole_tiles = (rows - 1) / tile_m;  // all but the last, which may be shorter
  double keys = 0;
  for (Index residue = 0; residue < std::min(period, whole_tiles); ++residue) {
    const Index count = (whole_tiles - residue + period - 1) / period;
    const Index row_begin = residue * tile_m / group;
    const Index row_end = ((residue + 1) * tile_m + group - 1) / group;
    keys += sum_clamped(row_end + band.upper, queries_per_period, count, seqlen_k) -
            sum_clamped(row_begin + band.lower, queries_per_period, count, seqlen_k);
  }
  const KeyRange last = visible_keys(band, seqlen_k, whole_tiles * tile_m / group, seqlen_q);
  return keys + static_cast<double>(last.end - last.begin);
}

Accounting account_forward(const AttentionProblem& problem, const DeviceInfo& device, std::int64_t tile_m,
                           std::int64_t tile_heads) {
  const auto batch = static_cast<double>(problem.batch);
  const auto heads_q = static_cast<double>(problem.num_heads_q);
  const auto heads_k = static_cast<double>(problem.num_heads_k);
  const auto seqlen_q = static_cast<double>(problem.seqlen_q);
  const auto seqlen_k = static_cast<double>(problem.seqlen_k);
  const auto total_q = static_cast<double>(problem.total_q);
  const auto total_k = static_cast<double>(problem.total_k);
  const auto dims = static_cast<double>(problem.head_dim + problem.head_dim_v);
  const auto q_bytes = static_cast<double>(dtype_bytes(problem.q_dtype));
  const auto kv_bytes = static_cast<double>(dtype_bytes(problem.kv_dtype));
  const KeyBand band = key_band(mask_kind(problem.causal), problem.window_left, problem.window_right,
                                problem.seqlen_q, problem.seqlen_k);

  // Each minimum is exact when all sequences have the full length; the other terms bound ragged ones.
  const bool packed_k = problem.k_layout == SequenceLayout::Packed;
  double all_pairs = total_q * seqlen_k;
  if (packed_k) all_pairs = std::min(all_pairs, total_k * seqlen_q);
  double pairs = std::min(all_pairs, total_q * most_keys_of_a_row(problem));
  // Shorter sequences have fewer visible pairs, except under a top-left diagonal with a left window: there a
  // smaller Sk - Sq widens the band.
  if (problem.causal != Causal::TopLeft || problem.window_left < 0 || !is_ragged(problem)) {
    pairs = std::min(pairs, batch * count_visible_pairs(band, problem.seqlen_q, problem.seqlen_k));
  }

  const KeyRange seen = visible_keys(band, problem.seqlen_k, 0, problem.seqlen_q);
  double keys_once =
      is_ragged(problem) ? batch * seqlen_k : batch * static_cast<double>(seen.end - seen.begin);
  if (problem.k_layout != SequenceLayout::Dense) keys_once = std::min(keys_once, total_k);
  double keys_visited = 0;
  if (is_ragged(problem)) {
    const double tiles = total_q * static_cast<double>(tile_heads) / static_cast<double>(tile_m) + batch;
    const Index most_tiles = (problem.seqlen_q * tile_heads + tile_m - 1) / tile_m;
    keys_visited = std::min(tiles, batch * static_cast<double>(most_tiles)) * seqlen_k;
    if (packed_k) keys_visited = std::min(keys_visited, total_k * static_cast<double>(most_tiles));
  } else {
    keys_visited = batch * count_visited_keys(band, problem.seqlen_q, problem.seqlen_k, tile_heads, tile_m);
  }
  const double all_keys = problem.k_layout == SequenceLayout::Packed ? total_k : batch * seqlen_k;

  const double q_and_out = total_q * heads_q * dims * q_bytes;
  const double bytes_per_key = heads_k * dims * kv_bytes;

  Accounting a;
  a.flops = 2 * dims * heads_q * pairs;
  a.bytes_materialised = q_and_out + all_keys * bytes_per_key + 4 * heads_q * all_pairs * q_bytes;
  const double tiles_per_key_head = static_cast<double>(problem.group()) / static_cast<double>(tile_heads);
  a.bytes_one_pass = q_and_out + keys_visited * tiles_per_key_head * bytes_per_key;
  a.bytes_lower_bound = q_and_out + keys_once * bytes_per_key;
  add_rates(a, problem, device);
  return a;
}

Accounting account(const AttentionProblem& problem, const DeviceInfo& device, std::int64_t tile_m,
                   std::int64_t tile_heads) {
  Accounting a = account_forward(problem, device, tile_m, tile_heads);
  if (!problem.gradient) return a;
  const auto d = static_cast<double>(problem.head_dim), dv = static_cast<double>(problem.head_dim_v);
  a.flops *= (3 * d + 2 * dv) / (d + dv);
  for (double* bytes : {&a.bytes_materialised, &a.bytes_one_pass, &a.bytes_lower_bound}) *bytes *= 2;
  add_rates(a, problem, device);
  return a;
}

}  // namespace onepass
