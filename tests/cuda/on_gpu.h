// What the tests of GPU behaviour share. They are skipped, with the driver's reason, where there is no GPU.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <string>

#include "backends/cuda/host/driver.h"
#include "support/shared_object.h"
#include "tests/cpu/call.h"
#include "verify/gpu_call.h"

namespace onepass {

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::Driver::instance() == nullptr) GTEST_SKIP() << cuda::Driver::missing_reason();
  }
};

inline const Target kGpuTarget = {Backend::Cuda, "", DType::BF16};

/// q, k, v [batch, seqlen, heads, head_dim] of noise, and poisoned outputs.
inline Call noise_call(const Sizes& s) {
  Call call;
  call.args.q =
      call.keep(HostTensor(DType::BF16, {s.batch, s.seqlen_q, s.num_heads_q, s.head_dim}, noise(1)));
  call.args.k =
      call.keep(HostTensor(DType::BF16, {s.batch, s.seqlen_k, s.num_heads_k, s.head_dim}, noise(2)));
  call.args.v =
      call.keep(HostTensor(DType::BF16, {s.batch, s.seqlen_k, s.num_heads_k, s.head_dim_v}, noise(3)));
  call.allocate_outputs();
  return call;
}

/// The message of the InvalidArgument that `f` throws; empty, and a failure, when it throws none.
template <class F>
std::string refusal_of(F f) {
  try {
    f();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  ADD_FAILURE() << "no InvalidArgument";
  return {};
}

inline bool all_poison(const TensorView& view) {
  const std::vector<unsigned char> bytes = bytes_of(view);
  return std::all_of(bytes.begin(), bytes.end(), [](unsigned char c) { return c == verify::kPoison; });
}

/// Driver functions that only tests call.
struct TestDriver {
  cuda::CUresult (*cuCtxGetCurrent)(cuda::CUcontext*) = nullptr;
  cuda::CUresult (*cuStreamCreate)(cuda::CUstream*, unsigned flags) = nullptr;
  cuda::CUresult (*cuStreamDestroy_v2)(cuda::CUstream) = nullptr;

  TestDriver() {
    const SharedObject library("libcuda.so.1");
    EXPECT_TRUE(library.load(cuCtxGetCurrent, "cuCtxGetCurrent") &&
                library.load(cuStreamCreate, "cuStreamCreate") &&
                library.load(cuStreamDestroy_v2, "cuStreamDestroy_v2"));
  }
  cuda::CUcontext current_context() const {
    cuda::CUcontext context = nullptr;
    EXPECT_EQ(cuCtxGetCurrent(&context), 0);
    return context;
  }
};

/// A stream of GPU 0 that does not wait for the default stream.
class TestStream {
 public:
  TestStream() {
    const cuda::ContextScope context(*cuda::Driver::instance(), 0);
    EXPECT_EQ(driver_.cuStreamCreate(&stream_, /*CU_STREAM_NON_BLOCKING*/ 1), 0);
  }
  ~TestStream() {
    const cuda::ContextScope context(*cuda::Driver::instance(), 0);
    driver_.cuStreamDestroy_v2(stream_);
  }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;

  Stream stream() const { return {stream_}; }
  void wait() const {
    const cuda::ContextScope context(*cuda::Driver::instance(), 0);
    EXPECT_EQ(cuda::Driver::instance()->api().cuStreamSynchronize(stream_), 0);
  }

 private:
  TestDriver driver_;
  cuda::CUstream stream_ = nullptr;
};

}  // namespace onepass
