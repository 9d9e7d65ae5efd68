// What the planner and run() need to know of a CPU implementation.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "onepass/plan.h"
#include "problem/attention_problem.h"

namespace onepass::cpu {

/// Plain loops in float64, every feature: the truth that all other backends are tested against.
/// Results are rounded once, when stored. Takes any plan.
void run_reference(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace);
void run_reference(const Plan& plan, const BackwardArguments& args, std::span<std::byte> workspace);

/// Tiles in cache, online softmax, SIMD chosen at run time; plan.num_threads threads.
void run_simd(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace);

/// Bytes of scratch that one thread of run_simd needs; a multiple of 64. Pure.
std::size_t simd_scratch_bytes(const AttentionProblem& problem, std::int64_t tile_m, std::int64_t tile_n);

/// Likewise for gradients: run_simd of a backward call, and one thread's scratch for items of num_rows packed
/// query rows.
void run_simd(const Plan& plan, const BackwardArguments& args, std::span<std::byte> workspace);
inline constexpr std::int64_t kBiasRows = 64;  // of an item of a bias's gradient
std::size_t simd_gradient_scratch_bytes(const AttentionProblem& problem, std::int64_t tile_n,
                                        std::int64_t num_rows);

/// Names of the instruction sets that this machine can run, best first ("AVX3", "AVX2", ...), and a way for
/// tests to force one (empty: back to the best). @throws InvalidArgument for a name not in the list.
std::vector<std::string> simd_instruction_sets();
void force_simd_instruction_set(const std::string& name);

/// Gives o = 0 and lse = -inf to the query rows that belong to no sequence (padding of dense batches with
/// seqused_q, gaps in packed buffers). Every backend calls it; sequences themselves are left alone.
void fill_unowned_rows(const AttentionProblem& problem, const ForwardArguments& args);
/// Likewise dq = 0, and dk = dv = 0 to such key rows.
void fill_unowned_rows(const AttentionProblem& problem, const BackwardArguments& args);

}  // namespace onepass::cpu
