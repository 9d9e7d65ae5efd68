#include "dispatch/heuristics_backward.h"

#include <algorithm>

#include "dispatch/heuristics_forward.h"

namespace onepass {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr std::int64_t kRowsApart = 256;                          // of an item that makes dQ alone
constexpr std::int64_t kMostJointBytes = std::int64_t{64} << 20;  // of a thread's dQ in f32

/// Whether one item for each key head, of five products, takes the threads less time than items of seven.
/// Sequences that differ in length want items to spare, so that threads end together.
bool whole_heads_pay(const AttentionProblem& p, std::int64_t heads, std::int64_t threads) {
  if (threads == 1) return true;
  const bool alike = p.q_layout != SequenceLayout::Packed && !p.has_seqused_q && !p.has_seqused_k;
  return alike ? 5 * ceil_div(heads, threads) * threads <= 7 * heads : heads >= 2 * threads;
}

}  // namespace

CpuBackwardConfig choose_cpu_backward(const AttentionProblem& problem, const DeviceInfo& device,
                                      int requested_threads) {
  CpuBackwardConfig config;
  const int threads = std::max(1, requested_threads > 0 ? requested_threads : device.num_processors);
  const std::int64_t rows = problem.seqlen_q * problem.group(), heads = problem.batch * problem.num_heads_k;
  config.tile_n = choose_cpu_tile_n(problem, device);
  config.joint = whole_heads_pay(problem, heads, threads) && rows * problem.head_dim * 4 <= kMostJointBytes;
  config.tile_m = std::max<std::int64_t>(1, config.joint ? rows : std::min(rows, kRowsApart));
  config.num_items =
      config.joint ? heads
                   : heads * (ceil_div(problem.seqlen_k, config.tile_n) + ceil_div(rows, config.tile_m));
  const std::int64_t most = std::max<std::int64_t>(config.num_items, problem.total_q);  // rows of delta
  config.num_threads = static_cast<int>(std::clamp<std::int64_t>(most, 1, threads));
  return config;
}

}  // namespace onepass
