#include "tests/emulator/gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plan/make_plan.h"
#include "problem/validate.h"
#include "verify/random.h"

namespace onepass::emulator {
namespace {

verify::HostTensor::Shape shape_of(const TensorView& view) {
  return {view.shape.begin(), view.shape.begin() + view.rank};
}

double frobenius_bound(DType dtype) { return dtype == DType::F16 ? 2e-3 : 1e-2; }

}  // namespace

GradientTensors::GradientTensors(const Case& c)
    : forward_(verify::make_tensors(c)), dout_(forward_.args.out.dtype, shape_of(forward_.args.out)) {
  options = forward_.options;
  args.forward = forward_.args;
  ForwardOptions reference = options;
  reference.backend = Backend::Reference;
  forward(args.forward, reference);
  dout_.fill([](std::span<const std::int64_t> place) {
    std::int64_t key = 0;
    for (const std::int64_t i : place) key = key * 100003 + i;
    return verify::Random({7, key}).normal();
  });
  args.dout = dout_.view();
  for (const TensorView* view : {&args.forward.q, &args.forward.k, &args.forward.v}) {
    got_.emplace_back(view->dtype, shape_of(*view));
    want_.emplace_back(view->dtype, shape_of(*view));
  }
  const auto point_at = [this](const std::vector<verify::HostTensor>& gradients) {
    args.dq = gradients[0].view();
    args.dk = gradients[1].view();
    args.dv = gradients[2].view();
  };
  point_at(want_);
  backward(args, reference);
  point_at(got_);
}

void GradientTensors::poison_gradients() {
  for (verify::HostTensor& tensor : got_) tensor.memory().fill(verify::kPoison);
}

std::string GradientTensors::differences() const {
  std::string text;
  for (std::size_t i = 0; i < got_.size(); ++i) {
    const TensorView& got = got_[i].view();
    double error = 0, size = 0;
    for (std::int64_t n = 0; n < got.num_elements(); ++n) {
      const double want = load_float(want_[i].view().data, got.dtype, n);
      error += std::pow(load_float(got.data, got.dtype, n) - want, 2);
      size += want * want;
    }
    const double relative = size == 0 ? error : std::sqrt(error / size);
    if (!(relative <= frobenius_bound(got.dtype)))
      text += fmt::format("d{} is off by {:.2e} of its size; ", "qkv"[i], relative);
    if (!got_[i].memory().guards_intact()) text += fmt::format("memory beside d{} was written; ", "qkv"[i]);
  }
  return text;
}

bool GradientTensors::guards_intact() const {
  return std::all_of(got_.begin(), got_.end(),
                     [](const verify::HostTensor& tensor) { return tensor.memory().guards_intact(); });
}

std::vector<char> GradientTensors::gradient_bytes() const {
  std::vector<char> bytes;
  for (const verify::HostTensor& tensor : got_) {
    const unsigned char* data = tensor.memory().bytes();
    bytes.insert(bytes.end(), data, data + tensor.memory().size());
  }
  return bytes;
}

Plan plan_on(const DeviceInfo& device, const GradientTensors& tensors) {
  AttentionProblem problem = validate_problem("emulator", tensors.args, tensors.options);
  validate_run("emulator", problem, tensors.args);
  problem.memory = DeviceKind::Cuda;
  return make_plan("emulator", problem, {Backend::Cuda, 0, 0}, device);
}

}  // namespace onepass::emulator
