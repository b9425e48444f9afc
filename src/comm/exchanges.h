// Exchanges: what a RankGroup does with tensors of one kind of memory. It has checked them: contiguous, all in that
// memory, of the sizes that its calls promise.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "comm/ranks.h"

namespace stepc {

class Peers;

// The end of an exchange. Dropped before end(), the group has lost its others.
struct InFlight::Works {
  Works() = default;
  virtual ~Works() = default;
  Works(const Works&) = delete;
  Works& operator=(const Works&) = delete;
  virtual void end() = 0;
};

class Exchanges {
 public:
  Exchanges() = default;
  virtual ~Exchanges() = default;
  Exchanges(const Exchanges&) = delete;
  Exchanges& operator=(const Exchanges&) = delete;

  // As RankGroup's.
  virtual InFlight begin_all_gather(at::TensorList operands, at::TensorList results) = 0;
  virtual InFlight begin_all_to_all(at::TensorList operands, at::TensorList results) = 0;
  virtual InFlight begin_rotate(at::TensorList operands, at::TensorList results, int64_t by) = 0;
  virtual InFlight begin_reduce_scatter(at::TensorList operands, at::TensorList results, ReduceOp how) = 0;
  // Sends `sent` to one rank and receives `received` from one. Of a group's messages one of the two is empty.
  virtual InFlight begin_messages(std::string_view what, at::TensorList sent, int64_t to, at::TensorList received,
                                  int64_t from, std::optional<int> tag) = 0;
  virtual void broadcast(at::TensorList tensors, int64_t from) = 0;
  virtual void reduce_scatter(at::TensorList operands, at::TensorList results, ReduceOp how, void* scratch,
                              uint64_t scratch_bytes) = 0;
  virtual void all_reduce(at::TensorList tensors, ReduceOp how, void* scratch, uint64_t scratch_bytes) = 0;
  // Throws LostRank where others are known to be lost; waits for nothing.
  virtual void check() {}
};

// The host's memory: directly from rank to rank. `peers` outlives it.
std::unique_ptr<Exchanges> host_exchanges(Peers& peers);
// A device's memory, by way of copies on the host: the same bits as there. `host`, of so many ranks, outlives it.
std::unique_ptr<Exchanges> copied_exchanges(Exchanges& host, int64_t ranks);

}  // namespace stepc
