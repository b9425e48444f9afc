// libstepc_cuda.so: what needs PyTorch's CUDA headers. It is opened when a step first touches a CUDA tensor
// (aten/device_hook.cpp), so that stepc itself runs where no CUDA library is.
#include <atomic>
#include <utility>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/version.h>

#include "aten/device_hook.h"

namespace stepc {

namespace {
namespace caching = c10::cuda::CUDACachingAllocator;

// Hands on all but what `allocate` answers and has wrapped.
class CudaHook final : public caching::CUDAAllocator {
 public:
  CudaHook(caching::CUDAAllocator* base, DeviceAllocate* allocate, DeviceUnwrap* unwrap)
      : base_(base), allocate_(allocate), unwrap_(unwrap) {}

  c10::DataPtr allocate(size_t bytes) override { return allocate_(*base_, c10::kCUDA, bytes); }
  void recordStream(const c10::DataPtr& memory, c10::cuda::CUDAStream stream) override {
    base_->recordStream(unwrap_(memory), stream);
  }

  c10::DeleterFnPtr raw_deleter() const override { return base_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { base_->copy_data(to, from, bytes); }
  bool initialized() override { return base_->initialized(); }
  void emptyCache(c10::MempoolId_t pool) override { base_->emptyCache(pool); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return base_->getDeviceStats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { base_->resetAccumulatedStats(device); }
  void resetPeakStats(c10::DeviceIndex device) override { base_->resetPeakStats(device); }
  void* raw_alloc(size_t bytes) override { return base_->raw_alloc(bytes); }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    return base_->raw_alloc_with_stream(bytes, stream);
  }
  void raw_delete(void* memory) override { base_->raw_delete(memory); }
  void init(int devices) override { base_->init(devices); }
  double getMemoryFraction(c10::DeviceIndex device) override { return base_->getMemoryFraction(device); }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    base_->setMemoryFraction(fraction, device);
  }
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override {
    return base_->getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { base_->enable(value); }
  bool isEnabled() const override { return base_->isEnabled(); }
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override { base_->cacheInfo(device, largest); }
  void* getBaseAllocation(void* memory, size_t* bytes) override { return base_->getBaseAllocation(memory, bytes); }
  caching::SnapshotInfo snapshot(c10::MempoolId_t pool, bool traces) override { return base_->snapshot(pool, traces); }
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    base_->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    base_->endAllocateToPool(device, pool);
  }
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override { base_->releasePool(device, pool); }
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    return base_->getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                          std::shared_ptr<CUDAAllocator> allocator) override {
    base_->createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use) override {
    base_->setUseOnOOM(device, pool, use);
  }
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override { base_->setNoSplit(device, pool); }
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return base_->checkPoolLiveAllocations(device, pool, expected);
  }
  caching::ShareableHandle shareIpcHandle(void* memory) override { return base_->shareIpcHandle(memory); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return base_->getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return base_->isHistoryEnabled(); }
  void recordHistory(bool enabled, caching::CreateContextFn context, size_t entries, caching::RecordContext when,
                     bool clear, const std::vector<std::string>& skip) override {
    base_->recordHistory(enabled, context, entries, when, clear, skip);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& notes) override {
    base_->recordAnnotation(notes);
  }
  void pushCompileContext(std::string& context) override { base_->pushCompileContext(context); }
  void popCompileContext() override { base_->popCompileContext(); }
  void setUserMetadata(const std::string& data) override { base_->setUserMetadata(data); }
  std::string getUserMetadata() override { return base_->getUserMetadata(); }
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    base_->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override {
    base_->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(c10::DeviceIndex from, c10::DeviceIndex to) override { base_->enablePeerAccess(from, to); }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream,
                          bool peers) override {
    return base_->memcpyAsync(to, to_device, from, from_device, bytes, stream, peers);
  }
  std::shared_ptr<caching::AllocatorState> getCheckpointState(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    return base_->getCheckpointState(device, pool);
  }
  caching::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                                  std::shared_ptr<caching::AllocatorState> state) override {
    return base_->setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return base_->name(); }

  // What later versions of PyTorch have added. The base class answers by itself where a call is not handed on.
#if TORCH_VERSION_MINOR >= 12
  void attachOomRejectionObserver(caching::OomRejectionObserver observer) override {
    base_->attachOomRejectionObserver(std::move(observer));
  }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* memory) override {
    return base_->getContextForPointer(memory);
  }
#endif
#if TORCH_VERSION_MINOR >= 13
  void markCaptureBegin(c10::DeviceIndex device) override { base_->markCaptureBegin(device); }
  void markCaptureEnd(c10::DeviceIndex device) override { base_->markCaptureEnd(device); }
  // The step's memory is never placed at a wanted address.
  c10::DataPtr allocateWithAddress(size_t bytes, void* address) override {
    return base_->allocateWithAddress(bytes, address);
  }
#endif
#if TORCH_VERSION_MINOR >= 14
  bool supportsUserMetadata() override { return base_->supportsUserMetadata(); }
  void annotateMemory(const void* memory, const std::string& note) override { base_->annotateMemory(memory, note); }
#endif

 private:
  caching::CUDAAllocator* base_;
  DeviceAllocate* allocate_;
  DeviceUnwrap* unwrap_;
};
}  // namespace

extern "C" __attribute__((visibility("default"))) void stepc_install_cuda_hook(DeviceAllocate* allocate,
                                                                               DeviceUnwrap* unwrap) {
  auto* const hook =
      new CudaHook(caching::get(), allocate, unwrap);  // leaked: tensors are freed after static destructors
  caching::allocator.store(hook);
  c10::SetAllocator(c10::kCUDA, hook, 255);
}

}  // namespace stepc
