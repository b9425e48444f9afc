// The DeviceGraph of CUDA: PyTorch's own, so that what it records may draw random numbers and use its libraries as in
// any program. Recorded on a stream of its own, launched on the current one.
#include <optional>

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "aten/device_hook.h"

namespace stepc {

namespace {
class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(c10::DeviceIndex device) : device_(device) {}

  void begin() override {
    const c10::cuda::CUDAGuard device(device_);
    const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device_);
    // What came before is done: nothing of it may become part of the recording.
    c10::cuda::getCurrentCUDAStream(device_).synchronize();
    on_stream_.emplace(stream);
    is_recording_ = true;
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  }

  void end() override {
    graph_.capture_end();
    is_recording_ = false;
    on_stream_.reset();
  }

  void abandon() noexcept override {
    if (!is_recording_) return;
    is_recording_ = false;
    try {
      graph_.capture_end();
    } catch (const std::exception&) {
      // Its last steps were not reached: the allocator still takes memory for the graph, and the generator still counts
      // for it. One in the same state that does not takes its place.
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, graph_.pool());
      try {
        at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device_);
        generator.graphsafe_set_state(generator.clone());
      } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): nothing more can be done
      }
    }
    on_stream_.reset();
    static_cast<void>(cudaGetLastError());
  }

  void launch() override { graph_.replay(); }

 private:
  c10::DeviceIndex device_;
  at::cuda::CUDAGraph graph_;
  std::optional<c10::cuda::CUDAStreamGuard> on_stream_;
  bool is_recording_ = false;
};
}  // namespace

extern "C" __attribute__((visibility("default"))) DeviceGraph* stepc_make_cuda_graph(c10::DeviceIndex device) {
  return new CudaGraph(device);
}

}  // namespace stepc
