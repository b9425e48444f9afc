// The proof of a new plan: its first replay against eager, bit by bit. The eager step is the one that counts, so
// effects happen once and a wrong plan changes nothing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "capture/recorder.h"
#include "runtime/executable.h"

namespace stepc {

struct Verification {
  std::string difference;           // empty: the replay is bit-equal to eager
  std::vector<at::Tensor> outputs;  // eager's
  MemoryCounts memory;              // of the replay
  uint64_t snapshot_bytes = 0;      // what the comparison itself held
};

// `externals` are the program's tensors in the order of the trace; `list_owned` and `step` as for record().
Verification verify_replay(Executable& executable, const std::vector<at::Tensor>& externals,
                           const std::function<std::vector<OwnedTensor>()>& list_owned,
                           const std::function<std::vector<at::Tensor>()>& step);

}  // namespace stepc
