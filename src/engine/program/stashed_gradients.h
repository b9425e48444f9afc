// StashedGradients: holds the program's gradients while a loop's model runs a pass, which begins without any.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/program/program.h"
#include "runtime/executor.h"

namespace stepc {

// Takes the parameters' gradients away for the length of a pass, and puts them back. Where the pass throws, they come
// back with what the pass has added until then, as the autograd engine leaves them.
class StashedGradients {
 public:
  explicit StashedGradients(const Program& program);
  ~StashedGradients();
  StashedGradients(const StashedGradients&) = delete;
  StashedGradients& operator=(const StashedGradients&) = delete;

  at::Tensor gradient_of(const std::string& key) const;
  // What the pass has left, of the parameters that require a gradient.
  std::vector<at::Tensor> take();
  // The same of a replay.
  std::vector<at::Tensor> take(const std::vector<Bound>& gradients) const;

 private:
  struct Parameter {
    std::string key;
    at::Tensor tensor;
    at::Tensor before;
  };
  void add_to_those_before();

  std::vector<Parameter> parameters_;
  int exceptions_;
};

}  // namespace stepc
