#include "store/kernel_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

#include "backends/cuda/kernels/common/shared_row.h"
#include "backends/cuda/kernels/sm80/backward_layout.h"
#include "backends/cuda/kernels/sm90/backward_layout.h"
#include "backends/cuda/kernels/sm90/decode_layout.h"
#include "backends/cuda/kernels/sm90/layout.h"
#include "support/message.h"

namespace onepass {
namespace {

constexpr std::pair<KernelFamily, std::string_view> kFamilies[] = {
    {KernelFamily::Sm80Forward, "sm80_forward"},
    {KernelFamily::Sm90Forward, "sm90_forward"},
    {KernelFamily::Sm80BackwardKeys, "sm80_backward_keys"},
    {KernelFamily::Sm80BackwardQueries, "sm80_backward_queries"},
    {KernelFamily::Sm80BackwardBias, "sm80_backward_bias"},
    {KernelFamily::BackwardPrepare, "backward_prepare"},
    {KernelFamily::BackwardSinks, "backward_sinks"},
    {KernelFamily::FillGradients, "fill_gradients"},
    {KernelFamily::Sm90Decode, "sm90_decode"},
    {KernelFamily::Sm90BackwardPrepare, "sm90_backward_prepare"},
    {KernelFamily::Sm90BackwardFinish, "sm90_backward_finish"},
    {KernelFamily::Sm90Backward, "sm90_backward"},
    {KernelFamily::MergeSplits, "merge_splits"},
    {KernelFamily::FillRows, "fill_rows"},
    {KernelFamily::AppendKv, "append_kv"},
    {KernelFamily::PartLengths, "part_lengths"},
    {KernelFamily::MergeStates, "merge_states"},
    {KernelFamily::NaiveScores, "naive_scores"},
    {KernelFamily::NaiveSoftmax, "naive_softmax"},
    {KernelFamily::NaiveValues, "naive_values"},
};
constexpr std::pair<DType, std::string_view> kDtypes[] = {{DType::F16, "f16"}, {DType::BF16, "bf16"}};
constexpr std::pair<DType, std::string_view> kStoredDtypes[] = {
    {DType::F8E4M3, "f8e4m3"}, {DType::F8E5M2, "f8e5m2"}, {DType::I8, "i8"}};

// Numbers in the order of the name: prefix, member, and the separator before it.
struct NumberField {
  std::string_view prefix;
  int KernelSpec::*member;
};
constexpr NumberField kNumbers[] = {
    {"_d", &KernelSpec::head_dim},   {"_v", &KernelSpec::head_dim_v}, {"_m", &KernelSpec::tile_m},
    {"n", &KernelSpec::tile_n},      {"w", &KernelSpec::num_warps},   {"c", &KernelSpec::column_groups},
    {"s", &KernelSpec::stages},      {"b", &KernelSpec::min_blocks},  {"_l", &KernelSpec::load_bytes},
    {"s", &KernelSpec::store_bytes},
};
struct FlagField {
  std::string_view text;
  bool KernelSpec::*member;
};
constexpr FlagField kFlags[] = {
    {"_paged", &KernelSpec::paged},          {"_terms", &KernelSpec::score_terms},
    {"_pack", &KernelSpec::pack_gqa},        {"_split", &KernelSpec::split},
    {"_parts", &KernelSpec::parts},          {"_q2", &KernelSpec::two_query_stages},
    {"_p2", &KernelSpec::two_probabilities}, {"_end", &KernelSpec::mask_end},
    {"_begin", &KernelSpec::mask_begin},     {"_ticket", &KernelSpec::ticket},
    {"_ragged", &KernelSpec::ragged},        {"_stays", &KernelSpec::stays},
    {"_cluster8", &KernelSpec::cluster},     {"_gather", &KernelSpec::gather},
    {"_factors", &KernelSpec::page_factors}, {"_apart", &KernelSpec::apart},
};

// Past any size in a name; products of three stay far inside 64 bits.
constexpr int kMostNumber = 4096;

int shared_pitch(int head_dim, int multiple) {
  return cuda::shared_pitch_bytes(cuda::round_up(head_dim, multiple), multiple);
}

/// Consumes the text of a name from the front.
class Reader {
 public:
  explicit Reader(std::string_view name) : whole_(name), rest_(name) {}

  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  int number() {
    int value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc{} || value < 0 || value > kMostNumber) fail();
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }
  template <class T, std::size_t N>
  T word(const std::pair<T, std::string_view> (&table)[N]) {
    for (const auto& [value, text] : table) {
      if (take(text)) return value;
    }
    fail();
  }
  bool done() const { return rest_.empty(); }
  [[noreturn]] void fail() const {
    throw_invalid("kernel name", fmt::format("\"{}\" stops making sense at \"{}\"", whole_, rest_),
                  "a name as printed by `onepass plan` or `onepass kernels list`",
                  "copy the name from there");
  }

 private:
  std::string_view whole_, rest_;
};

template <class T, std::size_t N>
std::string_view word_of(const std::pair<T, std::string_view> (&table)[N], T value) {
  for (const auto& [candidate, text] : table) {
    if (candidate == value) return text;
  }
  return "?";
}

}  // namespace

std::string kernel_name(const KernelSpec& spec) {
  std::string name = fmt::format("{}_{}", word_of(kFamilies, spec.family), word_of(kDtypes, spec.dtype));
  if (spec.kv_dtype) name += fmt::format("_kv{}", word_of(kStoredDtypes, *spec.kv_dtype));
  for (const NumberField& field : kNumbers) name += fmt::format("{}{}", field.prefix, spec.*field.member);
  for (const FlagField& field : kFlags) {
    if (spec.*field.member) name += field.text;
  }
  return name + fmt::format("_sm{}", spec.architecture);
}

KernelSpec parse_kernel_name(std::string_view name) {
  Reader reader(name);
  KernelSpec spec;
  spec.family = reader.word(kFamilies);
  if (!reader.take("_")) reader.fail();
  spec.dtype = reader.word(kDtypes);
  if (reader.take("_kv")) spec.kv_dtype = reader.word(kStoredDtypes);
  for (const NumberField& field : kNumbers) {
    if (!reader.take(field.prefix)) reader.fail();
    spec.*field.member = reader.number();
  }
  for (const FlagField& field : kFlags) spec.*field.member = reader.take(field.text);
  if (!reader.take("_sm")) reader.fail();
  spec.architecture = reader.number();
  if (!reader.done() || kernel_name(spec) != name) reader.fail();  // "d064" is no name of ours
  return spec;
}

int kv_bytes(const KernelSpec& spec) { return spec.kv_dtype ? 1 : 2; }

int num_threads(const KernelSpec& spec) { return 32 * spec.num_warps; }

std::size_t shared_bytes(const KernelSpec& spec) {
  if (spec.family == KernelFamily::Sm90Forward) {
    return static_cast<std::size_t>(cuda::sm90_shared_bytes(spec.tile_m, spec.tile_n, spec.head_dim,
                                                            spec.head_dim_v, spec.stages,
                                                            spec.two_query_stages ? 2 : 1));
  }
  if (spec.family == KernelFamily::Sm90Decode) {
    const int consumers = spec.num_warps - cuda::decode_producers(spec.gather);
    const long long joint_bytes =
        spec.stays ? cuda::decode_joint_bytes(consumers, spec.tile_m, spec.head_dim_v) : 0;
    return static_cast<std::size_t>(cuda::decode_shared_bytes(
        spec.tile_n, cuda::decode_columns(spec.head_dim, kv_bytes(spec)),
        cuda::decode_columns(spec.head_dim_v, kv_bytes(spec)), spec.stages, joint_bytes,
        cuda::decode_slot_factors(spec.page_factors, spec.gather, spec.tile_n)));
  }
  if (spec.family == KernelFamily::Sm90Backward) {
    return static_cast<std::size_t>(
        cuda::backward_sm90_layout<long long>(spec.tile_m, spec.tile_n, spec.head_dim, spec.head_dim_v).end);
  }
  if (spec.family == KernelFamily::BackwardSinks) return static_cast<std::size_t>(num_threads(spec)) * 4;
  if (spec.family == KernelFamily::Sm80BackwardKeys || spec.family == KernelFamily::Sm80BackwardQueries ||
      spec.family == KernelFamily::Sm80BackwardBias) {
    const bool of_keys = spec.family == KernelFamily::Sm80BackwardKeys;
    const int own = of_keys ? spec.tile_n : spec.tile_m, step = of_keys ? spec.tile_m : spec.tile_n;
    return static_cast<std::size_t>(cuda::backward_sm80_layout(own, step, shared_pitch(spec.head_dim, 16),
                                                               shared_pitch(spec.head_dim_v, 16), spec.stages,
                                                               of_keys)
                                        .end);
  }
  if (spec.family != KernelFamily::Sm80Forward) return 0;
  const int groups = std::max(1, spec.column_groups);
  const std::int64_t pitch_k = shared_pitch(spec.head_dim, 16);
  const std::int64_t pitch_v = shared_pitch(spec.head_dim_v, 16 * groups);
  const std::int64_t row_exchange = groups > 1 ? shared_pitch(spec.tile_n, 32) + 4 * groups : 0;
  const std::int64_t loop = spec.tile_m * (pitch_k + row_exchange) + spec.tile_n * (pitch_k + pitch_v);
  return static_cast<std::size_t>(std::max(loop, spec.tile_m * pitch_v));
}

}  // namespace onepass
