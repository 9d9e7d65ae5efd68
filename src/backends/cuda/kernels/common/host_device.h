// host_device.h - marks functions that g++ and NVRTC both compile.
#pragma once

#if defined(__CUDACC__)
#define ONEPASS_HOST_DEVICE __host__ __device__
#else
#define ONEPASS_HOST_DEVICE
#endif
