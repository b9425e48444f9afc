// GradientsAside: holds the gradients that the program has, while a loop's model runs its passes without them.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/program/program.h"
#include "runtime/executor.h"

namespace stepc {

// Takes the parameters' gradients aside for the length of a pass, which so begins without any, and puts them back.
// Where the pass raises, with what it has added to them by then, as the autograd engine leaves them.
class GradientsAside {
 public:
  explicit GradientsAside(const Program& program);
  ~GradientsAside();
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

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
