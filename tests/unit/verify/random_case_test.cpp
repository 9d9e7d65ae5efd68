#include "verify/random_case.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "verify/case_tensors.h"

namespace onepass::verify {
namespace {

TEST(random_case, every_case_is_valid_and_has_a_text) {
  for (int n = 0; n < 2000; ++n) {
    Random random{3, n};
    const Case c = random_case(random);
    SCOPED_TRACE(to_string(c));
    EXPECT_EQ(parse_case(to_string(c)), c);
    const CaseShapes shapes = case_shapes(c);
    EXPECT_NO_THROW(plan(shapes.args, shapes.options));
  }
}

TEST(random_case, the_whole_feature_space_is_visited) {
  std::set<std::string> seen;
  const auto note = [&](const char* what, auto value) {
    seen.insert(what + std::to_string(static_cast<long long>(value)));
  };
  for (int n = 0; n < 2000; ++n) {
    Random random{4, n};
    const Case c = random_case(random);
    note("dtype", c.dtype);
    note("kv", c.kv_dtype);
    note("causal", c.causal);
    note("left", c.window_left >= 0);
    note("right", c.window_right >= 0);
    note("alibi", c.alibi);
    note("descale", c.descale);
    note("order", c.order);
    note("packed", 2 * c.packed_q + c.packed_k);
    note("bias", 4 * c.has_bias + 2 * c.bias_per_batch + c.bias_per_head);
    if (c.page_size > 0) seen.insert("paged");
    if (c.page_size > 0 && c.packed_q) seen.insert("packed q, paged k");
    if (c.softmax_scale && *c.softmax_scale == 0) seen.insert("scale 0");
    if (c.softmax_scale && *c.softmax_scale < 0) seen.insert("scale < 0");
    if (c.softcap > 0) seen.insert("softcap");
    if (c.bias_has_inf) seen.insert("bias inf");
    if (c.has_sinks) seen.insert("sinks");
    if (c.gaps) seen.insert("gaps");
    if (c.ragged) seen.insert("ragged");
    if (!c.has_lse) seen.insert("no lse");
    if (c.num_splits > 1) seen.insert("splits");
    if (c.batch == 0) seen.insert("no sequence");
    if (c.seqlen_q == 0) seen.insert("no query");
    if (c.seqlen_k == 0) seen.insert("no key");
    if (c.head_dim % 2 == 1) seen.insert("odd head dim");
    if (c.head_dim > 256) seen.insert("large head dim");
    if (c.num_heads_q / c.num_heads_k == 7) seen.insert("group of 7");
    for (const std::int64_t length : {63, 64, 65, 127, 128, 129, 255, 256, 257}) {
      if (c.seqlen_k == length) note("sk", length);
      if (c.seqlen_q == length) note("sq", length);
    }
  }
  // 3 dtypes, 6 K/V types, 3 masks, 2 + 2 windows, 3 ALiBi, 6 descales, 7 orders, 4 packings, 5 biases, 18
  // lengths, 17 words
  EXPECT_EQ(seen.size(), 3u + 6 + 3 + 4 + 3 + 6 + 7 + 4 + 5 + 18 + 17);
}

}  // namespace
}  // namespace onepass::verify
