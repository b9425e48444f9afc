// The program around a step: its modules and optimizers, seen as tensors with an owner and a key. Holds the modules and
// optimizers, never their tensors: those are listed anew for every call.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include "capture/recorder.h"
#include "optim/optimizer.h"

namespace stepc {

// A module, given as std::shared_ptr<M> or as a module holder (torch::nn::Linear).
class ModuleRef {
 public:
  template <class M>
  ModuleRef(std::shared_ptr<M> module) : module_(std::move(module)) {}  // NOLINT: implicit on purpose
  template <class M>
  ModuleRef(const torch::nn::ModuleHolder<M>& holder) : module_(holder.ptr()) {}  // NOLINT
  torch::nn::Module& operator*() const { return *module_; }

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

// An optimizer of stepc or of PyTorch, owned by the caller, who keeps it alive as long as the step.
class OptimizerRef {
 public:
  OptimizerRef(optim::Optimizer& optimizer) : ours_(&optimizer) {}           // NOLINT: implicit on purpose
  OptimizerRef(torch::optim::Optimizer& optimizer) : torchs_(&optimizer) {}  // NOLINT
  template <class T>
  OptimizerRef(const std::shared_ptr<T>& optimizer) : OptimizerRef(*optimizer) {}  // NOLINT
  template <class T>
  OptimizerRef(const std::unique_ptr<T>& optimizer) : OptimizerRef(*optimizer) {}  // NOLINT

  optim::Optimizer* ours() const { return ours_; }
  torch::optim::Optimizer* torchs() const { return torchs_; }

 private:
  optim::Optimizer* ours_ = nullptr;
  torch::optim::Optimizer* torchs_ = nullptr;
};

class Program {
 public:
  Program(std::vector<ModuleRef> modules, std::vector<OptimizerRef> optimizers);

  // Parameters, their gradients (undefined ones too), buffers, optimizer state, then the batch. The order is the same
  // from call to call while modules and optimizers keep their structure.
  std::vector<OwnedTensor> list(const std::vector<at::Tensor>& batch) const;

  // Replaces or drops the gradient of the parameter `key`.
  void set_gradient(const std::string& key, const at::Tensor& gradient) const;

  // Host values that the step's arithmetic may depend on and that no recording shows: training flags, and the
  // hyper-parameters of PyTorch's optimizers. Appended to `out` in a binary form.
  void append_host_state(std::string& out) const;

 private:
  std::vector<std::pair<std::string, at::Tensor>> parameters() const;
  std::vector<ModuleRef> modules_;
  std::vector<OptimizerRef> optimizers_;
};

}  // namespace stepc
