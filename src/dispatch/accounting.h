// Floating-point operations and bytes of a forward call, and what they cost at least on a device.
#pragma once

#include "onepass/plan.h"
#include "problem/attention_problem.h"

namespace onepass {

/// Query-key pairs that the mask allows in one sequence and head; exact in closed form.
double count_visible_pairs(KeyBand band, Index seqlen_q, Index seqlen_k);

/// Keys that the query tiles of one sequence and key head read between them, when tile_m rows of the g query
/// heads packed together (row r is query r / g) make a tile: seqlen_k * ceil(seqlen_q * g / tile_m) unmasked.
double count_visited_keys(KeyBand band, Index seqlen_q, Index seqlen_k, Index group, Index tile_m);

/// FLOPs          2 (D + Dv) for each visible pair and query head
/// materialised   Q, K, V, O once; S and P (whole, in q's dtype) written and read
/// one pass       Q, O once; K, V once per query tile, only the keys that the tile's mask leaves
/// lower bound    Q, O once; K, V once, only keys that some query sees
/// Bias, slopes, LSE, index tensors and partial results of splits are left out: spec.md section 7.
///
/// Exact when every sequence has the full length. For ragged problems (packed, paged or with seqused) lengths
/// are unknown here, and each number is an upper bound from the longest lengths and the totals.
/// Works for every device, also one that no implementation serves.
///
/// A query tile has tile_m rows, from tile_heads query heads that share a key head.
Accounting account_forward(const AttentionProblem& problem, const DeviceInfo& device, std::int64_t tile_m,
                           std::int64_t tile_heads);

/// account_forward for the call that `problem` is. Of a backward call, which has five products where forward
/// has two, and reads O, dO and writes dQ, dK, dV beside Q, K and V:
/// FLOPs          2 (3 D + 2 Dv) for each visible pair and query head
/// bytes          twice the forward's; materialised: S, P, dP and dS
Accounting account(const AttentionProblem& problem, const DeviceInfo& device, std::int64_t tile_m,
                   std::int64_t tile_heads);

/// Sequences may be shorter than seqlen_q, seqlen_k, so that the accounting is an upper bound.
bool is_ragged(const AttentionProblem& problem);

}  // namespace onepass
