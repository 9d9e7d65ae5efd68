#include "problem/descale.h"

#include <fmt/format.h>

#include <string>

#include "support/message.h"

namespace onepass {
namespace {

void check_pages(const Checker& check, NamedView t, const DescaleExtents& e) {
  const std::string given = fmt::format("{} {} has factors of pages", t.name, shape_string(t.view));
  if (!e.paged) {
    check.fail(given + ", but keys are not paged", "factors of pages with block_table",
               fmt::format("pass {} as [1], [heads_k] or [batch, heads_k]", t.name));
  }
  if (dtype_bytes(e.stored) != 1) {
    check.fail(fmt::format("{}, but pages hold {}", given, dtype_name(e.stored)),
               "factors of pages that hold f8 or i8", fmt::format("leave {} out", t.name));
  }
}

}  // namespace

void check_descale(const Checker& check, NamedView t, const DescaleExtents& e) {
  check.dtype(t, {DType::F32}, "descale factors are f32");
  const auto& s = t.view.shape;
  const int rank = t.view.rank;
  if (rank == 3) check_pages(check, t, e);
  const bool fits = (rank == 1 && (s[0] == 1 || s[0] == e.num_heads_k)) ||
                    (rank == 2 && s[0] == e.batch && s[1] == e.num_heads_k) ||
                    (rank == 3 && s[0] == e.num_pages && s[1] == 1 && (s[2] == e.num_heads_k || s[2] == 1));
  if (fits) return;
  std::string allowed =
      fmt::format("[1], [heads_k = {}] or [batch = {}, heads_k = {}]", e.num_heads_k, e.batch, e.num_heads_k);
  if (e.paged) {
    allowed += fmt::format("; of pages [pages = {}, 1, heads_k = {} or 1]", e.num_pages, e.num_heads_k);
  }
  const bool lacks_one = e.paged && rank == 2 && s[0] == e.num_pages && (s[1] == e.num_heads_k || s[1] == 1);
  check.fail(fmt::format("{} has shape {}", t.name, shape_string(t.view)), allowed,
             lacks_one ? fmt::format("if these are factors of pages, pass {} "
                                     "with an extent of 1 after them",
                                     t.name)
                       : fmt::format("pass {} in one of these shapes", t.name));
}

}  // namespace onepass
