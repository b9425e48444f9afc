// The DeviceGraph of CUDA: PyTorch's own, so that what it records may draw random numbers and use its libraries as in
// any program. Recorded on a stream of its own, launched on the current one.
#include <map>
#include <optional>

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "aten/device_hook.h"

namespace stepc {

namespace {
// One a thread and device: cuBLAS has a workspace for every stream.
c10::cuda::CUDAStream recording_stream(c10::DeviceIndex device) {
  thread_local std::map<c10::DeviceIndex, c10::cuda::CUDAStream> streams;
  const auto found = streams.find(device);
  if (found != streams.end()) return found->second;
  return streams.emplace(device, c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device)).first->second;
}

template <class Call>
void without_error(const Call& call) noexcept {
  try {
    call();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): nothing more can be done
  }
}

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(c10::DeviceIndex device) : device_(device) {}

  void begin() override {
    const c10::cuda::CUDAGuard device(device_);
    // What came before is done: nothing of it may become part of the recording.
    c10::cuda::getCurrentCUDAStream(device_).synchronize();
    on_stream_.emplace(recording_stream(device_));
    // Workspaces of this stream, which outlive the graph.
    static_cast<void>(at::cuda::getCurrentCUDABlasHandle());
    static_cast<void>(at::cuda::getCUDABlasLtWorkspace());
    is_recording_ = true;
    graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
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
      // Its last steps were not reached: the allocators still take memory for the graph, and the generator still counts
      // for it. One in the same state that does not takes its place.
      namespace caching = c10::cuda::CUDACachingAllocator;
      without_error([&] { caching::endAllocateToPool(device_, pool_); });
      without_error([&] { caching::releasePool(device_, pool_); });
      without_error([&] { at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool_); });
      without_error([&] { at::getHostAllocator(at::kCUDA)->release_pool(pool_); });
      without_error([&] {
        at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device_);
        generator.graphsafe_set_state(generator.clone());
      });
    }
    on_stream_.reset();
    static_cast<void>(cudaGetLastError());
  }

  void launch() override { graph_.replay(); }

 private:
  c10::DeviceIndex device_;
  c10::MempoolId_t pool_ = at::cuda::graph_pool_handle();
  at::cuda::CUDAGraph graph_;
  std::optional<c10::cuda::CUDAStreamGuard> on_stream_;
  bool is_recording_ = false;
};
}  // namespace

extern "C" __attribute__((visibility("default"))) void* stepc_cuda_stream(const c10::Stream& stream) {
  return c10::cuda::CUDAStream(stream).stream();
}

extern "C" __attribute__((visibility("default"))) DeviceGraph* stepc_cuda_make_graph(c10::DeviceIndex device) {
  return new CudaGraph(device);
}

}  // namespace stepc
