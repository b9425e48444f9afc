// Signature: everything outside a recording that decides what a step does: the batch's shapes, which gradients are
// required and exist, training flags, and the ambient state (threads, autocast, grad mode, determinism, matmul
// precision). Equal signatures may share a plan.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/program/program.h"
#include "engine/program/step_input.h"

namespace stepc {

// Compact and exact; compared byte by byte. `tensors` are the program's, by its keys.
std::string signature_of(const Program& program, const std::vector<at::Tensor>& tensors, const StepInput& input);

// Which of the program's tensors lie in one memory: weights that are tied, parameters in one flat buffer. Found anew
// where any lies elsewhere than at the last call.
class SharedMemory {
 public:
  // "head.weight=embedding.weight;" of all but gradients; exact, and for people too.
  const std::string& among(const Program& program, const std::vector<at::Tensor>& tensors);

 private:
  std::vector<const void*> memory_;  // by key
  std::string text_;
};

// The same in words, for log lines: "input_ids" -> "8x512", "threads" -> "2".
std::map<std::string, std::string> describe_signature(const Program& program, const std::vector<at::Tensor>& tensors,
                                                      const StepInput& input);

// "new shape: input_ids 8x512 -> 8x384": what separates `after` from `before`, in one line.
std::string explain_change(const std::map<std::string, std::string>& before,
                           const std::map<std::string, std::string>& after);

}  // namespace stepc
