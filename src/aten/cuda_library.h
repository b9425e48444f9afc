// libstepc_cuda.so, in which everything is that needs PyTorch's CUDA headers. install_device_hook(kCUDA) opens it.
#pragma once

#include <c10/core/Stream.h>

namespace stepc {

// A function of it; nullptr where it cannot be opened, or is of another version.
void* cuda_symbol(const char* name);

// The CUDA stream (cudaStream_t) that PyTorch's stands for. UserError without the library.
void* native_stream(const c10::Stream& stream);

}  // namespace stepc
