#include "engine/program.h"

#include <map>

#include "base/check.h"
#include "engine/torch_optimizer.h"

namespace stepc {

namespace {
std::string prefix(std::string_view kind, size_t index, size_t count) {
  return count == 1 ? std::string() : str("{}{}.", kind, index);
}
}  // namespace

Program::Program(std::vector<ModuleRef> modules, std::vector<OptimizerRef> optimizers)
    : modules_(std::move(modules)), optimizers_(std::move(optimizers)) {}

std::vector<std::pair<std::string, at::Tensor>> Program::parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (size_t m = 0; m < modules_.size(); ++m) {
    const std::string before = prefix("module", m, modules_.size());
    for (auto& item : (*modules_[m]).named_parameters()) out.emplace_back(before + item.key(), item.value());
  }
  return out;
}

std::vector<OwnedTensor> Program::list(const std::vector<at::Tensor>& batch) const {
  std::vector<OwnedTensor> owned;
  auto named = parameters();
  owned.reserve(named.size() * 5 + batch.size());
  for (const auto& [key, tensor] : named) owned.push_back({Owner::kParameter, key, tensor});
  for (const auto& [key, tensor] : named) owned.push_back({Owner::kGradient, key, tensor.grad()});
  for (size_t m = 0; m < modules_.size(); ++m) {
    const std::string before = prefix("module", m, modules_.size());
    for (auto& item : (*modules_[m]).named_buffers())
      owned.push_back({Owner::kBuffer, before + item.key(), item.value()});
  }
  for (size_t o = 0; o < optimizers_.size(); ++o) {
    const std::string before = prefix("optimizer", o, optimizers_.size());
    const auto add = [&](const std::string& key, const at::Tensor& tensor) {
      owned.push_back({Owner::kOptimizerState, before + key, tensor});
    };
    if (optim::Optimizer* ours = optimizers_[o].ours()) {
      for (const auto& [key, tensor] : ours->named_state()) add(key, tensor);
      continue;
    }
    std::map<const void*, std::string> names;
    for (const auto& [key, tensor] : named) names[tensor.unsafeGetTensorImpl()] = key;
    const auto name = [&](const at::Tensor& parameter) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      return found == names.end() ? str("parameter{}", names.size()) : found->second;
    };
    for_each_state(*optimizers_[o].torchs(), name, add);
  }
  for (size_t b = 0; b < batch.size(); ++b) owned.push_back({Owner::kBatch, str("{}", b), batch[b]});
  return owned;
}

void Program::set_gradient(const std::string& key, const at::Tensor& gradient) const {
  for (auto& [name, tensor] : parameters()) {
    if (name != key) continue;
    tensor.mutable_grad() = gradient;
    return;
  }
  INTERNAL_CHECK(false, "no parameter '{}'", key);
}

void Program::append_host_state(std::string& out) const {
  for (const ModuleRef& module : modules_)
    (*module).apply([&](torch::nn::Module& one) { out += one.is_training() ? 't' : 'e'; });
  for (const OptimizerRef& optimizer : optimizers_) {
    if (optimizer.torchs() == nullptr) continue;
    for (double number : hyper_parameters(*optimizer.torchs()))
      out.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
}

}  // namespace stepc
