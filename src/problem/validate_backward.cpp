// Rules of a backward call: those of the forward call that it belongs to, and of the tensors beside it.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "problem/checker.h"
#include "problem/validate.h"
#include "support/message.h"

namespace onepass {
namespace {

using Named = NamedView;

/// The tensors that a backward call has beside those of its forward call.
std::array<Named, 7> gradient_tensors(const BackwardArguments& a) {
  return {{{"dout", a.dout},
           {"dlse", a.dlse},
           {"dq", a.dq},
           {"dk", a.dk},
           {"dv", a.dv},
           {"dsinks", a.dsinks},
           {"dbias", a.dbias}}};
}

class BackwardValidator {
 public:
  BackwardValidator(const char* call, const BackwardArguments& args, const ForwardOptions& options)
      : call_(call), check_(call), args_(args), p_(validate_problem(call, args.forward, options)) {}

  AttentionProblem problem() {
    support();
    tensors();
    inputs();
    outputs();
    p_.gradient = g_;
    return p_;
  }

 private:
  void support() const {
    const auto refuse = [&](const std::string& given, const std::string& fix) {
      throw NotSupported(format_message(
          call_, given, "gradients of dense or packed keys in q's dtype, without descale factors", fix));
    };
    if (p_.k_layout == SequenceLayout::Paged) {
      refuse("keys are paged (block_table is given)", "gather the keys and values into packed or dense ones");
    }
    if (p_.kv_dtype != p_.q_dtype) {
      refuse(fmt::format("k is {}", dtype_name(p_.kv_dtype)), "convert k and v to q's dtype");
    }
    if (p_.has_k_descale || p_.has_v_descale) {
      refuse(fmt::format("{} is given", p_.has_k_descale ? "k_descale" : "v_descale"),
             "multiply k and v by their factors");
    }
  }

  void tensors() const {
    check_.present({"softmax_lse", args_.forward.softmax_lse}, "what forward() wrote");
    check_.present({"dout", args_.dout}, "the gradient with respect to out");
    check_.present({"dq", args_.dq}, "where q's gradient goes");
    check_.present({"dk", args_.dk}, "where k's gradient goes");
    check_.present({"dv", args_.dv}, "where v's gradient goes");
    for (const Named& t : gradient_tensors(args_)) {
      check_.sane(t);
      check_.same_device(t, {"q", args_.forward.q});
    }
  }

  /// `t` has the shape of `model`.
  void shape_of(Named t, Named model) const {
    if (t.view.rank != model.view.rank) {
      check_.fail(fmt::format("{} {} has {} dimensions", t.name, shape_string(t.view), t.view.rank),
                  fmt::format("the shape of {}, which is {}", model.name, shape_string(model.view)),
                  fmt::format("pass {} in that shape", t.name));
    }
    for (int i = 0; i < model.view.rank; ++i) {
      check_.extent(t, i, model.view.shape[static_cast<std::size_t>(i)],
                    [&] { return fmt::format("{} is {}", model.name, shape_string(model.view)); });
    }
  }

  void inputs() {
    const ForwardArguments& f = args_.forward;
    check_.dtype({"dout", args_.dout}, {p_.q_dtype}, "out's dtype");
    shape_of({"dout", args_.dout}, {"out", f.out});
    g_.dout = strides_of(args_.dout);
    g_.has_dlse = args_.dlse.present();
    if (g_.has_dlse) {
      check_.dtype({"dlse", args_.dlse}, {DType::F32}, "statistics are f32");
      shape_of({"dlse", args_.dlse}, {"softmax_lse", f.softmax_lse});
    }
  }

  void output(Named t, Named model) const {
    shape_of(t, model);
    check_.writable_strides(t);
  }

  void outputs() {
    const ForwardArguments& f = args_.forward;
    for (const auto& [t, model] : {std::pair{Named{"dq", args_.dq}, Named{"q", f.q}},
                                   std::pair{Named{"dk", args_.dk}, Named{"k", f.k}},
                                   std::pair{Named{"dv", args_.dv}, Named{"v", f.v}}}) {
      check_.dtype(t, {p_.q_dtype}, "q's dtype");
      output(t, model);
    }
    g_.dq = strides_of(args_.dq);
    g_.dk = strides_of(args_.dk);
    g_.dv = strides_of(args_.dv);
    g_.has_dsinks = args_.dsinks.present();
    if (g_.has_dsinks) {
      belongs_to({"dsinks", args_.dsinks}, {"sinks", f.sinks});
      check_.dtype({"dsinks", args_.dsinks}, {DType::F32}, "sinks are f32");
      output({"dsinks", args_.dsinks}, {"sinks", f.sinks});
    }
    g_.has_dbias = args_.dbias.present();
    if (g_.has_dbias) {
      belongs_to({"dbias", args_.dbias}, {"bias", f.bias});
      check_.dtype({"dbias", args_.dbias}, {DType::F32, p_.bias_dtype}, "f32 or bias's dtype");
      output({"dbias", args_.dbias}, {"bias", f.bias});
      g_.dbias_dtype = args_.dbias.dtype;
      std::copy_n(args_.dbias.shape.begin(), g_.dbias_shape.size(), g_.dbias_shape.begin());
    }
  }

  void belongs_to(Named gradient, Named input) const {
    if (input.view.present()) return;
    check_.fail(fmt::format("{} is given, but the forward call has no {}", gradient.name, input.name),
                fmt::format("{} where forward() had {}", gradient.name, input.name),
                fmt::format("leave {} out, or pass {}", gradient.name, input.name));
  }

  const char* call_;
  Checker check_;
  const BackwardArguments& args_;
  AttentionProblem p_;
  GradientProblem g_;
};

/// No output starts where another tensor of the call starts: inputs are read again while outputs are written.
void check_apart(const Checker& check, const BackwardArguments& args) {
  const ForwardArguments& f = args.forward;
  const std::array<Named, 13> all = {{{"dq", args.dq},
                                      {"dk", args.dk},
                                      {"dv", args.dv},
                                      {"dsinks", args.dsinks},
                                      {"dbias", args.dbias},
                                      {"q", f.q},
                                      {"k", f.k},
                                      {"v", f.v},
                                      {"out", f.out},
                                      {"softmax_lse", f.softmax_lse},
                                      {"bias", f.bias},
                                      {"dout", args.dout},
                                      {"dlse", args.dlse}}};
  constexpr std::size_t kOutputs = 5;
  for (std::size_t i = 0; i < kOutputs; ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      const TensorView &a = all[i].view, &b = all[j].view;
      if (a.num_elements() == 0 || b.num_elements() == 0 || a.data != b.data) continue;
      check.fail(fmt::format("{} and {} start at the same address", all[i].name, all[j].name),
                 "gradients in memory of their own: inputs are read again while they are written",
                 fmt::format("allocate a separate {}", all[i].name));
    }
  }
}

}  // namespace

AttentionProblem validate_problem(const char* call, const BackwardArguments& args,
                                  const ForwardOptions& options) {
  return BackwardValidator(call, args, options).problem();
}

void validate_run(const char* call, const AttentionProblem& problem, const BackwardArguments& args) {
  validate_same(call, problem, validate_problem(call, args, options_of(problem)));
  validate_data(call, problem, args);
}

void validate_data(const char* call, const AttentionProblem& problem, const BackwardArguments& args) {
  const Checker check(call);
  validate_forward_data(call, problem, args.forward);
  for (const Named& t : gradient_tensors(args)) check.address(t);
  check_apart(check, args);
}

}  // namespace onepass
