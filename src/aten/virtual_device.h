// An NVIDIA GPU that is not there: "cuda:0" on a machine without a driver, for programs that are planned and not run.
// Its tensors have sizes and no memory (virtual_memory.h), or, where they are small and known, memory of the host;
// PyTorch finds one device with one stream, one generator and the attention kernels that it has for such a card.
// Nothing runs there but what VirtualKernels runs on the host.
//
// Depends on LibTorch internals: the table of device guards, the hooks of CUDA, which have no data and are asked
// through their table of virtual functions, and the stub that chooses attention's kernel.
#pragma once

#include <string>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace stepc {

inline const c10::Device kVirtualDevice(c10::kCUDA, 0);

// For the life of the process; `sm` is the card's compute capability, 90. Returns why it cannot be; empty: it is there.
std::string install_virtual_device(int sm);
bool has_virtual_device();
bool is_on_virtual_device(const c10::Device& device);

// As those of virtual_memory.h, on `device`.
c10::Storage virtual_storage(size_t bytes, const c10::Device& device);
at::Tensor virtual_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype,
                          const c10::Device& device);

// PyTorch's default generator of the device: a seed and an offset, from which nothing is drawn.
at::Generator virtual_generator();

// The memory of a known tensor on the device as a CPU tensor, of an unknown one as one without memory, of a tensor on a
// device that is there a copy; and of a CPU tensor as one on the device.
at::Tensor on_host(const at::Tensor& tensor);
at::Tensor on_virtual_device(const at::Tensor& tensor);

}  // namespace stepc
