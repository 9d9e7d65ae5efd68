// Results, values and exceptions of an installed onepass, all across the border of a shared library.
#include <onepass/attention.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace {

int failures = 0;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "consumer: not so: %s\n", what);
  ++failures;
}

}  // namespace

int main() {
  expect(std::string_view(onepass::version()) == ONEPASS_VERSION_STRING,
         "headers and library have one version");

  // q = 0: the mean of the visible values 1, 2, 3.
  const std::vector<float> q(2 * 8, 0.0f), k(3 * 8, 1.0f);
  std::vector<float> v(3 * 8), out(2 * 8), lse(2);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / 8 + 1);
  onepass::ForwardArguments args;
  args.q = onepass::make_view(q.data(), onepass::DType::F32, {1, 2, 1, 8});
  args.k = onepass::make_view(k.data(), onepass::DType::F32, {1, 3, 1, 8});
  args.v = onepass::make_view(v.data(), onepass::DType::F32, {1, 3, 1, 8});
  args.out = onepass::make_view(out.data(), onepass::DType::F32, {1, 2, 1, 8});
  args.softmax_lse = onepass::make_view(lse.data(), onepass::DType::F32, {1, 1, 2});
  onepass::ForwardOptions options;
  options.causal = onepass::Causal::BottomRight;
  onepass::forward(args, options);
  expect(std::abs(out.front() - 1.5f) < 1e-6f && std::abs(out.back() - 2.0f) < 1e-6f, "out is the mean of V");
  expect(std::abs(lse[1] - std::log(3.0f)) < 1e-6f, "lse is the logarithm of the count");

  const onepass::Plan plan = onepass::plan(args, options);
  const onepass::Plan copy = plan;
  expect(!copy.explain().empty() && copy.workspace_bytes() == plan.workspace_bytes(), "plans are values");

  try {
    args.k = {};
    onepass::forward(args, options);
    expect(false, "a missing tensor throws");
  } catch (const onepass::NotSupported&) {
    expect(false, "it is not NotSupported");
  } catch (const onepass::InvalidArgument& error) {
    expect(std::string(error.what()).find("k is missing") != std::string::npos,
           "the message names the tensor");
  }
  return failures == 0 ? 0 : 1;
}
