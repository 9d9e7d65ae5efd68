// A prefix that all sequences share: the cascade against the float64 evaluation over prefix and own keys.
#include <gmock/gmock.h>

#include "onepass/cascade.h"
#include "tests/cpu/call.h"
#include "tests/cpu/sizes.h"
#include "verify/device_copies.h"

namespace onepass {
namespace {

enum class Layout { Dense, Packed, Paged };

struct CascadeSizes {
  std::vector<std::int64_t> rows, keys;  // of each sequence
  std::int64_t prefix = 40, heads_q = 4, heads_k = 2, head_dim = 32, head_dim_v = 16;
  Layout q = Layout::Packed, k = Layout::Packed, prefix_layout = Layout::Dense;
  bool causal = true, sinks = false, lse = true;
  double softcap = 0;
};

TensorView ints(Call& call, const std::vector<std::int32_t>& values) {
  const TensorView view = call.keep(HostTensor(DType::I32, {static_cast<std::int64_t>(values.size())}));
  std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(view.data));
  return view;
}

/// The cascade, and the same as one call over packed keys in which the prefix is repeated.
struct CascadeCase {
  CascadeArguments args;
  Call whole;  // holds all memory
  std::vector<std::int64_t> q_begin, k_begin;

  CascadeCase(const CascadeSizes& s, DType dtype) {
    const auto batch = s.rows.size();
    const std::int64_t most_rows = *std::max_element(s.rows.begin(), s.rows.end());
    const std::int64_t most_keys = *std::max_element(s.keys.begin(), s.keys.end());
    std::int64_t total_q = s.q == Layout::Packed ? 2 : 0, total_own = 0;  // two rows of nobody before them
    std::vector<std::int32_t> cu_q, cu_whole = {0}, cu_own = {0};
    for (std::size_t b = 0; b < batch; ++b) {
      q_begin.push_back(total_q);
      cu_q.push_back(static_cast<std::int32_t>(total_q));
      total_q += s.q == Layout::Packed ? s.rows[b] : most_rows;
      total_own += s.keys[b];
      cu_own.push_back(static_cast<std::int32_t>(total_own));
      cu_whole.push_back(cu_whole.back() + static_cast<std::int32_t>(s.prefix + s.keys[b]));
    }
    cu_q.push_back(static_cast<std::int32_t>(total_q));
    if (s.q == Layout::Packed) ++total_q;

    ForwardArguments& w = whole.args;
    w.k = whole.keep(HostTensor(dtype, {cu_whole.back(), s.heads_k, s.head_dim}, noise(2)));
    w.v = whole.keep(HostTensor(dtype, {cu_whole.back(), s.heads_k, s.head_dim_v}, noise(3)));
    // The prefix of every sequence is that of the first.
    for (std::size_t b = 1; b < batch; ++b) {
      copy_rows(w.k, 0, w.k, cu_whole[b], s.prefix);
      copy_rows(w.v, 0, w.v, cu_whole[b], s.prefix);
    }
    w.cu_seqlens_k = ints(whole, cu_whole);
    w.q = s.q == Layout::Packed
              ? whole.keep(HostTensor(dtype, {total_q, s.heads_q, s.head_dim}, noise(1)))
              : whole.keep(HostTensor(
                    dtype, {static_cast<std::int64_t>(batch), most_rows, s.heads_q, s.head_dim}, noise(1)));
    if (s.q == Layout::Packed) {
      w.cu_seqlens_q = ints(whole, cu_q);
    } else {
      w.seqused_q = ints(whole, {s.rows.begin(), s.rows.end()});
    }
    if (s.sinks) w.sinks = whole.keep(HostTensor(DType::F32, {s.heads_q}, noise(5)));
    if (s.causal) whole.options.causal = Causal::BottomRight;
    whole.options.softcap = s.softcap;
    whole.allocate_outputs();
    if (!s.lse) w.softmax_lse = {};

    args.own = w;
    args.own.cu_seqlens_k = {};
    args.own.k = own_keys(s, w.k, cu_whole, cu_own, most_keys);
    args.own.v = own_keys(s, w.v, cu_whole, cu_own, most_keys);
    if (s.k == Layout::Packed) args.own.cu_seqlens_k = ints(whole, cu_own);
    if (s.k != Layout::Packed) args.own.seqused_k = ints(whole, {s.keys.begin(), s.keys.end()});
    if (s.k == Layout::Paged) {
      std::vector<std::int32_t> table;
      for (std::int64_t b = 0; b < static_cast<std::int64_t>(batch); ++b) {
        for (std::int64_t i = 0; i < pages_of(most_keys); ++i) table.push_back(page(b, i, most_keys));
      }
      args.own.block_table = ints(whole, table);
      args.own.block_table = make_view(args.own.block_table.data, DType::I32,
                                       {static_cast<std::int64_t>(batch), pages_of(most_keys)});
    }
    args.k_prefix = prefix_keys(s, w.k);
    args.v_prefix = prefix_keys(s, w.v);
    if (s.prefix_layout == Layout::Paged) {
      std::vector<std::int32_t> table;
      for (std::int64_t i = 0; i < pages_of(s.prefix) + 1; ++i) {  // one page more than there are keys for
        table.push_back(static_cast<std::int32_t>(i < pages_of(s.prefix) ? pages_of(s.prefix) - 1 - i : -1));
      }
      args.prefix_table = ints(whole, table);
      args.prefix_seqlen = ints(whole, {static_cast<std::int32_t>(s.prefix)});
    }
  }

  static constexpr std::int64_t kPage = 8;
  static std::int64_t pages_of(std::int64_t keys) {
    return std::max<std::int64_t>(1, (keys + kPage - 1) / kPage);
  }
  static std::int32_t page(std::int64_t b, std::int64_t i, std::int64_t most_keys) {
    return static_cast<std::int32_t>(b * pages_of(most_keys) + pages_of(most_keys) - 1 - i);  // backwards
  }

  static void copy_rows(const TensorView& from, std::int64_t from_row, const TensorView& to,
                        std::int64_t to_row, std::int64_t rows) {
    const std::int64_t bytes = from.strides[0] * dtype_bytes(from.dtype);
    if (rows == 0) return;
    std::memcpy(static_cast<char*>(to.data) + to_row * bytes,
                static_cast<const char*>(from.data) + from_row * bytes,
                static_cast<std::size_t>(rows * bytes));
  }

  TensorView own_keys(const CascadeSizes& s, const TensorView& all, const std::vector<std::int32_t>& cu_whole,
                      const std::vector<std::int32_t>& cu_own, std::int64_t most_keys) {
    const auto batch = static_cast<std::int64_t>(s.rows.size());
    const std::int64_t rows = s.k == Layout::Packed  ? cu_own.back()
                              : s.k == Layout::Dense ? batch * most_keys
                                                     : batch * pages_of(most_keys) * kPage;
    const TensorView flat = whole.keep(HostTensor(all.dtype, {rows, all.shape[1], all.shape[2]}));
    for (std::size_t b = 0; b < s.keys.size(); ++b) {
      const auto sequence = static_cast<std::int64_t>(b);
      for (std::int64_t j = 0; j < s.keys[b]; ++j) {
        const std::int64_t row = s.k == Layout::Packed ? cu_own[b] + j
                                 : s.k == Layout::Dense
                                     ? sequence * most_keys + j
                                     : page(sequence, j / kPage, most_keys) * kPage + j % kPage;
        copy_rows(all, cu_whole[b] + s.prefix + j, flat, row, 1);
      }
    }
    if (s.k == Layout::Packed) return flat;
    const std::int64_t inner = s.k == Layout::Dense ? most_keys : kPage;
    return make_view(flat.data, flat.dtype,
                     {inner > 0 ? rows / inner : batch, inner, all.shape[1], all.shape[2]});
  }

  TensorView prefix_keys(const CascadeSizes& s, const TensorView& all) {
    if (s.prefix_layout == Layout::Dense) {
      return make_view(all.data, all.dtype, {s.prefix, all.shape[1], all.shape[2]});
    }
    const std::int64_t pages = pages_of(s.prefix);
    const TensorView pool = whole.keep(HostTensor(all.dtype, {pages, kPage, all.shape[1], all.shape[2]}));
    const TensorView flat = make_view(pool.data, all.dtype, {pages * kPage, all.shape[1], all.shape[2]});
    for (std::int64_t j = 0; j < s.prefix; ++j)
      copy_rows(all, j, flat, (pages - 1 - j / kPage) * kPage + j % kPage, 1);
    return pool;
  }
};

void run_on(const Target& target, CascadeArguments args, ForwardOptions options) {
  options.backend = target.backend;
  if (!target.on_gpu()) {
    const OnTarget forced(target);
    const CascadePlan planned = plan(args, options);
    verify::GuardedBuffer workspace(planned.workspace_bytes());
    run(planned, args, {static_cast<std::byte*>(workspace.data()), workspace.size()});
    EXPECT_TRUE(workspace.guards_intact());
    return;
  }
  const CascadePlan planned = plan(args, options, cuda::device_info(0));
  ForwardArguments& own = args.own;
  std::vector<TensorView*> views;
  for (TensorView* view : {&own.q, &own.k, &own.v, &own.out, &own.softmax_lse, &own.cu_seqlens_q,
                           &own.cu_seqlens_k, &own.seqused_q, &own.seqused_k, &own.block_table, &own.sinks,
                           &args.k_prefix, &args.v_prefix, &args.prefix_table, &args.prefix_seqlen}) {
    if (view->present()) views.push_back(view);
  }
  options.max_seqlen_q = planned.own.problem->seqlen_q;
  options.max_seqlen_k = planned.own.problem->seqlen_k;
  const verify::DeviceCopies copies(views, 0);
  const CascadePlan on_gpu = plan(args, options);
  const verify::GuardedDeviceBuffer workspace(on_gpu.workspace_bytes(), 0);
  run(on_gpu, args, workspace.span());
  EXPECT_EQ(copies.copy_back(), std::nullopt);
  EXPECT_TRUE(workspace.guards_intact());
}

/// Parts are rounded to the dtype on their own: one rounding more than the bound of a whole call knows.
void expect_whole(const Target& target, const CascadeCase& c, const CascadeSizes& s) {
  const verify::Evaluation whole = evaluate_once(c.whole.args, c.whole.options);
  for (std::size_t n = 0; n < whole.out.size(); ++n) {
    const float got = load_float(c.args.own.out.data, target.dtype, static_cast<std::int64_t>(n));
    ASSERT_NEAR(got, whole.out[n], 3 * target.rounding() * (1 + std::abs(whole.out[n]))) << "element " << n;
  }
  if (!s.lse) return;
  const auto heads = static_cast<std::size_t>(s.heads_q);
  for (std::size_t row = 0; row < whole.owners.size(); ++row) {
    for (std::size_t h = 0; h < heads; ++h) {
      const auto i = static_cast<std::int64_t>(row), head = static_cast<std::int64_t>(h);
      const std::int64_t seqlen = c.args.own.out.shape[1];
      const float got =
          c.args.own.out.rank == 3 ? c.whole.lse({head, i}) : c.whole.lse({i / seqlen, head, i % seqlen});
      const double want = whole.lse[row * heads + h];
      if (std::isinf(want)) {
        ASSERT_EQ(got, want) << row;
      } else {
        ASSERT_NEAR(got, want, (target.dtype == DType::F32 ? 1e-5 : 1e-3) * (1 + std::abs(want))) << row;
      }
    }
  }
}

void check(const CascadeSizes& s) {
  on_every_target([&](const Target& target) {
    const CascadeCase c(s, target.dtype);
    run_on(target, c.args, c.whole.options);
    expect_whole(target, c, s);
    for (const HostTensor& tensor : c.whole.memory) EXPECT_TRUE(tensor.memory().guards_intact());
  });
}

TEST(cascade, packed_rows_with_own_keys_in_every_layout) {
  for (const Layout k : {Layout::Dense, Layout::Packed, Layout::Paged}) {
    for (const Layout prefix : {Layout::Dense, Layout::Paged}) {
      SCOPED_TRACE(static_cast<int>(k) * 10 + static_cast<int>(prefix));
      check({.rows = {1, 3, 0, 5}, .keys = {7, 3, 4, 30}, .k = k, .prefix_layout = prefix});
    }
  }
}

TEST(cascade, dense_rows_and_padding) {
  check({.rows = {1, 1, 1}, .keys = {1, 40, 9}, .q = Layout::Dense, .k = Layout::Paged});
  check({.rows = {4, 2, 0},
         .keys = {4, 9, 3},
         .prefix = 100,
         .q = Layout::Dense,
         .k = Layout::Dense,
         .lse = false});
}

TEST(cascade, sinks_count_once_and_softcap_holds_in_both_passes) {
  check({.rows = {2, 1}, .keys = {5, 12}, .q = Layout::Packed, .sinks = true, .softcap = 3});
}

TEST(cascade, an_empty_side_leaves_the_other) {
  check({.rows = {2, 1}, .keys = {5, 12}, .prefix = 0});
  check({.rows = {2, 1}, .keys = {0, 0}, .prefix = 33, .causal = false});
  check({.rows = {2, 1}, .keys = {0, 3}, .prefix = 0, .prefix_layout = Layout::Paged, .causal = false});
}

std::string refusal(const std::function<void(CascadeArguments&, ForwardOptions&)>& change) {
  CascadeCase c({.rows = {3, 3}, .keys = {5, 12}, .q = Layout::Dense}, DType::F32);
  ForwardOptions options;
  change(c.args, options);
  try {
    cascade(c.args, options);
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(bytes_of(c.whole.args.out), ::testing::Each(verify::kPoison));
    return error.what();
  }
  return "no error";
}

TEST(cascade, refuses_what_needs_positions_and_names_what_does_not_fit) {
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal([](auto&, ForwardOptions& o) { o.window_left = 5; }), HasSubstr("window_left is 5"));
  EXPECT_THAT(refusal([](auto&, ForwardOptions& o) { o.batch_invariant = true; }),
              HasSubstr("batch_invariant is set"));
  EXPECT_THAT(refusal([](CascadeArguments& a, auto&) {
                static const HostTensor slopes(DType::F32, {4});
                a.own.alibi_slopes = slopes.view();
              }),
              HasSubstr("alibi_slopes is given"));
  EXPECT_THAT(refusal([](CascadeArguments& a, auto&) {
                static const HostTensor factors(DType::F32, {9, 1, 2});
                a.own.k_descale = factors.view();
              }),
              HasSubstr("k_descale [9, 1, 2] has factors of pages, but the prefix is not in the pool"));
  EXPECT_THAT(refusal([](CascadeArguments& a, auto&) { a.k_prefix = {}; }), HasSubstr("k_prefix is missing"));
  EXPECT_THAT(refusal([](CascadeArguments& a, auto&) { a.v_prefix.dtype = DType::BF16; }),
              HasSubstr("v_prefix has dtype bf16"));
  EXPECT_THAT(refusal([](CascadeArguments& a, auto&) { a.k_prefix.rank = 2; }),
              HasSubstr("k_prefix [40, 2]"));
  EXPECT_THAT(refusal([](CascadeArguments& a, auto&) { --a.v_prefix.shape[2]; }),
              HasSubstr("v_prefix [40, 2, 15]"));
  EXPECT_THAT(refusal([](CascadeArguments& a, auto&) { a.own.q.strides[0] += 1; }),
              HasSubstr("rows at even distances"));
  EXPECT_EQ(refusal([](auto&, auto&) {}), "no error");
}

TEST(cascade, a_workspace_too_small_is_refused_before_anything_is_written) {
  const CascadeCase c({.rows = {1, 1}, .keys = {5, 12}, .q = Layout::Dense}, DType::F32);
  const CascadePlan planned = plan(c.args);
  verify::GuardedBuffer workspace(planned.workspace_bytes());
  EXPECT_THROW(run(planned, c.args, {static_cast<std::byte*>(workspace.data()), workspace.size() - 1}),
               InvalidArgument);
  EXPECT_THAT(bytes_of(c.whole.args.out), ::testing::Each(verify::kPoison));
  EXPECT_THAT(planned.explain(), ::testing::HasSubstr("the prefix, for all sequences"));
}

}  // namespace
}  // namespace onepass
