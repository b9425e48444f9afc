#include "comm/nccl.h"

#include <dlfcn.h>

#include "base/check.h"

namespace stepc {

namespace {

Nccl opened() {
  void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);  // stays open; PyTorch's, where that is loaded
  USER_CHECK(library != nullptr, "ranks on CUDA devices need NCCL, which PyTorch's wheels for CUDA bring: {}",
             ::dlerror());
  const auto take = [&](auto& function, const char* name) {
    void* const found = ::dlsym(library, name);
    USER_CHECK(found != nullptr, "libnccl.so.2 has no {}: it is older than NCCL 2.7", name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  Nccl nccl;
  take(nccl.get_unique_id, "ncclGetUniqueId");
  take(nccl.init_rank, "ncclCommInitRank");
  take(nccl.destroy, "ncclCommDestroy");
  take(nccl.abort, "ncclCommAbort");
  take(nccl.async_error, "ncclCommGetAsyncError");
  take(nccl.error_string, "ncclGetErrorString");
  take(nccl.group_start, "ncclGroupStart");
  take(nccl.group_end, "ncclGroupEnd");
  take(nccl.all_gather, "ncclAllGather");
  take(nccl.reduce_scatter, "ncclReduceScatter");
  take(nccl.all_reduce, "ncclAllReduce");
  take(nccl.broadcast, "ncclBroadcast");
  take(nccl.send, "ncclSend");
  take(nccl.receive, "ncclRecv");
  return nccl;
}

}  // namespace

const Nccl& Nccl::library() {
  static const Nccl nccl = opened();
  return nccl;
}

}  // namespace stepc
