// The exchanges of tensors on CUDA devices, by NCCL: on a stream of their own, in the order in which they began. The
// host waits for none of them. Sums are NCCL's: the same bits on all ranks and in each run of the same machines, in the
// tensors' own dtype, so those of bf16 are rounded at each hop of a ring. Scratch memory is not used.
//
// NCCL does not say who is gone. A thread looks at what has begun; if that does not end in time, or NCCL reports an
// error, the exchange is given up, and the next call asks all ranks over the host's connections and names who is
// missing.
#pragma once

#include <functional>
#include <memory>

#include <c10/core/Stream.h>

#include "comm/exchanges.h"
#include "comm/nccl.h"
#include "comm/peers.h"

namespace stepc {

// What NCCL takes for a stream.
using NativeStream = std::function<Nccl::Stream(const c10::Stream&)>;

// All ranks of the group make it together, each with a device of its own; UserError where two have the same. Messages
// (begin_messages), which NCCL cannot tell apart by tags, go by way of `copied`. `peers` and `copied`
// outlive it.
std::unique_ptr<Exchanges> nccl_exchanges(Peers& peers, Exchanges& copied, const c10::Device& device, const Nccl& nccl,
                                          NativeStream native);

}  // namespace stepc
