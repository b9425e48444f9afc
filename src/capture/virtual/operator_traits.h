// What virtual capture has to know of an operator before it decides how to run a call of it: read once from its schema
// and tags, and from the short lists of what those do not say.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace stepc {

struct OperatorTraits {
  std::string name;
  bool takes_tensors = false;
  bool metadata_only = false;  // a view, a change of a tensor's window, or a question about shapes: reads no memory
  bool fills = false;          // a factory: its values depend on no tensor's values
  bool draws = false;          // takes random numbers; see really_draws()
  bool reads_values = false;   // returns, or shapes its results by, values of its arguments
  std::vector<size_t> writes;  // arguments that it changes, undeclared ones too
  std::vector<size_t> outs;    // those of them that it resizes to its result
  std::vector<int> returned;   // for each result the argument that it is, -1: a tensor of its own
  // Computes the results' geometry from meta tensors; nullptr if neither we nor LibTorch's C++ part have such a kernel.
  const c10::KernelFunction* shapes = nullptr;
  const c10::KernelFunction* slow_shapes = nullptr;  // the same, written in Python
};

OperatorTraits traits_of(const c10::OperatorHandle& op);

// Whether this call of a drawing operator takes random numbers: dropout with probability 0 does not.
bool really_draws(const OperatorTraits& traits, const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace stepc
