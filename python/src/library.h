// The library that an array came from: what its results are made with, and where its work and memory are.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <span>

#include "dlpack.h"
#include "onepass/tensor_view.h"
#include "torch.h"

namespace onepass::python {

class Library {
 public:
  /// Of `array`, the argument `name`, which outlives this.
  /// @throws TypeError when it is no array, NotImplementedError when it is on a GPU, of a library whose
  ///   streams are not known.
  Library(nanobind::handle array, const char* name);

  /// A new array beside `array`, whose view is given, of its dtype or of float32.
  nanobind::object empty(const TensorView& view, std::span<const std::int64_t> shape, bool f32 = false) const;
  /// What a caller gets for an array that `empty` made.
  nanobind::object finish(nanobind::object made) const;
  /// The handle of the stream that the caller's work with `array` is on; 0 on the CPU.
  std::uintptr_t current_stream() const;
  /// Where memory can be had that later work on the current stream may take over; null when there is no such
  /// way.
  const dlpack::ExchangeApi* allocator() const;

 private:
  nanobind::handle array_;
  const Torch* torch_;     ///< null for arrays of others
  nanobind::object kind_;  ///< of others: a Kind of onepass.kinds
};

/// Memory of a GPU from a library's allocator, until the end of the scope.
class LibraryMemory {
 public:
  /// @throws EnvironmentError.
  LibraryMemory(const dlpack::ExchangeApi& api, int device_idx, std::size_t bytes);
  ~LibraryMemory();
  LibraryMemory(const LibraryMemory&) = delete;
  LibraryMemory& operator=(const LibraryMemory&) = delete;
  std::span<std::byte> bytes() const { return memory_; }

 private:
  dlpack::ManagedTensorVersioned* tensor_ = nullptr;
  std::span<std::byte> memory_;
};

/// A stream as a number: an int, torch's (cuda_stream) or CuPy's (ptr).
std::uintptr_t handle_of(nanobind::handle stream);

/// Refuses to write into arrays of libraries that promise their users never to change one (JAX).
/// @throws ValueError, TypeError, NotImplementedError.
void check_out(nanobind::handle out);

}  // namespace onepass::python
