// A C++ program: the tensors of its modules and optimizers, each with an owner and a key. Holds the modules and
// optimizers, never their tensors.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include "engine/program/program.h"
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

class ModuleProgram final : public Program {
 public:
  ModuleProgram(std::vector<ModuleRef> modules, std::vector<OptimizerRef> optimizers);

  void refresh() override;
  const std::vector<OwnedKey>& keys() const override { return keys_; }
  void append_tensors(std::vector<at::Tensor>& out) const override;
  std::vector<std::pair<std::string, at::Generator>> generators() const override { return generators_; }
  uint64_t structure() const override;
  void append_host_state(std::string& out) const override;
  void run_event(const std::string& key) override;
  // PyTorch's optimizers keep step counts and learning rates as host numbers: their updates become events.
  void find_events(Trace& trace) override;
  std::shared_ptr<void> save_host_state() override;
  void restore_host_state(const std::shared_ptr<void>& state) override;
  // PyTorch's optimizers make theirs in their first step, stepc's when they are made.
  bool make_state() override;
  std::optional<double> initial_value(const OwnedKey& key) const override;
  void drop_state() override;
  // A generator that the step draws from is the program's from then on.
  std::vector<bool> explain(const std::vector<Unowned>& unowned) override;

 private:
  void add(Owner owner, std::string key, const at::Tensor& tensor);
  std::string optimizer_key(size_t index) const;

  std::vector<ModuleRef> modules_;
  std::vector<OptimizerRef> optimizers_;
  std::vector<OwnedKey> keys_;
  std::vector<at::Tensor> tensors_;  // by key, of the last refresh; gradients are read through their parameters
  size_t parameters_ = 0;            // how many keys are parameters; as many gradients follow
  std::vector<std::pair<std::string, at::Generator>> generators_;
  std::vector<std::pair<torch::optim::Optimizer*, void*>> made_;  // states by make_state(), with their parameters
};

}  // namespace stepc
