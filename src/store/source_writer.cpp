#include "store/source_writer.h"

#include <fmt/format.h>

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
    {KernelFamily::MergeSplits, "any/merge_splits.cuh", "MergeSplits", "ForwardParams"},
    {KernelFamily::FillRows, "any/fill_rows.cuh", "FillRows", "ForwardParams"},
    {KernelFamily::MergeStates, "any/merge_states.cuh", "MergeStates", "MergeParams"},
    {KernelFamily::AppendKv, "any/append_kv.cuh", "AppendKv", "AppendKvParams"},
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

std::string_view element_of(DType dtype) { return dtype == DType::F16 ? "F16" : "Bf16"; }

constexpr int kSwizzleRow = 128 / 16;  // of a tile, in the units of a matrix descriptor

/// Steps of 16 columns along Q and K: 32 bytes of a row's 128, then on to the next block of 64 columns.
std::vector<StepOffsets> score_steps(const KernelSpec& spec) {
  std::vector<StepOffsets> steps;
  for (int step = 0; step < (spec.head_dim + 15) / 16; ++step) {
    const int block = step / 4, within = step % 4 * 2;
    steps.push_back({block * spec.tile_m * kSwizzleRow + within, block * spec.tile_n * kSwizzleRow + within});
  }
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
      fmt::arg("score", wgmma_from_shared("score_product", spec.dtype, spec.tile_n, score_steps(spec))),
      fmt::arg("value", wgmma_from_registers("value_product", spec.dtype, spec.head_dim_v, spec.tile_n / 16,
                                             16 * kSwizzleRow)));
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
      return fmt::format("\n  static constexpr bool kStays = {}, kCluster = {};", spec.stays, spec.cluster);
    case KernelFamily::Sm80BackwardKeys: return backward_members("Keys", spec.apart);
    case KernelFamily::Sm80BackwardQueries: return backward_members("Queries", false);
    case KernelFamily::Sm80BackwardBias: return backward_members("Bias", false);
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
  static constexpr bool kPackGqa = {pack_gqa};{members}
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
      fmt::arg("pack_gqa", spec.pack_gqa), fmt::arg("type", text.type), fmt::arg("params", text.params),
      fmt::arg("threads", num_threads(spec)), fmt::arg("shared", shared_bytes(spec)),
      fmt::arg("min_blocks", spec.min_blocks), fmt::arg("name", kernel_name(spec)),
      fmt::arg("members", family_members(spec)),
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
