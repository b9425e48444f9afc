// The kernels of a generated program on CUDA, which run one after the other. Needs the driver alone, so that tests
// launch them on a driver that is pretended.
#pragma once

#include <array>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/cuda_driver.h"

namespace stepc {

class CudaProgram {
 public:
  // `driver`, and what the kernels were loaded with, must outlive this object, and CUDA graphs that hold its launches.
  CudaProgram(const CudaDriver& driver, std::vector<CudaDriver::Kernel> kernels)
      : driver_(driver), kernels_(std::move(kernels)) {}

  // `arguments`: pointers on the device, which each kernel gets by value.
  void launch(std::span<void* const> arguments, void* stream) const {
    std::array<void*, kMostArguments> values;
    std::array<void*, kMostArguments> places;
    INTERNAL_CHECK(arguments.size() <= kMostArguments, "{} tensors of one kernel", arguments.size());
    for (size_t k = 0; k < arguments.size(); ++k) {
      values[k] = arguments[k];
      places[k] = &values[k];
    }
    for (const CudaDriver::Kernel& kernel : kernels_)
      driver_.launch(kernel, std::span(places.data(), arguments.size()), stream);
  }

 private:
  static constexpr size_t kMostArguments = 511;  // what every card takes: less than 4 KiB

  const CudaDriver& driver_;
  std::vector<CudaDriver::Kernel> kernels_;
};

}  // namespace stepc
