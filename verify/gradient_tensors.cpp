#include "verify/gradient_tensors.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "problem/validate.h"
#include "support/float_types.h"
#include "verify/call_reader.h"
#include "verify/case_layout.h"
#include "verify/random.h"

namespace onepass::verify {
namespace {

/// A view and the elements of a buffer that it needs; the first is `origin` elements behind the buffer's
/// start.
struct Placed {
  TensorView view;
  std::int64_t elements = 0, origin = 0;
};

std::span<const std::int64_t> shape_of(const TensorView& view) {
  return std::span(view.shape).first(static_cast<std::size_t>(view.rank));
}

/// In the shape and memory order of `model`.
Placed like(const TensorView& model, DType dtype) {
  Placed p{make_view(nullptr, dtype, shape_of(model),
                     std::span(model.strides).first(static_cast<std::size_t>(model.rank))),
           0, 0};
  if (model.num_elements() == 0) return p;
  p.elements = 1;
  for (std::size_t d = 0; d < static_cast<std::size_t>(model.rank); ++d) {
    const std::int64_t reach = (model.shape[d] - 1) * model.strides[d];
    if (reach < 0) p.origin -= reach;
    p.elements += std::abs(reach);
  }
  return p;
}

Placed row_major(const TensorView& model, DType dtype) {
  return {make_view(nullptr, dtype, shape_of(model)), model.num_elements(), 0};
}

/// One element that all are.
Placed expanded(const TensorView& model, DType dtype) {
  const std::vector<std::int64_t> zeros(static_cast<std::size_t>(model.rank), 0);
  return {make_view(nullptr, dtype, shape_of(model), zeros), std::min<std::int64_t>(1, model.num_elements()),
          0};
}

/// Heads outside rows, or rows outside heads where the model has that.
Placed exchanged(const TensorView& model, DType dtype) {
  const int row = model.rank - 3;
  const TensorView turned = transpose(model, row, row + 1);
  const bool heads_outside =
      model.strides[static_cast<std::size_t>(row + 1)] > model.strides[static_cast<std::size_t>(row)];
  if (heads_outside) return row_major(model, dtype);
  Placed p = row_major(turned, dtype);
  p.view = transpose(p.view, row, row + 1);
  return p;
}

Placed place_output(const Case& c, const TensorView& model, DType dtype) {
  switch (c.order) {
    case MemoryOrder::Bhsd:
    case MemoryOrder::DimStride2:
    case MemoryOrder::Reversed: return like(model, dtype);
    default: return row_major(model, dtype);
  }
}

Placed place_dout(const Case& c, const TensorView& out) {
  switch (c.dout) {
    case DoutOrder::AsOut: return like(out, out.dtype);
    case DoutOrder::One: return expanded(out, out.dtype);
    case DoutOrder::Other: return exchanged(out, out.dtype);
  }
  return like(out, out.dtype);
}

struct Member {
  const char* name;
  TensorView BackwardArguments::*view;
  Placed placed;
  bool is_output;
};

std::vector<Member> members(const Case& c, const ForwardArguments& f) {
  std::vector<Member> all = {{"dout", &BackwardArguments::dout, place_dout(c, f.out), false},
                             {"dq", &BackwardArguments::dq, place_output(c, f.q, c.dtype), true},
                             {"dk", &BackwardArguments::dk, place_output(c, f.k, c.dtype), true},
                             {"dv", &BackwardArguments::dv, place_output(c, f.v, c.dtype), true}};
  if (c.has_dlse) {
    all.push_back({"dlse", &BackwardArguments::dlse, like(f.softmax_lse, DType::F32), false});
  }
  if (c.has_sinks) {
    all.push_back({"dsinks", &BackwardArguments::dsinks, row_major(f.sinks, DType::F32), true});
  }
  if (c.has_bias) {
    all.push_back({"dbias", &BackwardArguments::dbias, place_output(c, f.bias, c.bias_dtype), true});
  }
  return all;
}

/// Values by their place; rows of no sequence stay as they are.
class Filler {
 public:
  Filler(const Case& c, const GradientTensors& t) : c_(c), t_(t), call_(t.forward.args, t.options) {}

  void fill() const {
    if (c_.dout == DoutOrder::One) {
      if (t_.args.dout.num_elements() > 0) store_float(t_.args.dout.data, t_.args.dout.dtype, 0, 1.0f);
    }
    for (std::int64_t b = 0; b < call_.batch; ++b) {
      const Lengths s = call_.lengths(b);
      for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
        for (std::int64_t h = 0; h < call_.num_heads_q; ++h) row(b, s, h, i);
      }
    }
  }

 private:
  void row(std::int64_t b, const Lengths& s, std::int64_t h, std::int64_t i) const {
    const TensorView& dout = t_.args.dout;
    if (c_.dout != DoutOrder::One) {
      Random random{c_.seed, static_cast<std::int64_t>(Stream::Dout), b, h, i};
      const std::int64_t first =
          call_.packed_q ? offset(dout, {s.first_row + i, h}) : offset(dout, {b, i, h});
      const std::int64_t stride = dout.strides[static_cast<std::size_t>(dout.rank - 1)];
      for (std::int64_t d = 0; d < call_.head_dim_v; ++d) {
        store_float(dout.data, dout.dtype, first + d * stride, 0.25f + random.normal());
      }
    }
    if (!c_.has_dlse) return;
    Random random{c_.seed, static_cast<std::int64_t>(Stream::Dlse), b, h, i};
    const TensorView& dlse = t_.args.dlse;
    const std::int64_t at = call_.packed_q ? offset(dlse, {h, s.first_row + i}) : offset(dlse, {b, h, i});
    static_cast<float*>(dlse.data)[at] = random.normal();
  }

  const Case& c_;
  const GradientTensors& t_;
  const CallReader call_;
};

/// O and LSE in float64.
void run_forward(const ForwardArguments& args, ForwardOptions options) {
  options.backend = Backend::Reference;
  forward(args, options);
}

}  // namespace

void GradientTensors::poison_outputs() {
  for (CaseTensors::Buffer& buffer : buffers) {
    if (buffer.output.present()) buffer.memory->fill(kPoison);
  }
}

std::optional<std::string> GradientTensors::damage() const {
  for (std::size_t n = 0; n < forward_hashes.size(); ++n) {
    if (content_hash(*forward.buffers[n].memory) != forward_hashes[n])
      return "input " + forward.buffers[n].name + " was written";
  }
  return damage_of(buffers);
}

GradientTensors make_gradient_tensors(const Case& c) {
  GradientTensors t;
  t.forward = make_tensors(c);
  t.options = t.forward.options;
  run_forward(t.forward.args, t.options);
  for (const CaseTensors::Buffer& buffer : t.forward.buffers)
    t.forward_hashes.push_back(content_hash(*buffer.memory));
  t.args.forward = t.forward.args;
  for (const Member& member : members(c, t.forward.args)) {
    const auto bytes = static_cast<std::size_t>(dtype_bytes(member.placed.view.dtype));
    auto memory = std::make_unique<GuardedBuffer>(static_cast<std::size_t>(member.placed.elements) * bytes,
                                                  c.seed % 2 == 0 ? 0 : bytes);
    if (!c.poison && !member.is_output) memory->fill(0);
    TensorView& view = t.args.*member.view;
    view = member.placed.view;
    view.data = static_cast<char*>(memory->data()) + member.placed.origin * static_cast<std::int64_t>(bytes);
    t.buffers.push_back({member.name, std::move(memory), member.is_output ? view : TensorView{}, 0});
  }
  Filler(c, t).fill();
  for (CaseTensors::Buffer& buffer : t.buffers) {
    if (!buffer.output.present()) buffer.input_hash = content_hash(*buffer.memory);
  }
  return t;
}

GradientShapes gradient_shapes(const Case& c) {
  const CaseShapes shapes = case_shapes(c);
  GradientShapes all{{}, shapes.options};
  all.args.forward = shapes.args;
  for (const Member& member : members(c, shapes.args)) all.args.*member.view = member.placed.view;
  return all;
}

AttentionProblem problem_of_case(const char* call, const Case& c, const ForwardOptions& options) {
  if (c.backward) return validate_problem(call, gradient_shapes(c).args, options);
  return validate_problem(call, case_shapes(c).args, options);
}

std::array<std::pair<const char*, const TensorView*>, 5> gradients_of(const BackwardArguments& args) {
  return {{{"dq", &args.dq},
           {"dk", &args.dk},
           {"dv", &args.dv},
           {"dsinks", &args.dsinks},
           {"dbias", &args.dbias}}};
}

}  // namespace onepass::verify
