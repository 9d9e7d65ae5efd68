// A backward call whose tensors a test writes down by hand.
#pragma once

#include <utility>

#include "tests/cpu/call.h"
#include "tests/cpu/sizes.h"
#include "verify/tensor_views.h"

namespace onepass {

/// A forward call with its gradients. `backward.forward` is filled from `args` by run_gradients.
struct GradientCall : Call {
  BackwardArguments backward;

  explicit GradientCall(Call call) : Call(std::move(call)) {}

  /// Outputs in memory of their own, poisoned: gradients of what the call has, those of sinks and bias too.
  void allocate_gradients() {
    const auto like = [&](const TensorView& view, DType dtype) {
      const auto rank = static_cast<std::size_t>(view.rank);
      return keep(
          HostTensor(dtype, {view.shape.begin(), view.shape.begin() + static_cast<std::ptrdiff_t>(rank)}));
    };
    backward.dq = like(args.q, args.q.dtype);
    backward.dk = like(args.k, args.k.dtype);
    backward.dv = like(args.v, args.v.dtype);
    if (args.sinks.present()) backward.dsinks = like(args.sinks, DType::F32);
    if (args.bias.present()) backward.dbias = like(args.bias, DType::F32);
  }

  /// dout = values(idx), in O's shape.
  template <class F>
  void fill_dout(F values) {
    const auto rank = static_cast<std::size_t>(args.q.rank);
    HostTensor::Shape shape(args.q.shape.begin(), args.q.shape.begin() + static_cast<std::ptrdiff_t>(rank));
    shape.back() = args.v.shape[static_cast<std::size_t>(args.v.rank - 1)];
    backward.dout = keep(HostTensor(args.q.dtype, shape, values));
  }

  /// Forward, then backward, on one target.
  void run_gradients(const Target& target) {
    run(target);
    backward.forward = args;
    allocate_gradients();
    run_on(target, backward, options);
    for (const HostTensor& tensor : memory) EXPECT_TRUE(tensor.memory().guards_intact());
  }
};

}  // namespace onepass
