#include "problem/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "backends/cuda/kernels/common/key_parts.h"
#include "problem/checker.h"
#include "problem/descale.h"
#include "support/message.h"

namespace onepass {
namespace {

constexpr std::int64_t kMaxHeadDim = 1024;
constexpr std::int64_t kMaxLength = std::int64_t{1} << 40;

using Named = NamedView;

std::array<Named, 15> all_tensors(const ForwardArguments& a) {
  return {{{"q", a.q},
           {"k", a.k},
           {"v", a.v},
           {"out", a.out},
           {"softmax_lse", a.softmax_lse},
           {"cu_seqlens_q", a.cu_seqlens_q},
           {"cu_seqlens_k", a.cu_seqlens_k},
           {"seqused_q", a.seqused_q},
           {"seqused_k", a.seqused_k},
           {"block_table", a.block_table},
           {"alibi_slopes", a.alibi_slopes},
           {"bias", a.bias},
           {"sinks", a.sinks},
           {"k_descale", a.k_descale},
           {"v_descale", a.v_descale}}};
}

bool same_but_data(const TensorView& a, const TensorView& b) {
  if (!a.present() && !b.present()) return true;
  return a.dtype == b.dtype && a.rank == b.rank && a.shape == b.shape && a.strides == b.strides &&
         a.device == b.device && a.device_idx == b.device_idx;
}

bool readable_on_host(const TensorView& view) {
  return view.device == DeviceKind::Cpu && (view.data != nullptr || view.num_elements() == 0);
}

/// seqused is given and can be read: then it bounds the lengths better than the room between offsets.
bool used_on_host(const TensorView& seqused) { return seqused.present() && readable_on_host(seqused); }

/// The rules of one call, group by group, in the order in which a reader would ask.
class Validator {
 public:
  Validator(const char* call, const ForwardArguments& args, const ForwardOptions& options)
      : check_(call), args_(args), options_(options) {}

  AttentionProblem problem() {
    tensors();
    layouts();
    dtypes();
    q_shape();
    kv_shape();
    outputs();
    index_tensors();
    lengths();
    mask_and_scale();
    score_terms();
    execution();
    return p_;
  }

 private:
  void tensors() {
    check_.present({"q", args_.q}, "the queries");
    check_.present({"k", args_.k}, "the keys");
    check_.present({"v", args_.v}, "the values");
    check_.present({"out", args_.out}, "where the result goes");
    for (const Named& t : all_tensors(args_)) {
      check_.sane(t);
      check_.same_device(t, {"q", args_.q});
    }
    p_.memory = args_.q.device;
  }

  void layouts() {
    p_.q_layout = args_.cu_seqlens_q.present() ? SequenceLayout::Packed : SequenceLayout::Dense;
    if (args_.block_table.present() && args_.cu_seqlens_k.present()) {
      check_.fail("both block_table and cu_seqlens_k are given",
                  "paged keys (block_table and seqused_k) or packed keys (cu_seqlens_k), not both",
                  "drop one of the two");
    }
    if (args_.block_table.present() && !args_.seqused_k.present()) {
      check_.fail("block_table is given without seqused_k",
                  "paged keys need seqused_k [batch], the number of keys of each sequence", "pass seqused_k");
    }
    p_.k_layout = args_.block_table.present()    ? SequenceLayout::Paged
                  : args_.cu_seqlens_k.present() ? SequenceLayout::Packed
                                                 : SequenceLayout::Dense;
    if (p_.q_layout == SequenceLayout::Packed) {
      check_.rank({"q", args_.q}, 3, "[total_q, heads, head_dim] (packed, as cu_seqlens_q is given)");
    } else {
      check_.rank({"q", args_.q}, 4, "[batch, seqlen, heads, head_dim] (packed needs cu_seqlens_q)");
    }
    const char* k_layout = p_.k_layout == SequenceLayout::Packed
                               ? "[total_k, heads, head_dim] (packed, as cu_seqlens_k is given)"
                           : p_.k_layout == SequenceLayout::Paged
                               ? "[pages, page_size, heads, head_dim] (paged, as block_table is given)"
                               : "[batch, seqlen, heads, head_dim] (packed needs cu_seqlens_k)";
    const int k_rank = p_.k_layout == SequenceLayout::Packed ? 3 : 4;
    check_.rank({"k", args_.k}, k_rank, k_layout);
    check_.rank({"v", args_.v}, k_rank, k_layout);
  }

  void dtypes() {
    check_.dtype({"q", args_.q}, {DType::F32, DType::F16, DType::BF16}, "queries are f32, f16 or bf16");
    p_.q_dtype = args_.q.dtype;
    check_.dtype({"k", args_.k}, {p_.q_dtype, DType::F8E4M3, DType::F8E5M2, DType::I8},
                 "q's dtype, or one of 8 bits");
    check_.dtype({"v", args_.v}, {args_.k.dtype}, "k's dtype");
    check_.dtype({"out", args_.out}, {p_.q_dtype}, "q's dtype");
    p_.kv_dtype = args_.k.dtype;
  }

  void q_shape() {
    const auto first = static_cast<std::size_t>(args_.q.rank - 3);  // index of the row dimension
    const TensorView& q = args_.q;
    p_.num_heads_q = q.shape[first + 1];
    p_.head_dim = q.shape[first + 2];
    p_.q = strides_of(q);
    if (p_.q_layout == SequenceLayout::Packed) {
      check_.rank({"cu_seqlens_q", args_.cu_seqlens_q}, 1, "[batch + 1]");
      batch_from_cu({"cu_seqlens_q", args_.cu_seqlens_q});
      p_.total_q = q.shape[0];
    } else {
      p_.batch = q.shape[0];
      p_.seqlen_q = q.shape[1];
      p_.total_q = p_.batch * p_.seqlen_q;
    }
    if (p_.num_heads_q < 1) {
      check_.fail(fmt::format("q {} has no heads", shape_string(q)), "1 head or more",
                  "pass q with its heads");
    }
    check_head_dim("q", p_.head_dim, q);
  }

  void kv_shape() {
    const auto first = static_cast<std::size_t>(args_.k.rank - 3);
    const TensorView &k = args_.k, &v = args_.v;
    p_.num_heads_k = k.shape[first + 1];
    p_.head_dim_v = v.shape[first + 2];
    p_.k = strides_of(k);
    p_.v = strides_of(v);
    check_.extent({"k", k}, static_cast<int>(first) + 2, p_.head_dim, [&] {
      return fmt::format("q has head_dim {} (q {})", p_.head_dim, shape_string(args_.q));
    });
    check_head_dim("v", p_.head_dim_v, v);
    for (std::size_t i = 0; i < first + 2; ++i) {
      check_.extent({"v", v}, static_cast<int>(i), k.shape[i],
                    [&] { return fmt::format("k has {} (k {})", k.shape[i], shape_string(k)); });
    }
    heads();
    const auto batch_reason = [&] { return batch_text(); };
    if (p_.k_layout == SequenceLayout::Packed) {
      check_.rank({"cu_seqlens_k", args_.cu_seqlens_k}, 1, "[batch + 1]");
      check_.extent({"cu_seqlens_k", args_.cu_seqlens_k}, 0, p_.batch + 1, batch_reason);
      p_.total_k = k.shape[0];
    } else if (p_.k_layout == SequenceLayout::Dense) {
      check_.extent({"k", k}, 0, p_.batch, batch_reason);
      p_.seqlen_k = k.shape[1];
      p_.total_k = p_.batch * p_.seqlen_k;
    } else {
      p_.num_pages = k.shape[0];
      p_.page_size = k.shape[1];
      p_.total_k = p_.num_pages * p_.page_size;
      if (p_.page_size < 1) {
        check_.fail(fmt::format("k {} has page_size 0", shape_string(k)),
                    "page_size 1 or more; a pool is [pages, page_size, heads, head_dim]",
                    "pass the pool with its slots");
      }
    }
  }

  void heads() {
    if (p_.num_heads_k >= 1 && p_.num_heads_q % p_.num_heads_k == 0) return;
    const auto q_first = static_cast<std::size_t>(args_.q.rank - 3);
    const auto k_first = static_cast<std::size_t>(args_.k.rank - 3);
    const bool swapped = args_.k.shape[k_first] >= 1 &&
                         args_.q.shape[q_first] % args_.k.shape[k_first] == 0 && args_.q.rank == 4 &&
                         args_.k.rank == 4;
    check_.fail(fmt::format("q has {} heads, but k has {} (q {}, k {})", p_.num_heads_q, p_.num_heads_k,
                            shape_string(args_.q), shape_string(args_.k)),
                "query heads are a multiple of key heads; the layout is [batch, seqlen, heads, head_dim]",
                swapped ? "these look like [batch, heads, seqlen, head_dim]; pass transpose(q, 1, 2) and so "
                          "on (no copy is needed)"
                        : "repeat no heads and drop none: give k and v as many heads as divide q's");
  }

  void outputs() {
    const TensorView &q = args_.q, &out = args_.out, &lse = args_.softmax_lse;
    check_.rank({"out", out}, q.rank,
                q.rank == 4 ? "[batch, seqlen, heads, head_dim_v]" : "[total_q, heads, head_dim_v]");
    if (q.rank == 4) {
      check_.shape({"out", out}, {p_.batch, p_.seqlen_q, p_.num_heads_q, p_.head_dim_v},
                   "q's rows and heads, v's head_dim");
    } else {
      check_.shape({"out", out}, {p_.total_q, p_.num_heads_q, p_.head_dim_v},
                   "q's rows and heads, v's head_dim");
    }
    check_.writable_strides({"out", out});
    p_.out = strides_of(out);
    p_.has_lse = lse.present();
    if (p_.has_lse) {
      check_.dtype({"softmax_lse", lse}, {DType::F32}, "statistics are f32");
      if (q.rank == 4) {
        check_.rank({"softmax_lse", lse}, 3, "[batch, heads, seqlen]");
        check_.shape({"softmax_lse", lse}, {p_.batch, p_.num_heads_q, p_.seqlen_q},
                     "one value per head and row");
      } else {
        check_.rank({"softmax_lse", lse}, 2, "[heads, total_q]");
        check_.shape({"softmax_lse", lse}, {p_.num_heads_q, p_.total_q}, "one value per head and row");
      }
      check_.writable_strides({"softmax_lse", lse});
    }
  }

  void index_tensors() {
    for (const Named& t : {Named{"cu_seqlens_q", args_.cu_seqlens_q},
                           Named{"cu_seqlens_k", args_.cu_seqlens_k}, Named{"seqused_q", args_.seqused_q},
                           Named{"seqused_k", args_.seqused_k}, Named{"block_table", args_.block_table}}) {
      if (t.view.present()) check_.dtype(t, {DType::I32}, "index tensors are int32");
    }
    p_.has_seqused_q = args_.seqused_q.present();
    p_.has_seqused_k = args_.seqused_k.present();
    const auto batch_reason = [&] { return batch_text(); };
    for (const Named& t : {Named{"seqused_q", args_.seqused_q}, Named{"seqused_k", args_.seqused_k}}) {
      if (!t.view.present()) continue;
      check_.rank(t, 1, "[batch]");
      check_.extent(t, 0, p_.batch, batch_reason);
    }
    if (p_.k_layout == SequenceLayout::Paged) {
      check_.rank({"block_table", args_.block_table}, 2, "[batch, max_pages]");
      check_.extent({"block_table", args_.block_table}, 0, p_.batch, batch_reason);
      p_.max_pages_per_sequence = args_.block_table.shape[1];
    }
  }

  /// Upper bounds of the lengths of packed and paged sequences.
  void lengths() {
    for (const auto& [name, value] : {std::pair{"max_seqlen_q", options_.max_seqlen_q},
                                      std::pair{"max_seqlen_k", options_.max_seqlen_k}}) {
      if (value && (*value < 0 || *value > kMaxLength)) {
        check_.fail(fmt::format("{} is {}", name, *value), "0 to 2^40", fmt::format("correct {}", name));
      }
    }
    if (p_.q_layout == SequenceLayout::Packed) {
      p_.seqlen_q = options_.max_seqlen_q ? *options_.max_seqlen_q
                    : used_on_host(args_.seqused_q)
                        ? largest_used(args_.seqused_q)
                        : largest_length("max_seqlen_q", "cu_seqlens_q", args_.cu_seqlens_q);
    }
    if (p_.k_layout == SequenceLayout::Packed) {
      p_.seqlen_k = options_.max_seqlen_k ? *options_.max_seqlen_k
                    : used_on_host(args_.seqused_k)
                        ? largest_used(args_.seqused_k)
                        : largest_length("max_seqlen_k", "cu_seqlens_k", args_.cu_seqlens_k);
    } else if (p_.k_layout == SequenceLayout::Paged) {
      const std::int64_t capacity = p_.max_pages_per_sequence * p_.page_size;
      p_.seqlen_k = options_.max_seqlen_k           ? std::min(*options_.max_seqlen_k, capacity)
                    : used_on_host(args_.seqused_k) ? std::min(capacity, largest_used(args_.seqused_k))
                                                    : capacity;
    }
  }

  void mask_and_scale() {
    p_.causal = options_.causal;
    for (const auto& [name, value] :
         {std::pair{"window_left", options_.window_left}, std::pair{"window_right", options_.window_right}}) {
      if (value < -1) {
        check_.fail(fmt::format("{} is {}", name, value), "0 or more keys on that side, or -1 for no limit",
                    fmt::format("set {} to -1 or to a number of keys", name));
      }
    }
    // A window past every possible length is no limit; this also keeps i + off + window in 64 bits.
    p_.window_left = options_.window_left > kMaxLength ? -1 : options_.window_left;
    p_.window_right = options_.window_right > kMaxLength ? -1 : options_.window_right;
    p_.softmax_scale =
        options_.softmax_scale ? *options_.softmax_scale : 1.0 / std::sqrt(static_cast<double>(p_.head_dim));
    if (!std::isfinite(p_.softmax_scale) || std::abs(p_.softmax_scale) > 1e30) {
      check_.fail(fmt::format("softmax_scale is {}", p_.softmax_scale),
                  "any finite number between -1e30 and 1e30, also 0 and negative",
                  "leave softmax_scale out for 1 / sqrt(head_dim)");
    }
    p_.softcap = options_.softcap;
    if (!std::isfinite(p_.softcap) || p_.softcap < 0 || p_.softcap > 1e30) {
      check_.fail(fmt::format("softcap is {}", p_.softcap), "0 (none), or a positive number up to 1e30",
                  "leave softcap out, or give it a positive value");
    }
  }

  void score_terms() {
    p_.has_alibi = args_.alibi_slopes.present();
    p_.has_bias = args_.bias.present();
    p_.has_sinks = args_.sinks.present();
    p_.has_k_descale = args_.k_descale.present();
    p_.has_v_descale = args_.v_descale.present();
    if (p_.has_alibi) {
      const Named t{"alibi_slopes", args_.alibi_slopes};
      check_.dtype(t, {DType::F32}, "slopes are f32");
      if (t.view.rank == 2) {
        check_.shape(t, {p_.batch, p_.num_heads_q}, "one slope per sequence and query head");
      } else {
        check_.rank(t, 1, "[heads_q] (or [batch, heads_q])");
        check_.shape(t, {p_.num_heads_q}, "one slope per query head");
      }
    }
    if (p_.has_sinks) {
      const Named t{"sinks", args_.sinks};
      check_.dtype(t, {DType::F32}, "sinks are f32");
      check_.rank(t, 1, "[heads_q]");
      check_.shape(t, {p_.num_heads_q}, "one sink per query head");
    }
    if (p_.has_bias) bias();
    for (const Named& t : {Named{"k_descale", args_.k_descale}, Named{"v_descale", args_.v_descale}}) {
      if (!t.view.present()) continue;
      check_descale(
          check_, t,
          {p_.batch, p_.num_heads_k, p_.k_layout == SequenceLayout::Paged, p_.num_pages, p_.kv_dtype});
    }
    p_.k_descale_per_page = descale_per_page(args_.k_descale);
    p_.v_descale_per_page = descale_per_page(args_.v_descale);
  }

  void bias() {
    const Named t{"bias", args_.bias};
    check_.dtype(t, {DType::F32, p_.q_dtype}, "f32 or q's dtype");
    check_.rank(t, 4, "[batch or 1, heads_q or 1, seqlen_q, seqlen_k]");
    p_.bias_dtype = t.view.dtype;
    const auto& s = t.view.shape;
    const bool fits = (s[0] == 1 || s[0] == p_.batch) && (s[1] == 1 || s[1] == p_.num_heads_q) &&
                      s[2] >= p_.seqlen_q && s[3] >= p_.seqlen_k;
    if (fits) return;
    check_.fail(fmt::format("bias {} does not cover batch {}, heads_q {}, seqlen_q {}, seqlen_k {}",
                            shape_string(t.view), p_.batch, p_.num_heads_q, p_.seqlen_q, p_.seqlen_k),
                "[batch or 1, heads_q or 1, at least seqlen_q, at least seqlen_k]",
                "expand bias to that shape (strides of 0 are fine)");
  }

  void execution() {
    check_.num_threads(options_.num_threads);
    if (options_.num_splits < 0 || options_.num_splits > kMaxSplits) {
      check_.fail(fmt::format("num_splits is {}", options_.num_splits),
                  fmt::format("0 (chosen by the planner) to {}", kMaxSplits), "set num_splits to 0");
    }
    if (options_.batch_invariant) batch_invariant();
  }

  void batch_invariant() {
    constexpr std::int64_t kMostKeys = std::int64_t{kMaxSplits} * kPartKeys;
    p_.batch_invariant = true;
    if (options_.num_splits != 0) {
      check_.fail(
          fmt::format("num_splits is {}, with batch_invariant", options_.num_splits),
          fmt::format("num_splits 0: the parts of a batch-invariant call have {} keys each", kPartKeys),
          "leave one of the two out");
    }
    if (p_.seqlen_k > kMostKeys) {
      check_.fail(fmt::format("seqlen_k is up to {}, with batch_invariant", p_.seqlen_k),
                  fmt::format("up to {} keys, in {} parts", kMostKeys, kMaxSplits),
                  "give max_seqlen_k if sequences are shorter, or leave batch_invariant out");
    }
  }

  // --- helpers -------------------------------------------------------------------------------------------

  void check_head_dim(const char* name, std::int64_t head_dim, const TensorView& view) {
    if (head_dim >= 1 && head_dim <= kMaxHeadDim) return;
    check_.fail(fmt::format("{} {} has head_dim {}", name, shape_string(view), head_dim),
                fmt::format("head_dim 1 to {}", kMaxHeadDim),
                "the layout is [..., heads, head_dim]; check the order of dimensions");
  }

  void batch_from_cu(Named t) {
    if (t.view.shape[0] < 1) {
      check_.fail(fmt::format("{} is empty", t.name), "[batch + 1] offsets, at least the 0 of an empty batch",
                  fmt::format("pass {} with batch + 1 entries", t.name));
    }
    p_.batch = t.view.shape[0] - 1;
  }

  std::string batch_text() const {
    return p_.q_layout == SequenceLayout::Packed
               ? fmt::format("the batch is {} (cu_seqlens_q {})", p_.batch, shape_string(args_.cu_seqlens_q))
               : fmt::format("the batch is {} (q {})", p_.batch, shape_string(args_.q));
  }

  std::int64_t largest_length(const char* option, const char* name, const TensorView& cu_seqlens) const {
    if (!readable_on_host(cu_seqlens)) {
      check_.fail(fmt::format("{} is not given, and {} cannot be read here", option, name),
                  fmt::format("an upper bound in {}, or {} in host memory", option, name),
                  fmt::format("set {}", option));
    }
    std::int64_t largest = 0;
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      largest = std::max(largest, index_value(cu_seqlens, b + 1) - index_value(cu_seqlens, b));
    }
    return largest;
  }

  std::int64_t largest_used(const TensorView& seqused) const {
    std::int64_t largest = 0;
    for (std::int64_t b = 0; b < p_.batch; ++b) largest = std::max(largest, index_value(seqused, b));
    return largest;
  }

  Checker check_;
  const ForwardArguments& args_;
  const ForwardOptions& options_;
  AttentionProblem p_;
};

/// Values of index tensors in host memory: nothing may lead outside the tensors or past the plan's bounds.
class IndexValidator {
 public:
  IndexValidator(const char* call, const AttentionProblem& problem, const ForwardArguments& args)
      : check_(call), p_(problem), args_(args) {}

  void all() const {
    if (p_.q_layout == SequenceLayout::Packed)
      check_.offsets({"cu_seqlens_q", args_.cu_seqlens_q}, p_.total_q, "q");
    if (p_.k_layout == SequenceLayout::Packed)
      check_.offsets({"cu_seqlens_k", args_.cu_seqlens_k}, p_.total_k, "k");
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      const std::int64_t seqlen_q =
          length(b, "q", {"cu_seqlens_q", args_.cu_seqlens_q}, {"seqused_q", args_.seqused_q}, p_.seqlen_q);
      const std::int64_t seqlen_k =
          length(b, "k", {"cu_seqlens_k", args_.cu_seqlens_k}, {"seqused_k", args_.seqused_k}, p_.seqlen_k);
      bound(b, "q", seqlen_q, p_.seqlen_q);
      bound(b, "k", seqlen_k, p_.seqlen_k);
      if (p_.k_layout == SequenceLayout::Paged) {
        check_.pages({"block_table", args_.block_table}, b, {0, seqlen_k}, p_.page_size, p_.num_pages);
      }
    }
  }

 private:
  /// Rows in use of sequence b, checked against the room that the layout gives it.
  std::int64_t length(std::int64_t b, const char* tensor, Named cu, Named seqused, std::int64_t dense) const {
    const bool paged = tensor[0] == 'k' && p_.k_layout == SequenceLayout::Paged;
    const std::int64_t room = cu.view.present() ? index_value(cu.view, b + 1) - index_value(cu.view, b)
                              : paged           ? p_.max_pages_per_sequence * p_.page_size
                                                : dense;
    if (!seqused.view.present()) return room;
    const std::int64_t used = index_value(seqused.view, b);
    if (used < 0 || used > room) {
      check_.fail(
          fmt::format("{}[{}] is {}, but sequence {} has room for {} rows{}", seqused.name, b, used, b, room,
                      paged ? fmt::format(" ({} pages of {})", p_.max_pages_per_sequence, p_.page_size)
                            : std::string()),
          fmt::format("0 to {}", room),
          paged ? "give block_table more columns" : fmt::format("correct {}", seqused.name));
    }
    return used;
  }

  void bound(std::int64_t b, const char* tensor, std::int64_t length, std::int64_t limit) const {
    if (length <= limit) return;
    check_.fail(fmt::format("sequence {} has {} rows of {}, but max_seqlen_{} is {}", b, length, tensor,
                            tensor, limit),
                fmt::format("lengths up to max_seqlen_{}", tensor),
                fmt::format("raise max_seqlen_{}, or leave it out", tensor));
  }

  Checker check_;
  const AttentionProblem& p_;
  const ForwardArguments& args_;
};

}  // namespace

TensorStrides strides_of(const TensorView& t) {
  const auto first = static_cast<std::size_t>(t.rank - 3);
  return {t.rank == 4 ? t.strides[0] : 0, t.strides[first], t.strides[first + 1], t.strides[first + 2]};
}

ForwardOptions options_of(const AttentionProblem& problem) {
  ForwardOptions options;
  options.causal = problem.causal;
  options.window_left = problem.window_left;
  options.window_right = problem.window_right;
  options.softmax_scale = problem.softmax_scale;
  options.softcap = problem.softcap;
  options.max_seqlen_q = problem.seqlen_q;
  options.max_seqlen_k = problem.seqlen_k;
  options.batch_invariant = problem.batch_invariant;
  return options;
}

AttentionProblem validate_problem(const char* call, const ForwardArguments& args,
                                  const ForwardOptions& options) {
  return Validator(call, args, options).problem();
}

void validate_same(const char* call, const AttentionProblem& problem, const AttentionProblem& given) {
  if (given == problem) return;
  Checker(call).fail(
      fmt::format("the tensors are {}, but the plan is for {}", to_string(given), to_string(problem)),
      "the shapes, strides and dtypes that the plan was made for", "make a plan for these tensors");
}

bool same_but_data(const ForwardArguments& a, const ForwardArguments& b) {
  const auto tensors_a = all_tensors(a), tensors_b = all_tensors(b);
  return std::equal(tensors_a.begin(), tensors_a.end(), tensors_b.begin(),
                    [](const Named& one, const Named& other) { return same_but_data(one.view, other.view); });
}

void validate_run(const char* call, const AttentionProblem& problem, const ForwardArguments& args) {
  validate_same(call, problem, validate_problem(call, args, options_of(problem)));
  validate_data(call, problem, args);
}

void validate_data(const char* call, const AttentionProblem& problem, const ForwardArguments& args) {
  const Checker check(call);
  validate_forward_data(call, problem, args);
  for (const Named& t : {Named{"q", args.q}, Named{"k", args.k}, Named{"v", args.v}}) {
    if (args.out.data == t.view.data && args.out.num_elements() > 0 && t.view.num_elements() > 0) {
      check.fail(fmt::format("out and {} start at the same address", t.name),
                 "out in memory of its own: inputs are read again while it is written",
                 "allocate a separate out");
    }
  }
}

void validate_forward_data(const char* call, const AttentionProblem& problem, const ForwardArguments& args) {
  const Checker check(call);
  for (const Named& t : all_tensors(args)) check.address(t);
  if (problem.memory == DeviceKind::Cpu) IndexValidator(call, problem, args).all();
}

void validate_merge(const char* call, const MergeArguments& args, int num_threads) {
  const Checker check(call);
  check.num_threads(num_threads);
  const Named out_a{"out_a", args.out_a}, lse_a{"lse_a", args.lse_a}, out_b{"out_b", args.out_b},
      lse_b{"lse_b", args.lse_b}, out{"out", args.out}, lse{"lse", args.lse};
  for (const Named& t : {out_a, lse_a, out_b, lse_b, out})
    check.present(t, "merge joins (out_a, lse_a) and (out_b, lse_b)");
  for (const Named& t : {out_a, lse_a, out_b, lse_b, out, lse}) {
    check.sane(t);
    check.address(t);
    check.same_device(t, out);
  }
  if (out.view.rank != 3 && out.view.rank != 4) {
    check.fail(fmt::format("out {} has {} dimensions", shape_string(out.view), out.view.rank),
               "[batch, seqlen, heads, head_dim_v] or packed [total_q, heads, head_dim_v]",
               "pass out as one of these");
  }
  const bool dense = out.view.rank == 4;
  const auto& s = out.view.shape;
  for (const Named& t : {out_a, out_b, out}) {
    check.dtype(t, {DType::F32, DType::F16, DType::BF16}, "results are f32, f16 or bf16");
    check.rank(t, out.view.rank, "as many as out has");
    for (int i = 0; i < out.view.rank; ++i) {
      check.extent(t, i, s[static_cast<std::size_t>(i)],
                   [&] { return fmt::format("out is {}", shape_string(out.view)); });
    }
  }
  for (const Named& t : {lse_a, lse_b, lse}) {
    if (!t.view.present()) continue;
    check.dtype(t, {DType::F32}, "statistics are f32");
    check.rank(t, dense ? 3 : 2, dense ? "[batch, heads, seqlen]" : "[heads, total_q]");
    if (dense) {
      check.shape(t, {s[0], s[2], s[1]}, "one value per head and row of out");
    } else {
      check.shape(t, {s[1], s[0]}, "one value per head and row of out");
    }
  }
  check.writable_strides(out);
  if (lse.view.present()) check.writable_strides(lse);
}

}  // namespace onepass
