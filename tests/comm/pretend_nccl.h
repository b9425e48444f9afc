// NCCL for ranks that are threads, on the emulated device, to test what calls it: messages between ranks wait in
// queues, and a group of calls is done when it ends. A world whose rank died says so as NCCL does, at some time later.
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "comm/nccl.h"

namespace stepc::pretend_nccl {

inline const c10::Device kDevice(c10::kPrivateUse1, 0);
inline int g_stream;  // the only stream

struct World {
  std::mutex mutex;
  std::condition_variable comes;
  std::map<std::pair<int, int>, std::deque<at::Tensor>> sent;  // from, to
  bool has_dead = false;
};
struct Rank {
  std::shared_ptr<World> world;
  int rank = 0, ranks = 0;
  bool has_failed = false, is_aborted = false;
};
inline std::mutex g_mutex;
inline std::map<std::string, std::shared_ptr<World>> g_worlds;  // by id
inline thread_local std::vector<std::function<void()>> t_sends, t_receives;

inline Rank& rank_of(Nccl::Comm* comm) { return *reinterpret_cast<Rank*>(comm); }
inline at::Tensor on_device(const void* memory, size_t count, at::ScalarType type) {
  const auto options = at::TensorOptions(kDevice).dtype(type);
  return at::for_blob(const_cast<void*>(memory), {static_cast<int64_t>(count)})
      .options(options)
      .target_device(kDevice)
      .make_tensor();
}
inline at::ScalarType type_of(Nccl::Type type) {
  static const std::map<int, at::ScalarType> types = {{Nccl::kInt8, at::kChar},      {Nccl::kUint8, at::kByte},
                                                      {Nccl::kInt32, at::kInt},      {Nccl::kInt64, at::kLong},
                                                      {Nccl::kFloat16, at::kHalf},   {Nccl::kFloat32, at::kFloat},
                                                      {Nccl::kFloat64, at::kDouble}, {Nccl::kBfloat16, at::kBFloat16}};
  return types.at(type);
}

// As if a rank of every world had ended.
inline void die_everywhere() {
  const std::scoped_lock lock(g_mutex);
  for (auto& [id, world] : g_worlds) {
    const std::scoped_lock one(world->mutex);
    world->has_dead = true;
    world->comes.notify_all();
  }
  g_worlds.clear();
}
inline void push(Rank& from, int to, const at::Tensor& what) {
  const std::scoped_lock lock(from.world->mutex);
  from.world->sent[{from.rank, to}].push_back(what);
  from.world->comes.notify_all();
}
inline at::Tensor pop(Rank& to, int from) {  // none: it will not come
  std::unique_lock lock(to.world->mutex);
  auto& queue = to.world->sent[{from, to.rank}];
  to.world->comes.wait(lock, [&] { return !queue.empty() || to.world->has_dead; });
  if (queue.empty()) {
    to.has_failed = true;
    return {};
  }
  at::Tensor what = queue.front();
  queue.pop_front();
  return what;
}
inline at::Tensor reduced(Rank& to, Nccl::Op op) {
  at::Tensor sum;
  for (int k = 0; k < to.ranks; ++k) {
    const at::Tensor part = pop(to, k);
    if (!part.defined()) return {};
    if (!sum.defined())
      sum = part.clone();
    else
      sum = op == Nccl::kSum ? sum + part : op == Nccl::kMax ? at::maximum(sum, part) : at::minimum(sum, part);
  }
  return sum;
}
inline void put(const at::Tensor& to, const at::Tensor& what) {
  if (what.defined()) to.copy_(what);
}
inline Nccl::Result done(Nccl::Stream stream) { return stream == &g_stream ? Nccl::kSuccess : Nccl::Result{4}; }

inline Nccl table() {
  Nccl nccl;
  nccl.get_unique_id = [](Nccl::Id* id) {
    static int count = 0;
    const std::scoped_lock lock(g_mutex);
    std::strcpy(id->bytes, std::to_string(++count).c_str());
    return Nccl::kSuccess;
  };
  nccl.init_rank = [](Nccl::Comm** comm, int ranks, Nccl::Id id, int rank) {
    const std::scoped_lock lock(g_mutex);
    auto& world = g_worlds[id.bytes];
    if (!world) world = std::make_shared<World>();
    *comm = reinterpret_cast<Nccl::Comm*>(new Rank{world, rank, ranks});
    return Nccl::kSuccess;
  };
  nccl.destroy = [](Nccl::Comm* comm) {
    delete &rank_of(comm);
    return Nccl::kSuccess;
  };
  nccl.abort = [](Nccl::Comm* comm) {  // kept, for the test to look at
    rank_of(comm).is_aborted = true;
    return Nccl::kSuccess;
  };
  nccl.async_error = [](Nccl::Comm* comm, Nccl::Result* result) {
    const std::scoped_lock lock(rank_of(comm).world->mutex);
    *result = rank_of(comm).world->has_dead ? Nccl::kRemoteError : Nccl::kSuccess;
    return Nccl::kSuccess;
  };
  nccl.error_string = [](Nccl::Result result) {
    return result == Nccl::kRemoteError ? "remote process exited" : "another error";
  };
  nccl.group_start = [] { return t_sends.empty() && t_receives.empty() ? Nccl::kSuccess : Nccl::Result{5}; };
  nccl.group_end = [] {
    for (const auto& one : std::exchange(t_sends, {})) one();
    for (const auto& one : std::exchange(t_receives, {})) one();
    return Nccl::kSuccess;
  };
  nccl.all_gather = [](const void* from, void* to, size_t count, Nccl::Type type, Nccl::Comm* comm,
                       Nccl::Stream stream) {
    Rank& rank = rank_of(comm);
    const at::Tensor own = on_device(from, count, type_of(type)).cpu();
    const at::Tensor all = on_device(to, count * static_cast<size_t>(rank.ranks), type_of(type)).view({rank.ranks, -1});
    t_sends.push_back([&rank, own] {
      for (int k = 0; k < rank.ranks; ++k) push(rank, k, own);
    });
    t_receives.push_back([&rank, all] {
      for (int k = 0; k < rank.ranks; ++k) put(all[k], pop(rank, k));
    });
    return done(stream);
  };
  nccl.reduce_scatter = [](const void* from, void* to, size_t count, Nccl::Type type, Nccl::Op op, Nccl::Comm* comm,
                           Nccl::Stream stream) {
    Rank& rank = rank_of(comm);
    const at::Tensor parts =
        on_device(from, count * static_cast<size_t>(rank.ranks), type_of(type)).cpu().view({rank.ranks, -1});
    const at::Tensor result = on_device(to, count, type_of(type));
    t_sends.push_back([&rank, parts] {
      for (int k = 0; k < rank.ranks; ++k) push(rank, k, parts[k]);
    });
    t_receives.push_back([&rank, result, op] { put(result, reduced(rank, op)); });
    return done(stream);
  };
  nccl.all_reduce = [](const void* from, void* to, size_t count, Nccl::Type type, Nccl::Op op, Nccl::Comm* comm,
                       Nccl::Stream stream) {
    Rank& rank = rank_of(comm);
    const at::Tensor own = on_device(from, count, type_of(type)).cpu(), result = on_device(to, count, type_of(type));
    t_sends.push_back([&rank, own] {
      for (int k = 0; k < rank.ranks; ++k) push(rank, k, own);
    });
    t_receives.push_back([&rank, result, op] { put(result, reduced(rank, op)); });
    return done(stream);
  };
  nccl.broadcast = [](const void* from, void* to, size_t count, Nccl::Type type, int root, Nccl::Comm* comm,
                      Nccl::Stream stream) {
    Rank& rank = rank_of(comm);
    const at::Tensor own = on_device(from, count, type_of(type)).cpu(), result = on_device(to, count, type_of(type));
    if (rank.rank == root)
      t_sends.push_back([&rank, own] {
        for (int k = 0; k < rank.ranks; ++k) push(rank, k, own);
      });
    t_receives.push_back([&rank, result, root] { put(result, pop(rank, root)); });
    return done(stream);
  };
  nccl.send = [](const void* from, size_t count, Nccl::Type type, int to, Nccl::Comm* comm, Nccl::Stream stream) {
    Rank& rank = rank_of(comm);
    const at::Tensor own = on_device(from, count, type_of(type)).cpu();
    t_sends.push_back([&rank, own, to] { push(rank, to, own); });
    return done(stream);
  };
  nccl.receive = [](void* to, size_t count, Nccl::Type type, int from, Nccl::Comm* comm, Nccl::Stream stream) {
    Rank& rank = rank_of(comm);
    const at::Tensor result = on_device(to, count, type_of(type));
    t_receives.push_back([&rank, result, from] { put(result, pop(rank, from)); });
    return done(stream);
  };
  return nccl;
}

}  // namespace stepc::pretend_nccl
