// Small checks shared by the rule files of this folder: shapes, dtypes, addresses, strides.
// Every call passes through them, so what holds costs no text and no allocation: reasons that need formatting
// are functions, called for the message.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "onepass/tensor_view.h"

namespace onepass {

inline constexpr int kMaxThreads = 4096;

/// Entry i of an index tensor in host memory.
inline std::int64_t index_value(const TensorView& view, std::int64_t i) {
  return static_cast<const std::int32_t*>(view.data)[i * view.strides[0]];
}

/// A tensor of the call with the name that messages use.
struct NamedView {
  const char* name;
  const TensorView& view;
};

/// Tokens begin to end - 1 of a sequence.
struct TokenRange {
  std::int64_t begin, end;
};

class Checker {
 public:
  explicit Checker(const char* call) : call_(call) {}

  [[noreturn]] void fail(const std::string& given, const std::string& allowed, const std::string& fix) const;

  void present(NamedView t, const char* meaning) const;
  /// Rank, extents and byte size are sane; strides stay inside 64-bit addresses.
  void sane(NamedView t) const;
  /// `t` is absent or on the device of `first`.
  void same_device(NamedView t, NamedView first) const;
  void rank(NamedView t, int rank, const char* layout) const;
  void dtype(NamedView t, std::initializer_list<DType> allowed, const char* why) const;
  /// Extent `dim` equals `extent`, which `because()` explains ("k has 4 heads").
  template <class Because>
  void extent(NamedView t, int dim, std::int64_t extent, const Because& because) const {
    if (t.view.shape[static_cast<std::size_t>(dim)] != extent) fail_extent(t, dim, extent, because());
  }
  void shape(NamedView t, std::initializer_list<std::int64_t> shape, const char* because) const;
  /// No two elements share an address: demanded of everything that is written.
  void writable_strides(NamedView t) const;
  /// data is not null (unless there are no elements) and aligned to its element.
  void address(NamedView t) const;
  // Of index tensors in host memory:
  /// Offsets start at 0 or more, never decrease and end inside the `rows` of `tensor`.
  void offsets(NamedView cu_seqlens, std::int64_t rows, const char* tensor) const;
  /// The pages of sequence b that hold the tokens of `range` are in the pool.
  void pages(NamedView block_table, std::int64_t b, TokenRange range, std::int64_t page_size,
             std::int64_t num_pages) const;

  /// 0, or a number of CPU threads up to kMaxThreads.
  void num_threads(int num_threads) const;

 private:
  [[noreturn]] void fail_extent(NamedView t, int dim, std::int64_t extent, const std::string& because) const;

  const char* call_;
};

}  // namespace onepass
