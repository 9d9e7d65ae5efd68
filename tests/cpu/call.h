// A call whose tensors a test writes down by hand.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "tests/cpu/evaluate_once.h"
#include "tests/cpu/target.h"
#include "verify/host_tensor.h"
#include "verify/random.h"

namespace onepass {

using verify::constant;
using verify::HostTensor;

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Shapes of a dense call.
struct Sizes {
  std::int64_t batch = 1, seqlen_q = 1, seqlen_k = 1;
  std::int64_t num_heads_q = 1, num_heads_k = 1;
  std::int64_t head_dim = 4, head_dim_v = 4;
};

/// Element idx of a tensor is the index of its row (dimension `dim`) plus one, in all channels: O names the
/// keys seen.
inline auto row_number(std::size_t dim) {
  return [dim](std::span<const std::int64_t> idx) { return idx[dim] + 1; };
}

inline auto noise(std::int64_t seed, double mean = 0.5) {
  return [random = verify::Random{seed}, mean](std::span<const std::int64_t>) mutable {
    return mean + random.normal();
  };
}

struct Call {
  ForwardArguments args;
  ForwardOptions options;

  /// Holds on to the tensor and returns its view.
  TensorView keep(HostTensor tensor) {
    memory.push_back(std::move(tensor));
    return memory.back().view();
  }

  /// out and LSE, poisoned, in the shapes that q and v ask for.
  void allocate_outputs() {
    const auto& q = args.q;
    const std::int64_t head_dim_v = args.v.shape[static_cast<std::size_t>(args.v.rank - 1)];
    if (q.rank == 4) {
      args.out = keep(HostTensor(q.dtype, {q.shape[0], q.shape[1], q.shape[2], head_dim_v}));
      args.softmax_lse = keep(HostTensor(DType::F32, {q.shape[0], q.shape[2], q.shape[1]}));
    } else {
      args.out = keep(HostTensor(q.dtype, {q.shape[0], q.shape[1], head_dim_v}));
      args.softmax_lse = keep(HostTensor(DType::F32, {q.shape[1], q.shape[0]}));
    }
  }

  /// Runs into fresh outputs and holds the result to the float64 evaluation.
  void run(const Target& target) {
    allocate_outputs();
    run_on(target, args, options);
    const verify::CheckReport report = verify::judge(args, evaluate_once(args, options));
    EXPECT_TRUE(report.passed) << report.text();
    for (const HostTensor& tensor : memory) EXPECT_TRUE(tensor.memory().guards_intact());
  }

  float out(std::initializer_list<std::int64_t> idx) const { return element(args.out, idx); }
  float lse(std::initializer_list<std::int64_t> idx) const { return element(args.softmax_lse, idx); }

  static float element(const TensorView& view, std::initializer_list<std::int64_t> idx) {
    std::int64_t offset = 0;
    std::size_t dim = 0;
    for (const std::int64_t i : idx) offset += i * view.strides[dim++];
    return load_float(view.data, view.dtype, offset);
  }

  std::deque<HostTensor> memory;
};

/// q = 0, so that attention is uniform over the visible keys; k is noise; v row j = j + 1.
inline Call uniform_call(const Target& target, const Sizes& s) {
  Call call;
  call.args.q =
      call.keep(HostTensor(target.dtype, {s.batch, s.seqlen_q, s.num_heads_q, s.head_dim}, constant(0)));
  call.args.k =
      call.keep(HostTensor(target.dtype, {s.batch, s.seqlen_k, s.num_heads_k, s.head_dim}, noise(1)));
  call.args.v =
      call.keep(HostTensor(target.dtype, {s.batch, s.seqlen_k, s.num_heads_k, s.head_dim_v}, row_number(1)));
  return call;
}

/// Row i of sequence 0 and head 0 has these values in every channel, and this LSE.
inline void expect_rows(const Call& call, const Target& target, const std::vector<double>& out,
                        const std::vector<double>& lse) {
  const std::int64_t head_dim_v = call.args.out.shape[static_cast<std::size_t>(call.args.out.rank - 1)];
  for (std::size_t n = 0; n < out.size(); ++n) {
    const auto i = static_cast<std::int64_t>(n);
    const bool packed = call.args.out.rank == 3;
    for (std::int64_t d = 0; d < head_dim_v; ++d) {
      const float got = packed ? call.out({i, 0, d}) : call.out({0, i, 0, d});
      EXPECT_NEAR(got, out[n], target.near(out[n])) << "row " << i << " channel " << d;
    }
    const float got = packed ? call.lse({0, i}) : call.lse({0, 0, i});
    if (std::isinf(lse[n])) {
      EXPECT_EQ(got, static_cast<float>(lse[n])) << "row " << i;
    } else {
      EXPECT_NEAR(got, lse[n], 2e-6 * (1 + std::abs(lse[n]))) << "row " << i;
    }
  }
}

/// Bytes of a contiguous view, for comparisons bit for bit.
inline std::vector<unsigned char> bytes_of(const TensorView& view) {
  std::vector<unsigned char> bytes(static_cast<std::size_t>(view.num_elements() * dtype_bytes(view.dtype)));
  if (!bytes.empty()) std::memcpy(bytes.data(), view.data, bytes.size());
  return bytes;
}

}  // namespace onepass
