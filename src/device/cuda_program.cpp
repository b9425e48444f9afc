// Generated kernels on CUDA, in the context and on the stream that PyTorch works with.
#include "device/cuda_program.h"

#include <vector>

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "aten/device_hook.h"

namespace stepc {

namespace {
const CudaDriver& driver() {
  static const auto* const kDriver = new CudaDriver(CudaDriver::OfCurrentContext());  // programs outlive static data
  return *kDriver;
}

std::vector<CudaDriver::Kernel> loaded(const DeviceCode& code) {
  void* const module = driver().load(code.machine_code);
  std::vector<CudaDriver::Kernel> kernels;
  for (const DeviceCode::Kernel& one : code.kernels)
    kernels.push_back(driver().kernel(module, one.name, one.blocks, one.threads, one.shared_bytes));
  return kernels;
}

class ProgramOfTorch final : public DeviceProgram {
 public:
  ProgramOfTorch(c10::DeviceIndex device, const DeviceCode& code) : device_(device), program_(driver(), loaded(code)) {}
  void launch(std::span<void* const> arguments) override {
    program_.launch(arguments, c10::cuda::getCurrentCUDAStream(device_).stream());
  }

 private:
  c10::DeviceIndex device_;
  CudaProgram program_;
};
}  // namespace

extern "C" __attribute__((visibility("default"))) DeviceProgram* stepc_cuda_load_program(c10::DeviceIndex device,
                                                                                         DeviceCode* code) {
  const c10::cuda::CUDAGuard on(device);
  c10::cuda::getCurrentCUDAStream(device).synchronize();  // makes the device's context current where none was
  return new ProgramOfTorch(device, *code);
}

}  // namespace stepc
