// Capture by recording: runs a step eagerly and writes down every ATen call, alias and allocation as a Trace. Sits
// below autograd and autocast (DispatchKey::Fake, included for the recording thread alone), so it sees the forward
// pass, the backward pass and the update alike, and changes nothing about how they run: it holds no tensor, only weak
// references to storages. All state belongs to one recording and travels with ThreadLocalState to autograd's threads.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ir/trace.h"

namespace stepc {

// A tensor that the program owns, as found right now. Undefined gradients are listed too.
struct OwnedTensor {
  Owner owner = Owner::kCaptured;
  std::string key;
  at::Tensor tensor;
};

struct Recording {
  Trace trace;
  // The step's own results, detached. They are the program's: nothing else refers to them.
  std::vector<at::Tensor> outputs;
  // Why the trace must not be replayed, one sentence each with the op and the module; empty if it may be.
  std::vector<std::string> obstacles;
  uint64_t peak_bytes = 0;      // largest sum of live bytes that the eager step allocated
  double overhead_seconds = 0;  // spent recording, kernels excluded
};

// Runs `step` once, recording. `list_owned` gives the program's tensors: it is asked before and after the step, because
// gradients come and go and a parameter may be given other storage inside it. Whatever `step` throws passes through,
// with the recorder taken down. Throws UserError when another library owns the dispatch key, or inside another
// recording.
Recording record(const std::function<std::vector<OwnedTensor>()>& list_owned,
                 const std::function<std::vector<at::Tensor>()>& step);

// Takes the dispatch key for this process; record() does it too. Idempotent.
void install_recorder();

// True while the calling thread records.
bool is_recording();

}  // namespace stepc
