// NCCL, opened at run time: what stepc calls of it. These declarations have been NCCL's since version 2.7, so the
// library that PyTorch's wheel brings is called without its header.
#pragma once

#include <cstddef>

namespace stepc {

struct Nccl {
  struct Comm;  // its own
  struct Id {
    char bytes[128];
  };
  enum Result : int { kSuccess = 0, kRemoteError = 6, kInProgress = 7 };
  enum Op : int { kSum = 0, kMax = 2, kMin = 3 };
  enum Type : int {
    kInt8 = 0,
    kUint8 = 1,
    kInt32 = 2,
    kInt64 = 4,
    kFloat16 = 6,
    kFloat32 = 7,
    kFloat64 = 8,
    kBfloat16 = 9
  };
  using Stream = void*;  // cudaStream_t

  Result (*get_unique_id)(Id*) = nullptr;
  Result (*init_rank)(Comm**, int ranks, Id, int rank) = nullptr;
  Result (*destroy)(Comm*) = nullptr;
  Result (*abort)(Comm*) = nullptr;
  Result (*async_error)(Comm*, Result*) = nullptr;
  const char* (*error_string)(Result) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*all_gather)(const void*, void*, size_t sent, Type, Comm*, Stream) = nullptr;
  Result (*reduce_scatter)(const void*, void*, size_t received, Type, Op, Comm*, Stream) = nullptr;
  Result (*all_reduce)(const void*, void*, size_t, Type, Op, Comm*, Stream) = nullptr;
  Result (*broadcast)(const void*, void*, size_t, Type, int root, Comm*, Stream) = nullptr;
  Result (*send)(const void*, size_t, Type, int to, Comm*, Stream) = nullptr;
  Result (*receive)(void*, size_t, Type, int from, Comm*, Stream) = nullptr;

  // The system's. UserError where it cannot be opened.
  static const Nccl& library();
};

}  // namespace stepc
