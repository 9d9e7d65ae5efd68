#include "problem/checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "support/message.h"

namespace onepass {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 56;

__extension__ using Wide = __int128;

std::string describe(NamedView t) { return fmt::format("{} {}", t.name, shape_string(t.view)); }

}  // namespace

void Checker::fail(const std::string& given, const std::string& allowed, const std::string& fix) const {
  throw_invalid(call_, given, allowed, fix);
}

void Checker::present(NamedView t, const char* meaning) const {
  if (t.view.rank != 0) return;  // a negative one is sane()'s to name
  fail(fmt::format("{} is missing", t.name), fmt::format("{} must be given: {}", t.name, meaning),
       fmt::format("set {}, for example with make_view", t.name));
}

void Checker::sane(NamedView t) const {
  const TensorView& view = t.view;
  if (view.rank < 0 || view.rank > TensorView::kMaxRank) {
    fail(fmt::format("{} has rank {}", t.name, view.rank), fmt::format("rank 1 to {}", TensorView::kMaxRank),
         "build the view with make_view");
  }
  Wide elements = 1, lowest = 0, highest = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.rank); ++i) {
    if (view.shape[i] < 0) {
      fail(fmt::format("{} has a negative extent", describe(t)), "extents of 0 or more",
           fmt::format("correct the shape of {}", t.name));
    }
    elements = std::min<Wide>(elements * view.shape[i], Wide{1} << 100);
    const Wide reach = Wide{std::max<std::int64_t>(view.shape[i] - 1, 0)} * view.strides[i];
    (reach < 0 ? lowest : highest) += reach;
  }
  const Wide element_bytes = dtype_bytes(view.dtype);
  if (elements == 0) return;
  if (elements * element_bytes > kMaxBytes || (highest - lowest + 1) * element_bytes > kMaxBytes) {
    fail(fmt::format("{} with strides {} spans more than 2^56 bytes", describe(t), strides_string(view)),
         "tensors whose elements lie within 2^56 bytes",
         fmt::format("correct shape or strides of {}", t.name));
  }
}

void Checker::same_device(NamedView t, NamedView first) const {
  if (!t.view.present()) return;
  if (t.view.device == first.view.device && t.view.device_idx == first.view.device_idx) return;
  const auto where = [](const TensorView& v) {
    return v.device == DeviceKind::Cpu ? std::string("the CPU") : fmt::format("GPU {}", v.device_idx);
  };
  fail(fmt::format("{} is on {}, but {} is on {}", t.name, where(t.view), first.name, where(first.view)),
       "all tensors of a call on one device", fmt::format("copy {} to {}'s device", t.name, first.name));
}

void Checker::rank(NamedView t, int rank, const char* layout) const {
  if (t.view.rank == rank) return;
  fail(fmt::format("{} has {} dimensions", describe(t), t.view.rank),
       fmt::format("{} dimensions: {}", rank, layout), fmt::format("pass {} as {}", t.name, layout));
}

void Checker::dtype(NamedView t, std::initializer_list<DType> allowed, const char* why) const {
  if (std::find(allowed.begin(), allowed.end(), t.view.dtype) != allowed.end()) return;
  std::vector<std::string> names;
  for (const DType d : allowed) names.emplace_back(dtype_name(d));
  fail(fmt::format("{} has dtype {}", t.name, dtype_name(t.view.dtype)),
       fmt::format("{} ({})", joined(names), why), fmt::format("convert {} to {}", t.name, names.front()));
}

void Checker::fail_extent(NamedView t, int dim, std::int64_t extent, const std::string& because) const {
  const std::int64_t given = t.view.shape[static_cast<std::size_t>(dim)];
  fail(fmt::format("{} has extent {} in dimension {}, but {}", describe(t), given, dim, because),
       fmt::format("{} there", extent), fmt::format("make {} and the other tensor agree", t.name));
}

void Checker::shape(NamedView t, std::initializer_list<std::int64_t> shape, const char* because) const {
  if (std::equal(shape.begin(), shape.end(), t.view.shape.begin(), t.view.shape.begin() + t.view.rank))
    return;
  fail(fmt::format("{} has another shape than needed: {}", describe(t), because), list_string(shape),
       fmt::format("pass {} in that shape", t.name));
}

void Checker::writable_strides(NamedView t) const {
  const TensorView& view = t.view;
  if (view.num_elements() == 0) return;
  std::array<std::size_t, TensorView::kMaxRank> dims{};  // those that are stepped over, by growing stride
  std::size_t count = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.rank); ++i) {
    if (view.shape[i] <= 1) continue;
    std::size_t at = count++;
    for (; at > 0 && std::abs(view.strides[i]) < std::abs(view.strides[dims[at - 1]]); --at) {
      dims[at] = dims[at - 1];
    }
    dims[at] = i;
  }
  std::int64_t reach = 0;  // largest distance that the smaller strides cover
  for (const std::size_t i : std::span(dims).first(count)) {
    const std::int64_t stride = std::abs(view.strides[i]);
    if (stride <= reach) {
      fail(
          fmt::format("{} with strides {} has elements that share memory", describe(t), strides_string(view)),
          fmt::format("{} is written, so each element needs an address of its own", t.name),
          "pass a tensor without broadcast or overlapping dimensions");
    }
    reach += (view.shape[i] - 1) * stride;
  }
}

void Checker::address(NamedView t) const {
  if (!t.view.present() || t.view.num_elements() == 0) return;
  if (t.view.data == nullptr) {
    fail(fmt::format("{} has {} elements, but a null data pointer", describe(t), t.view.num_elements()),
         "the address of element [0, 0, ...]", fmt::format("set the data pointer of {}", t.name));
  }
  const auto bytes = static_cast<std::uintptr_t>(dtype_bytes(t.view.dtype));
  const auto address = reinterpret_cast<std::uintptr_t>(t.view.data);
  if (address % bytes != 0) {
    fail(fmt::format("{} starts at address {:#x}, but {} elements have {} bytes", t.name, address,
                     dtype_name(t.view.dtype), bytes),
         fmt::format("addresses that are a multiple of {}", bytes),
         fmt::format("copy {} to aligned memory", t.name));
  }
}

void Checker::offsets(NamedView cu, std::int64_t rows, const char* tensor) const {
  const std::int64_t batch = cu.view.shape[0] - 1;
  std::int64_t previous = 0;
  for (std::int64_t b = 0; b <= batch; ++b) {
    const std::int64_t offset = index_value(cu.view, b);
    if (offset < previous) {
      fail(b == 0
               ? fmt::format("{}[0] is {}", cu.name, offset)
               : fmt::format("{}[{}] is {}, but {}[{}] is {}", cu.name, b, offset, cu.name, b - 1, previous),
           "offsets that start at 0 or more and never decrease",
           fmt::format("pass prefix sums of the lengths in {}", cu.name));
    }
    previous = offset;
  }
  if (previous > rows) {
    fail(fmt::format("{}[{}] is {}, but {} has {} rows", cu.name, batch, previous, tensor, rows),
         fmt::format("offsets up to the rows of {}", tensor),
         fmt::format("pass the whole packed {}, or correct {}", tensor, cu.name));
  }
}

void Checker::pages(NamedView table, std::int64_t b, TokenRange range, std::int64_t page_size,
                    std::int64_t num_pages) const {
  const auto* data = static_cast<const std::int32_t*>(table.view.data);
  for (std::int64_t column = range.begin / page_size; column * page_size < range.end; ++column) {
    const std::int64_t page = data[b * table.view.strides[0] + column * table.view.strides[1]];
    if (page >= 0 && page < num_pages) continue;
    fail(fmt::format("{}[{}][{}] is {}, but the pool has {} pages", table.name, b, column, page, num_pages),
         fmt::format("0 to {} in the columns that hold the tokens {} to {}", num_pages - 1, range.begin,
                     range.end - 1),
         fmt::format("correct {} or the lengths", table.name));
  }
}

void Checker::num_threads(int num_threads) const {
  if (num_threads >= 0 && num_threads <= kMaxThreads) return;
  fail(fmt::format("num_threads is {}", num_threads), fmt::format("0 (every core) to {}", kMaxThreads),
       "set num_threads to 0");
}

}  // namespace onepass
