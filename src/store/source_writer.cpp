#include "store/source_writer.h"

#include <fmt/format.h>

#include "backends/cuda/kernels/sm90/backward_layout.h"
#include "store/hash.h"
#include "store/wgmma_text.h"

namespace onepass {
namespace {

struct FamilyText {
  KernelFamily family;
  std::string_view file;    // of the kernel folder
  std::string_view type;    // the kernel's class template over Spec
  std::string_view params;  // what it is launched with
};

constexpr FamilyText kTexts[] = {
    {KernelFamily::Sm80Forward, "sm80/forward.cuh", "ForwardSm80", "ForwardParams"},
    {KernelFamily::Sm90Forward, "sm90/forward.cuh", "ForwardSm90", "Sm90ForwardParams"},
    {KernelFamily::Sm90Decode, "sm90/decode.cuh", "DecodeSm90", "Sm90DecodeParams"},
    {KernelFamily::Sm80BackwardKeys, "sm80/backward.cuh", "BackwardSm80", "BackwardParams"},
    {KernelFamily::Sm80BackwardQueries, "sm80/backward.cuh", "BackwardSm80", "BackwardParams"},
    {KernelFamily::Sm80BackwardBias, "sm80/backward.cuh", "BackwardSm80", "BackwardParams"},
    {KernelFamily::BackwardPrepare, "any/backward_prepare.cuh", "BackwardPrepare", "BackwardParams"},
    {KernelFamily::BackwardSinks, "any/backward_sinks.cuh", "BackwardSinks", "BackwardParams"},
    {KernelFamily::FillGradients, "any/fill_gradients.cuh", "FillGradients", "BackwardParams"},
    {KernelFamily::Sm90BackwardPrepare, "sm90/backward_prepare.cuh", "BackwardPrepareSm90",
     "Sm90BackwardParams"},
    {KernelFamily::Sm90Backward, "sm90/backward.cuh", "BackwardSm90", "Sm90BackwardParams"},
    {KernelFamily::Sm90BackwardFinish, "sm90/backward_finish.cuh", "BackwardFinishSm90",
     "Sm90BackwardParams"},
    {KernelFamily::MergeSplits, "any/merge_splits.cuh", "MergeSplits", "ForwardParams"},
    {KernelFamily::FillRows, "any/fill_rows.cuh", "FillRows", "ForwardParams"},
    {KernelFamily::MergeStates, "any/merge_states.cuh", "MergeStates", "MergeParams"},
    {KernelFamily::AppendKv, "any/append_kv.cuh", "AppendKv", "AppendKvParams"},
    {KernelFamily::PartLengths, "any/part_lengths.cuh", "PartLengths", "PartLengthsParams"},
    {KernelFamily::NaiveScores, "baseline/naive.cuh", "NaiveScores", "NaiveParams"},
    {KernelFamily::NaiveSoftmax, "baseline/naive.cuh", "NaiveSoftmax", "NaiveParams"},
    {KernelFamily::NaiveValues, "baseline/naive.cuh", "NaiveValues", "NaiveParams"},
};

const FamilyText& text_of(KernelFamily family) {
  for (const FamilyText& text : kTexts) {
    if (text.family == family) return text;
  }
  return kTexts[0];
}

std::string_view element_of(DType dtype) {
  switch (dtype) {
    case DType::F16: return "F16";
    case DType::F8E4M3: return "E4m3";
    case DType::F8E5M2: return "E5m2";
    case DType::I8: return "I8";
    default: return "Bf16";
  }
}

constexpr int kSwizzleRow = 128 / 16;  // of a tile, in the units of a matrix descriptor

/// Along the rows of a tile of so many: 16 columns a step are 32 bytes of a row's 128, then on to the next
/// block of 64 columns.
int column_offset(int step, int rows) { return step / 4 * rows * kSwizzleRow + step % 4 * 2; }
/// Down its columns: 16 rows a step.
int row_offset(int step) { return step * 16 * kSwizzleRow; }

/// Steps along `columns` of two tiles with so many rows.
std::vector<StepOffsets> column_steps(int columns, int rows_a, int rows_b) {
  std::vector<StepOffsets> steps;
  steps.reserve(static_cast<std::size_t>(columns + 15) / 16);
  for (int step = 0; step < (columns + 15) / 16; ++step)
    steps.push_back({column_offset(step, rows_a), column_offset(step, rows_b)});
  return steps;
}

/// Members of Spec that only this family's text asks for.
std::string sm90_members(const KernelSpec& spec) {
  return fmt::format(
      R"(
  static constexpr int kQueryStages = {query_stages};
  static constexpr bool kTwoProbabilities = {two_probabilities};
  static constexpr bool kMaskEnd = {mask_end}, kMaskBegin = {mask_begin};
  static constexpr bool kTicket = {ticket}, kRagged = {ragged};
{score}{value})",
      fmt::arg("query_stages", spec.two_query_stages ? 2 : 1),
      fmt::arg("two_probabilities", spec.two_probabilities), fmt::arg("mask_end", spec.mask_end),
      fmt::arg("mask_begin", spec.mask_begin), fmt::arg("ticket", spec.ticket),
      fmt::arg("ragged", spec.ragged),
      fmt::arg("score", wgmma_from_shared("score_product", spec.dtype, spec.tile_n,
                                          column_steps(spec.head_dim, spec.tile_m, spec.tile_n))),
      fmt::arg("value", wgmma_from_registers("value_product", spec.dtype, spec.head_dim_v, spec.tile_n / 16,
                                             row_offset(1))));
}

/// Of sm90_backward and what comes before and after it.
std::string sm90_backward_masks(const KernelSpec& spec) {
  return fmt::format("\n  static constexpr bool kMaskEnd = {}, kMaskBegin = {};", spec.mask_end,
                     spec.mask_begin);
}

/// The five products: S^T = K Q^T and dP^T = V dO^T, dV = P^T dO and dK = dS^T Q, dQ = dS K.
std::string sm90_backward_products(const KernelSpec& spec) {
  const int m = spec.tile_m, n = spec.tile_n, steps_m = m / 16;
  const int half = cuda::backward_columns(spec.head_dim, n) / 2, dq_columns = m == 128 ? spec.head_dim : half;
  const bool wide = n == cuda::kBackwardWideKeys;
  const int dk_columns = wide ? half : spec.head_dim;
  const int dv_columns = wide ? cuda::backward_columns(spec.head_dim_v, n) / 2 : spec.head_dim_v;
  std::vector<StepOffsets> steps_n;
  steps_n.reserve(static_cast<std::size_t>(n) / 16);
  for (int step = 0; step < n / 16; ++step) steps_n.push_back({column_offset(step, m), row_offset(step)});
  return fmt::format(
      "\n{}{}{}{}{}", wgmma_from_shared("score_product", spec.dtype, m, column_steps(spec.head_dim, n, m)),
      wgmma_from_shared("dprobability_product", spec.dtype, m, column_steps(spec.head_dim_v, n, m)),
      wgmma_from_registers("dv_product", spec.dtype, dv_columns, steps_m, row_offset(1)),
      wgmma_from_registers("dk_product", spec.dtype, dk_columns, steps_m, row_offset(1)),
      wgmma_from_shared("dq_product", spec.dtype, dq_columns, steps_n, OperandB::Rows));
}

std::string backward_members(std::string_view part, bool apart) {
  return fmt::format(
      "\n  static constexpr auto kPart = BackwardPart::{};\n  static constexpr bool kApart = {};", part,
      apart);
}

std::string family_members(const KernelSpec& spec) {
  switch (spec.family) {
    case KernelFamily::Sm90Forward: return sm90_members(spec);
    case KernelFamily::Sm90Decode:
      return fmt::format(
          "\n  using Stored = {};\n  static constexpr bool kStays = {}, kRagged = {}, kCluster = {}, kGather "
          "= {};\n  static constexpr bool kPageFactors = {};",
          element_of(spec.kv_dtype.value_or(spec.dtype)), spec.stays, spec.ragged, spec.cluster, spec.gather,
          spec.page_factors);
    case KernelFamily::AppendKv:
      return fmt::format("\n  using Stored = {};", element_of(spec.kv_dtype.value_or(spec.dtype)));
    case KernelFamily::Sm80BackwardKeys: return backward_members("Keys", spec.apart);
    case KernelFamily::Sm80BackwardQueries: return backward_members("Queries", false);
    case KernelFamily::Sm80BackwardBias: return backward_members("Bias", false);
    case KernelFamily::Sm90BackwardPrepare:
    case KernelFamily::Sm90BackwardFinish: return sm90_backward_masks(spec);
    case KernelFamily::Sm90Backward: return sm90_backward_masks(spec) + sm90_backward_products(spec);
    default: return {};
  }
}

}  // namespace

std::string write_source(const KernelSpec& spec) {
  const FamilyText& text = text_of(spec.family);
  return fmt::format(
      R"(#include "{file}"

namespace onepass::cuda {{
struct Spec {{
  using Element = {element};
  static constexpr int kHeadDim = {head_dim}, kHeadDimV = {head_dim_v};
  static constexpr int kTileM = {tile_m}, kTileN = {tile_n}, kWarps = {num_warps};
  static constexpr int kColumnGroups = {column_groups}, kStages = {stages};
  static constexpr int kLoadBytes = {load_bytes}, kStoreBytes = {store_bytes};
  static constexpr bool kPaged = {paged}, kScoreTerms = {score_terms}, kSplit = {split};
  static constexpr bool kPackGqa = {pack_gqa}, kParts = {parts};{members}
}};
static_assert({type}<Spec>::kThreads == {threads}, "the host launches this many threads");
static_assert({type}<Spec>::kSharedBytes == {shared}, "the host gives this much shared memory");
}}  // namespace onepass::cuda

extern "C" __global__ void {cluster}__launch_bounds__({threads}, {min_blocks})
    {name}(const __grid_constant__ onepass::cuda::{params} params) {{
  extern __shared__ __align__(1024) char shared[];
  onepass::cuda::{type}<onepass::cuda::Spec>(params, shared).run(shared);
}}
)",
      fmt::arg("file", text.file), fmt::arg("element", element_of(spec.dtype)),
      fmt::arg("head_dim", spec.head_dim), fmt::arg("head_dim_v", spec.head_dim_v),
      fmt::arg("tile_m", spec.tile_m), fmt::arg("tile_n", spec.tile_n), fmt::arg("num_warps", spec.num_warps),
      fmt::arg("column_groups", spec.column_groups), fmt::arg("stages", spec.stages),
      fmt::arg("load_bytes", spec.load_bytes), fmt::arg("store_bytes", spec.store_bytes),
      fmt::arg("paged", spec.paged), fmt::arg("score_terms", spec.score_terms), fmt::arg("split", spec.split),
      fmt::arg("pack_gqa", spec.pack_gqa), fmt::arg("parts", spec.parts), fmt::arg("type", text.type),
      fmt::arg("params", text.params), fmt::arg("threads", num_threads(spec)),
      fmt::arg("shared", shared_bytes(spec)), fmt::arg("min_blocks", spec.min_blocks),
      fmt::arg("name", kernel_name(spec)), fmt::arg("members", family_members(spec)),
      fmt::arg("cluster", spec.cluster ? "__cluster_dims__(8) " : ""));
}

std::vector<std::string> compile_options(const KernelSpec& spec) {
  return {fmt::format("--gpu-architecture=sm_{}{}", spec.architecture, spec.architecture == 90 ? "a" : ""),
          "-std=c++20", "--extra-device-vectorization", "--ptxas-options=-v"};  // -v: resources, into the log
}

std::uint64_t sources_hash() {
  static const std::uint64_t hash = [] {
    std::uint64_t h = 0;
    for (const KernelFile& file : kernel_files()) h = hash_of(file.text, hash_of(file.path, h));
    for (const FamilyText& text : kTexts) {
      KernelSpec spec;
      spec.family = text.family;
      spec.head_dim = spec.head_dim_v = 64;  // any that makes sense
      h = hash_of(write_source(spec), h);
    }
    for (const std::string& option : compile_options(KernelSpec{})) h = hash_of(option, h);
    return h;
  }();
  return hash;
}

}  // namespace onepass
