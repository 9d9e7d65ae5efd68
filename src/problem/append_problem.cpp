#include "problem/append_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "problem/checker.h"
#include "problem/descale.h"
#include "support/message.h"

namespace onepass {
namespace {

using Named = NamedView;

/// The rules of one call, group by group.
class AppendValidator {
 public:
  AppendValidator(const char* call, const AppendArguments& args, const AppendOptions& options)
      : check_(call), args_(args), options_(options) {}

  AppendProblem problem() {
    tensors();
    new_rows();
    cache();
    factors();
    rotary();
    queries();
    index_tensors();
    check_.num_threads(options_.num_threads);
    if (args_.k_new.device == DeviceKind::Cpu) index_values();
    return p_;
  }

 private:
  void tensors() {
    check_.present({"k_new", args_.k_new}, "the new keys");
    check_.present({"v_new", args_.v_new}, "the new values");
    check_.present({"k_cache", args_.k_cache}, "where the keys go");
    check_.present({"v_cache", args_.v_cache}, "where the values go");
    for (const Named& t : std::array<Named, 19>{{{"k_new", args_.k_new},
                                                 {"v_new", args_.v_new},
                                                 {"k_cache", args_.k_cache},
                                                 {"v_cache", args_.v_cache},
                                                 {"cu_seqlens_new", args_.cu_seqlens_new},
                                                 {"seqused_new", args_.seqused_new},
                                                 {"cache_seqlens", args_.cache_seqlens},
                                                 {"block_table", args_.block_table},
                                                 {"cache_batch_idx", args_.cache_batch_idx},
                                                 {"rotary_cos", args_.rotary_cos},
                                                 {"rotary_sin", args_.rotary_sin},
                                                 {"rotary_positions", args_.rotary_positions},
                                                 {"q", args_.q},
                                                 {"q_out", args_.q_out},
                                                 {"cu_seqlens_q", args_.cu_seqlens_q},
                                                 {"seqlens_out", args_.seqlens_out},
                                                 {"overflow", args_.overflow},
                                                 {"k_descale", args_.k_descale},
                                                 {"v_descale", args_.v_descale}}}) {
      check_.sane(t);
      check_.address(t);
      check_.same_device(t, {"k_new", args_.k_new});
    }
    check_.dtype({"k_new", args_.k_new}, {DType::F32, DType::F16, DType::BF16}, "keys are f32, f16 or bf16");
    for (const Named& t : {Named{"v_new", args_.v_new}, Named{"q", args_.q}, Named{"q_out", args_.q_out}}) {
      if (t.view.present()) check_.dtype(t, {args_.k_new.dtype}, "k_new's dtype");
    }
    check_.dtype({"k_cache", args_.k_cache}, {args_.k_new.dtype, DType::F8E4M3, DType::F8E5M2, DType::I8},
                 "k_new's dtype, or one of 8 bits");
    check_.dtype({"v_cache", args_.v_cache}, {args_.k_cache.dtype}, "k_cache's dtype");
  }

  /// Extents of a dense or packed tensor's rows; the batch, too, of the first that is asked.
  BatchRows rows_of(Named t, Named cu_seqlens, bool first) {
    const bool packed = cu_seqlens.view.present();
    check_.rank(t, packed ? 3 : 4,
                packed ? "[total, heads, head_dim] (packed, as its cu_seqlens is given)"
                       : "[batch, seqlen, heads, head_dim] (packed needs its cu_seqlens)");
    const auto& shape = t.view.shape;
    if (packed) {
      check_.rank(cu_seqlens, 1, "[batch + 1]");
      if (first && cu_seqlens.view.shape[0] < 1) {
        check_.fail(fmt::format("{} is empty", cu_seqlens.name),
                    "[batch + 1] offsets, at least the 0 of an empty batch",
                    fmt::format("pass {} with batch + 1 entries", cu_seqlens.name));
      }
      if (first) p_.batch = cu_seqlens.view.shape[0] - 1;
      check_.extent(cu_seqlens, 0, p_.batch + 1, [&] { return batch_text(); });
      return {0, shape[0]};
    }
    if (first) p_.batch = shape[0];
    check_.extent(t, 0, p_.batch, [&] { return batch_text(); });
    return {shape[1], shape[0] * shape[1]};
  }

  std::string batch_text() const {
    return args_.cu_seqlens_new.present()
               ? fmt::format("the batch is {} (cu_seqlens_new {})", p_.batch,
                             shape_string(args_.cu_seqlens_new))
               : fmt::format("the batch is {} (k_new {})", p_.batch, shape_string(args_.k_new));
  }

  void head_dim(const char* name, std::int64_t extent) const {
    constexpr std::int64_t kMaxHeadDim = 1024;
    if (extent >= 1 && extent <= kMaxHeadDim) return;
    check_.fail(fmt::format("{} has head_dim {}", name, extent), fmt::format("head_dim 1 to {}", kMaxHeadDim),
                "the layout is [..., heads, head_dim]; check the order of dimensions");
  }

  void new_rows() {
    const TensorView &k = args_.k_new, &v = args_.v_new;
    p_.rows_new = rows_of({"k_new", k}, {"cu_seqlens_new", args_.cu_seqlens_new}, true);
    check_.rank({"v_new", v}, k.rank, "as many as k_new has");
    for (int i = 0; i < k.rank - 1; ++i) {
      check_.extent({"v_new", v}, i, k.shape[static_cast<std::size_t>(i)],
                    [&] { return fmt::format("k_new is {}", shape_string(k)); });
    }
    const auto heads = static_cast<std::size_t>(k.rank - 2);
    p_.num_heads_k = k.shape[heads];
    p_.head_dim = k.shape[heads + 1];
    p_.head_dim_v = v.shape[heads + 1];
    head_dim("k_new", p_.head_dim);
    head_dim("v_new", p_.head_dim_v);
  }

  void cache() {
    const TensorView &k = args_.k_cache, &v = args_.v_cache, &table = args_.block_table;
    const bool paged = table.present();
    const char* layout = paged ? "[pages, page_size, heads, head_dim] (paged, as block_table is given)"
                               : "[batch, capacity, heads, head_dim] (paged needs block_table)";
    for (const Named& t : {Named{"k_cache", k}, Named{"v_cache", v}}) {
      check_.rank(t, 4, layout);
      check_.writable_strides(t);
      check_.extent(t, 2, p_.num_heads_k, [&] { return fmt::format("k_new has {} heads", p_.num_heads_k); });
      for (int i = 0; i < 2; ++i) {
        check_.extent(t, i, k.shape[static_cast<std::size_t>(i)],
                      [&] { return fmt::format("k_cache is {}", shape_string(k)); });
      }
    }
    check_.extent({"k_cache", k}, 3, p_.head_dim,
                  [&] { return fmt::format("k_new has head_dim {}", p_.head_dim); });
    check_.extent({"v_cache", v}, 3, p_.head_dim_v,
                  [&] { return fmt::format("v_new has head_dim {}", p_.head_dim_v); });
    if (paged && args_.cache_batch_idx.present()) {
      check_.fail("both block_table and cache_batch_idx are given",
                  "pages (block_table) or rows of a contiguous cache (cache_batch_idx), not both",
                  "drop one of the two");
    }
    if (!paged) {
      p_.cache_rows = k.shape[0];
      p_.capacity = k.shape[1];
      if (!args_.cache_batch_idx.present()) {
        check_.extent({"k_cache", k}, 0, p_.batch, [&] { return batch_text(); });
      }
    } else {
      check_.rank({"block_table", table}, 2, "[batch, max_pages]");
      check_.extent({"block_table", table}, 0, p_.batch, [&] { return batch_text(); });
      p_.num_pages = k.shape[0];
      p_.page_size = k.shape[1];
      p_.max_pages = table.shape[1];
      p_.capacity = p_.max_pages * p_.page_size;
      if (p_.page_size < 1) {
        check_.fail(fmt::format("k_cache {} has page_size 0", shape_string(k)),
                    "page_size 1 or more; a pool is [pages, page_size, heads, head_dim]",
                    "pass the pool with its slots");
      }
    }
    if (!args_.cu_seqlens_new.present() && !args_.seqused_new.present() && p_.batch > 0 &&
        p_.rows_new.seqlen > p_.capacity) {
      check_.fail(fmt::format("k_new has {} rows a sequence, but the cache has room for {}",
                              p_.rows_new.seqlen, p_.capacity),
                  fmt::format("up to {}", p_.capacity), "append fewer rows, or to a larger cache");
    }
  }

  void factors() const {
    const DType stored = args_.k_cache.dtype;
    for (const Named& t : {Named{"k_descale", args_.k_descale}, Named{"v_descale", args_.v_descale}}) {
      if (!t.view.present()) continue;
      if (dtype_bytes(stored) != 1) {
        check_.fail(fmt::format("{} is given, but k_cache has dtype {}", t.name, dtype_name(stored)),
                    "factors of a cache that holds f8 or i8", fmt::format("leave {} out", t.name));
      }
      check_descale(check_, t, {p_.batch, p_.num_heads_k, p_.page_size > 0, p_.num_pages, stored});
    }
  }

  void rotary() {
    const Named cos{"rotary_cos", args_.rotary_cos}, sin{"rotary_sin", args_.rotary_sin};
    if (cos.view.present() != sin.view.present()) {
      check_.fail(fmt::format("{} is given without {}", cos.view.present() ? cos.name : sin.name,
                              cos.view.present() ? sin.name : cos.name),
                  "rotary_cos and rotary_sin together, or neither", "pass both");
    }
    if (!cos.view.present()) {
      if (args_.rotary_positions.present()) {
        check_.fail("rotary_positions is given without rotary_cos", "positions for rotary_cos and rotary_sin",
                    "pass the tables, or drop rotary_positions");
      }
      return;
    }
    for (const Named& t : {cos, sin}) {
      check_.dtype(t, {DType::F32, args_.k_new.dtype}, "f32 or k_new's dtype");
      check_.rank(t, 2, "[positions, rotary_dim / 2]");
    }
    check_.dtype(sin, {cos.view.dtype}, "rotary_cos's dtype");
    check_.shape(sin, {cos.view.shape[0], cos.view.shape[1]}, "one sine for each cosine");
    p_.num_positions = cos.view.shape[0];
    p_.rotary_dim = 2 * cos.view.shape[1];
    if (p_.rotary_dim > p_.head_dim) {
      check_.fail(fmt::format("rotary_cos {} turns {} elements, but k_new has head_dim {}",
                              shape_string(cos.view), p_.rotary_dim, p_.head_dim),
                  "[positions, rotary_dim / 2] with rotary_dim up to head_dim",
                  "pass tables for this head_dim");
    }
  }

  void queries() {
    const Named q{"q", args_.q}, q_out{"q_out", args_.q_out};
    if (!q.view.present()) {
      for (const Named& t : {q_out, Named{"cu_seqlens_q", args_.cu_seqlens_q}}) {
        if (t.view.present()) {
          check_.fail(fmt::format("{} is given without q", t.name), "q and what belongs to it, or neither",
                      fmt::format("pass q, or drop {}", t.name));
        }
      }
      return;
    }
    if (!args_.rotary_cos.present()) {
      check_.fail("q is given without rotary_cos", "q to be turned by rotary_cos and rotary_sin",
                  "pass the tables, or drop q");
    }
    check_.present(q_out, "where the turned q goes; may be q itself");
    p_.rows_q = rows_of(q, {"cu_seqlens_q", args_.cu_seqlens_q}, false);
    p_.num_heads_q = q.view.shape[static_cast<std::size_t>(q.view.rank - 2)];
    check_.extent(q, q.view.rank - 1, p_.head_dim,
                  [&] { return fmt::format("k_new has head_dim {}", p_.head_dim); });
    check_.rank(q_out, q.view.rank, "as many as q has");
    for (int i = 0; i < q.view.rank; ++i) {
      check_.extent(q_out, i, q.view.shape[static_cast<std::size_t>(i)],
                    [&] { return fmt::format("q is {}", shape_string(q.view)); });
    }
    check_.writable_strides(q_out);
    if (q.view.data == q_out.view.data && q.view.strides != q_out.view.strides && q.view.num_elements() > 0) {
      check_.fail("q_out starts where q starts, with other strides", "q itself, or memory of its own",
                  "pass q as q_out, or allocate it");
    }
  }

  void index_tensors() {
    for (const Named& t :
         {Named{"cu_seqlens_new", args_.cu_seqlens_new}, Named{"cu_seqlens_q", args_.cu_seqlens_q},
          Named{"block_table", args_.block_table}}) {
      if (t.view.present()) check_.dtype(t, {DType::I32}, "index tensors are int32");
    }
    for (const Named& t :
         {Named{"seqused_new", args_.seqused_new}, Named{"cache_seqlens", args_.cache_seqlens},
          Named{"cache_batch_idx", args_.cache_batch_idx}, Named{"rotary_positions", args_.rotary_positions},
          Named{"seqlens_out", args_.seqlens_out}, Named{"overflow", args_.overflow}}) {
      if (!t.view.present()) continue;
      check_.dtype(t, {DType::I32}, "index tensors are int32");
      check_.rank(t, 1, "[batch]");
      check_.extent(t, 0, p_.batch, [&] { return batch_text(); });
    }
    for (const Named& t : {Named{"seqlens_out", args_.seqlens_out}, Named{"overflow", args_.overflow}}) {
      if (!t.view.present()) continue;
      check_.writable_strides(t);
      if (t.view.data == args_.cache_seqlens.data && p_.batch > 0) {
        check_.fail(fmt::format("{} and cache_seqlens start at the same address", t.name),
                    fmt::format("{} in memory of its own: lengths are read while it is written", t.name),
                    fmt::format("allocate a separate {}", t.name));
      }
    }
  }

  // --- values in host memory

  void index_values() const {
    if (args_.cu_seqlens_new.present()) {
      check_.offsets({"cu_seqlens_new", args_.cu_seqlens_new}, p_.rows_new.total, "k_new");
    }
    if (args_.cu_seqlens_q.present()) {
      check_.offsets({"cu_seqlens_q", args_.cu_seqlens_q}, p_.rows_q.total, "q");
    }
    for (std::int64_t b = 0; b < p_.batch; ++b) sequence(b);
  }

  static std::int64_t room(const TensorView& cu_seqlens, const BatchRows& rows, std::int64_t b) {
    return cu_seqlens.present() ? index_value(cu_seqlens, b + 1) - index_value(cu_seqlens, b) : rows.seqlen;
  }

  void sequence(std::int64_t b) const {
    const std::int64_t new_room = room(args_.cu_seqlens_new, p_.rows_new, b);
    const std::int64_t count = args_.seqused_new.present() ? index_value(args_.seqused_new, b) : new_room;
    if (count < 0 || count > new_room) {
      check_.fail(
          fmt::format("seqused_new[{}] is {}, but sequence {} has room for {} rows", b, count, b, new_room),
          fmt::format("0 to {}", new_room), "correct seqused_new");
    }
    const std::int64_t cached = args_.cache_seqlens.present() ? index_value(args_.cache_seqlens, b) : 0;
    if (cached < 0 || cached + count > p_.capacity) {
      check_.fail(
          fmt::format("cache_seqlens[{}] is {} and sequence {} gets {} new rows, but the cache has room for "
                      "{}{}",
                      b, cached, b, count, p_.capacity,
                      p_.page_size > 0 ? fmt::format(" ({} pages of {})", p_.max_pages, p_.page_size)
                                       : std::string()),
          fmt::format("lengths from 0 that end at {} or before", p_.capacity),
          p_.page_size > 0 ? "give block_table more columns" : "append to a larger cache");
    }
    if (args_.block_table.present()) {
      check_.pages({"block_table", args_.block_table}, b, {cached, cached + count}, p_.page_size,
                   p_.num_pages);
    }
    if (args_.cache_batch_idx.present() && count > 0) {
      const std::int64_t row = index_value(args_.cache_batch_idx, b);
      if (row < 0 || row >= p_.cache_rows) {
        check_.fail(fmt::format("cache_batch_idx[{}] is {}, but k_cache has {} rows", b, row, p_.cache_rows),
                    fmt::format("0 to {}", p_.cache_rows - 1), "correct cache_batch_idx");
      }
    }
    if (p_.rotary_dim > 0) positions(b, cached, count);
  }

  void positions(std::int64_t b, std::int64_t cached, std::int64_t count) const {
    const std::int64_t rows_q = args_.q.present() ? room(args_.cu_seqlens_q, p_.rows_q, b) : 0;
    const std::int64_t turned =
        std::max(count, options_.q_at_first_position ? std::min<std::int64_t>(rows_q, 1) : rows_q);
    const std::int64_t first =
        args_.rotary_positions.present() ? index_value(args_.rotary_positions, b) : cached;
    if (turned == 0 || (first >= 0 && first + turned <= p_.num_positions)) return;
    check_.fail(fmt::format("sequence {} needs the positions {} to {}, but rotary_cos has {}", b, first,
                            first + turned - 1, p_.num_positions),
                fmt::format("positions 0 to {}", p_.num_positions - 1), "pass longer tables");
  }

  Checker check_;
  const AppendArguments& args_;
  const AppendOptions& options_;
  AppendProblem p_;
};

}  // namespace

AppendProblem validate_append(const char* call, const AppendArguments& args, const AppendOptions& options) {
  return AppendValidator(call, args, options).problem();
}

}  // namespace onepass
