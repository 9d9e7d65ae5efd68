// Names that device text uses for the machine's types; NVRTC has no standard headers.
#pragma once

namespace onepass::cuda {

using Uint32 = unsigned int;
using Uint64 = unsigned long long;
using Index64 = long long;

#define ONEPASS_DEVICE __device__ __forceinline__

/// 16-bit elements are storage only: arithmetic is f32 or inside mma.
struct Bf16 {
  unsigned short bits;
};
struct F16 {
  unsigned short bits;
};
/// 8-bit elements are stored only: products take them as f16 (ptx/convert.cuh).
struct E4m3 {
  unsigned char bits;
};
struct E5m2 {
  unsigned char bits;
};
struct I8 {
  unsigned char bits;
};

template <class T>
struct ElementTraits;

}  // namespace onepass::cuda
