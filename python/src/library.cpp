#include "library.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "onepass/error.h"
#include "support/message.h"

namespace nb = nanobind;

namespace onepass::python {
namespace {

constexpr dlpack::DataType kBytes = {1, 8, 1};  // unsigned integers

nb::object kinds() { return nb::module_::import_("onepass.kinds"); }

nb::object tuple_of(std::span<const std::int64_t> shape) {
  nb::list extents;
  for (const std::int64_t extent : shape) extents.append(extent);
  return nb::tuple(extents);
}

}  // namespace

Library::Library(nb::handle array, const char* name) : array_(array), torch_(Torch::loaded()) {
  if (torch_ != nullptr && torch_->is_tensor(array)) return;
  torch_ = nullptr;
  kind_ = kinds().attr("kind_of")(array, name);
}

nb::object Library::empty(const TensorView& view, std::span<const std::int64_t> shape, bool f32) const {
  if (torch_ == nullptr) return kind_.attr("empty")(array_, tuple_of(shape), f32);
  // The strides' order is the array's then, as in torch's own results; and it takes half the time.
  const std::span given(view.shape.data(), static_cast<std::size_t>(view.rank));
  if (!f32 && std::equal(shape.begin(), shape.end(), given.begin(), given.end()))
    return torch_->empty_like(array_);
  return torch_->new_empty(array_, tuple_of(shape), f32);
}

nb::object Library::finish(nb::object made) const {
  return torch_ != nullptr ? made : nb::object(kind_.attr("finish")(made));
}

std::uintptr_t Library::current_stream() const {
  return torch_ != nullptr ? torch_->current_stream(array_)
                           : nb::cast<std::uintptr_t>(kind_.attr("current_stream")(array_));
}

const dlpack::ExchangeApi* Library::allocator() const {
  return torch_ != nullptr ? torch_->exchange_api() : nullptr;
}

LibraryMemory::LibraryMemory(const dlpack::ExchangeApi& api, int device_idx, std::size_t bytes) {
  if (bytes == 0) return;
  auto extent = static_cast<std::int64_t>(bytes);
  dlpack::Tensor prototype{nullptr, {dlpack::kCuda, device_idx}, 1, kBytes, &extent, nullptr, 0};
  std::string answer = "nothing";
  const auto keep_answer = [](void* text, const char*, const char* message) {
    *static_cast<std::string*>(text) = message;
  };
  if (api.managed_tensor_allocator(&prototype, &tensor_, &answer, keep_answer) != 0) {
    throw EnvironmentError(format_message(
        "forward",
        fmt::format("the arrays' library has no workspace of {} bytes and answered: {}", bytes, answer),
        "enough free memory on the arrays' GPU", "free memory, or ask for fewer num_splits"));
  }
  const dlpack::Tensor& made = tensor_->dl_tensor;
  memory_ = {static_cast<std::byte*>(made.data) + made.byte_offset, bytes};
}

LibraryMemory::~LibraryMemory() {
  if (tensor_ != nullptr) tensor_->deleter(tensor_);
}

std::uintptr_t handle_of(nb::handle stream) {
  return nb::cast<std::uintptr_t>(kinds().attr("handle_of")(stream));
}

void check_out(nb::handle out) {
  const Torch* const torch = Torch::loaded();
  if (torch == nullptr || !torch->is_tensor(out)) kinds().attr("check_out")(out);
}

}  // namespace onepass::python
