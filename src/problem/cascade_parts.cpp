#include "problem/cascade_parts.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <vector>

#include "problem/checker.h"
#include "problem/descale.h"
#include "support/message.h"

namespace onepass {
namespace {

void check_options(const Checker& check, const CascadeArguments& args, const ForwardOptions& options) {
  const ForwardArguments& own = args.own;
  if (options.window_left >= 0) {
    check.fail(fmt::format("window_left is {}", options.window_left),
               "-1: every row of a cascade sees the whole prefix", "call forward, or leave the window out");
  }
  if (options.batch_invariant) {
    check.fail("batch_invariant is set",
               "a cascade without it: the prefix is read for the rows of all sequences together",
               "call forward with the whole keys of each sequence, or leave batch_invariant out");
  }
  for (const NamedView& t : {NamedView{"alibi_slopes", own.alibi_slopes}, NamedView{"bias", own.bias}}) {
    if (t.view.present()) {
      check.fail(fmt::format("{} is given", t.name), "scores that do not depend on a key's position",
                 fmt::format("call forward, or leave {} out", t.name));
    }
  }
  for (const NamedView& t : {NamedView{"k_descale", own.k_descale}, NamedView{"v_descale", own.v_descale}}) {
    if (descale_per_page(t.view) && (args.k_prefix != own.k || args.v_prefix != own.v)) {
      check.fail(fmt::format("{} {} has factors of pages, but the prefix is not in the pool of k and v",
                             t.name, shape_string(t.view)),
                 "factors of pages where k_prefix and v_prefix are the pools k and v themselves",
                 "keep the prefix in the same pool, or pass [1] or [heads_k]");
    }
    if (t.view.rank == 2) {
      check.fail(fmt::format("{} has shape {}", t.name, shape_string(t.view)),
                 "[1] or [heads_k]: the prefix belongs to all sequences",
                 "pass the factors that all sequences share");
    }
  }
}

TensorView with_leading_one(TensorView view) {
  for (auto i = static_cast<std::size_t>(view.rank); i > 0; --i) {
    view.shape[i] = view.shape[i - 1];
    view.strides[i] = view.strides[i - 1];
  }
  view.shape[0] = 1;
  view.strides[0] = 0;
  ++view.rank;
  return view;
}

/// The rows of all sequences, [1, rows, heads, head_dim].
TensorView as_one_sequence(const Checker& check, NamedView t) {
  TensorView view = t.view;
  if (view.rank != 4) return with_leading_one(view);  // packed, or refused by the rules of forward
  const std::int64_t batch = view.shape[0], seqlen = view.shape[1];
  if (seqlen == 1) view.strides[1] = view.strides[0];
  const bool even = batch <= 1 || seqlen == 0 || view.strides[0] == seqlen * view.strides[1];
  if (!even) {
    check.fail(fmt::format("{} {} has strides {}", t.name, shape_string(view), strides_string(view)),
               "rows at even distances, the last of one sequence and the first of the next, too",
               fmt::format("make {} contiguous, or pass it packed", t.name));
  }
  view.shape[0] = 1;
  view.shape[1] = batch * seqlen;
  view.strides[0] = 0;
  return view;
}

}  // namespace

CascadeParts cascade_parts(const char* call, const CascadeArguments& args, const ForwardOptions& options,
                           const CascadeScratch& scratch) {
  const Checker check(call);
  const ForwardArguments& own = args.own;
  for (const NamedView& t :
       {NamedView{"q", own.q}, NamedView{"v", own.v}, NamedView{"out", own.out},
        NamedView{"k_prefix", args.k_prefix}, NamedView{"v_prefix", args.v_prefix},
        NamedView{"prefix_table", args.prefix_table}, NamedView{"prefix_seqlen", args.prefix_seqlen}}) {
    check.sane(t);
    check.same_device(t, {"q", own.q});
  }
  check.present({"k_prefix", args.k_prefix}, "the keys that all sequences begin with");
  check.present({"v_prefix", args.v_prefix}, "their values");
  check_options(check, args, options);
  const bool paged = args.prefix_table.present();
  for (const NamedView& t : {NamedView{"k_prefix", args.k_prefix}, NamedView{"v_prefix", args.v_prefix}}) {
    check.rank(t, paged ? 4 : 3,
               paged ? "[pages, page_size, heads, head_dim] (paged, as prefix_table is given)"
                     : "[keys, heads, head_dim] (paged needs prefix_table)");
    check.dtype(t, {own.k.dtype}, "own.k's dtype");
  }
  if (paged) check.rank({"prefix_table", args.prefix_table}, 1, "[max_pages]");
  if (args.prefix_seqlen.present()) check.rank({"prefix_seqlen", args.prefix_seqlen}, 1, "[1]");
  if (paged) check.present({"prefix_seqlen", args.prefix_seqlen}, "the keys in the prefix's pages");
  if (own.q.rank != 3 && own.q.rank != 4) {
    check.fail(fmt::format("q {} has {} dimensions", shape_string(own.q), own.q.rank),
               "[batch, seqlen, heads, head_dim] or packed [total_q, heads, head_dim]",
               "pass q as one of these");
  }
  check.rank({"v_prefix", args.v_prefix}, paged ? 4 : 3, "as many as k_prefix has");
  const auto last = static_cast<std::size_t>(args.v_prefix.rank - 1);
  const std::int64_t head_dim_v = args.v_prefix.shape[last];
  if (own.v.rank > 0) {
    check.extent({"v_prefix", args.v_prefix}, static_cast<int>(last),
                 own.v.shape[static_cast<std::size_t>(own.v.rank - 1)],
                 [&] { return fmt::format("v is {}", shape_string(own.v)); });
  }

  CascadeParts parts;
  parts.own = own;
  ForwardArguments& prefix = parts.prefix;
  prefix.q = as_one_sequence(check, {"q", own.q});
  prefix.k = paged ? args.k_prefix : with_leading_one(args.k_prefix);
  prefix.v = paged ? args.v_prefix : with_leading_one(args.v_prefix);
  if (paged) prefix.block_table = with_leading_one(args.prefix_table);
  prefix.seqused_k = args.prefix_seqlen;
  prefix.k_descale = own.k_descale;
  prefix.v_descale = own.v_descale;
  const std::int64_t rows = prefix.q.shape[1], heads = prefix.q.shape[2];
  const auto on_device = [&](TensorView view) {
    view.device = own.q.device;
    view.device_idx = own.q.device_idx;
    return view;
  };
  prefix.out = on_device(make_view(scratch.prefix_out, own.q.dtype, {1, rows, heads, head_dim_v}));
  prefix.softmax_lse = on_device(make_view(scratch.prefix_lse, DType::F32, {1, heads, rows}));
  parts.prefix_options = options;
  parts.prefix_options.causal = Causal::None;
  parts.prefix_options.window_right = -1;
  parts.prefix_options.max_seqlen_q = parts.prefix_options.max_seqlen_k = std::nullopt;
  if (paged) parts.prefix_options.max_seqlen_k = args.prefix_table.shape[0] * args.k_prefix.shape[1];

  // The same results, row by row as the caller has them.
  MergeArguments& merge = parts.merge;
  const auto lse_of = [&](void* data) {
    if (own.q.rank == 3) return on_device(make_view(data, DType::F32, {heads, rows}));
    const std::array<std::int64_t, 3> shape = {own.q.shape[0], heads, own.q.shape[1]};
    return on_device(
        make_view(data, DType::F32, shape, std::array<std::int64_t, 3>{own.q.shape[1], rows, 1}));
  };
  if (own.q.rank == 3) {
    merge.out_a = on_device(make_view(scratch.prefix_out, own.q.dtype, {rows, heads, head_dim_v}));
  } else {
    merge.out_a = on_device(
        make_view(scratch.prefix_out, own.q.dtype, {own.q.shape[0], own.q.shape[1], heads, head_dim_v}));
  }
  merge.lse_a = lse_of(scratch.prefix_lse);
  if (!own.softmax_lse.present()) parts.own.softmax_lse = lse_of(scratch.own_lse);
  merge.out_b = merge.out = own.out;
  merge.lse_b = parts.own.softmax_lse;
  merge.lse = own.softmax_lse;
  return parts;
}

}  // namespace onepass
