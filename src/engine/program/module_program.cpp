#include "engine/program/module_program.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "aten/virtual_memory.h"
#include "base/check.h"
#include "base/hash.h"
#include "engine/program/torch_optimizer.h"

namespace stepc {

namespace {
std::string prefix(std::string_view kind, size_t index, size_t count) {
  return count == 1 ? std::string() : str("{}{}.", kind, index);
}
}  // namespace

ModuleProgram::ModuleProgram(std::vector<ModuleRef> modules, std::vector<OptimizerRef> optimizers)
    : modules_(std::move(modules)), optimizers_(std::move(optimizers)) {
  refresh();
}

std::string ModuleProgram::optimizer_key(size_t index) const { return str("optimizer{}", index); }

void ModuleProgram::add(Owner owner, std::string key, const at::Tensor& tensor) {
  keys_.push_back({owner, std::move(key)});
  tensors_.push_back(tensor);
}

void ModuleProgram::refresh() {
  keys_.clear();
  tensors_.clear();
  for (size_t m = 0; m < modules_.size(); ++m) {
    const std::string before = prefix("module", m, modules_.size());
    for (auto& item : (*modules_[m]).named_parameters()) add(Owner::kParameter, before + item.key(), item.value());
  }
  parameters_ = keys_.size();
  for (size_t p = 0; p < parameters_; ++p) add(Owner::kGradient, keys_[p].key, {});
  for (size_t m = 0; m < modules_.size(); ++m) {
    const std::string before = prefix("module", m, modules_.size());
    for (auto& item : (*modules_[m]).named_buffers()) add(Owner::kBuffer, before + item.key(), item.value());
  }
  for (size_t o = 0; o < optimizers_.size(); ++o) {
    const std::string before = prefix("optimizer", o, optimizers_.size());
    if (optim::Optimizer* ours = optimizers_[o].ours()) {
      for (const auto& [key, tensor] : ours->named_state()) add(Owner::kOptimizerState, before + key, tensor);
      continue;
    }
    std::map<const void*, std::string> names;
    for (size_t p = 0; p < parameters_; ++p) names[tensors_[p].unsafeGetTensorImpl()] = keys_[p].key;
    const auto name = [&](const at::Tensor& parameter) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      return found == names.end() ? str("parameter{}", names.size()) : found->second;
    };
    for_each_state(*optimizers_[o].torchs(), name, [&](const std::string& key, const at::Tensor& tensor) {
      add(Owner::kOptimizerState, before + key, tensor);
    });
  }
}

void ModuleProgram::append_tensors(std::vector<at::Tensor>& out) const {
  for (size_t k = 0; k < keys_.size(); ++k)
    out.push_back(keys_[k].owner == Owner::kGradient ? tensors_[k - parameters_].grad() : tensors_[k]);
}

uint64_t ModuleProgram::structure() const {
  std::string text;
  for (const OwnedKey& key : keys_) text += str("{} {}\n", static_cast<int>(key.owner), key.key);
  return hash_bytes(std::as_bytes(std::span(text)));
}

void ModuleProgram::append_host_state(std::string& out) const {
  for (const ModuleRef& module : modules_)
    (*module).apply([&](torch::nn::Module& one) { out += one.is_training() ? 't' : 'e'; });
  for (const OptimizerRef& optimizer : optimizers_)
    if (optimizer.torchs() != nullptr)
      for (const auto& group : optimizer.torchs()->param_groups()) out += str("{},", group.params().size());
}

void ModuleProgram::run_event(const std::string& key) {
  for (size_t o = 0; o < optimizers_.size(); ++o)
    if (optimizer_key(o) == key) optimizers_[o].torchs()->step();
}

// An optimizer's update begins with the first call that touches one of its parameters or states outside of autograd and
// after a backward pass, and ends with the last such call.
void ModuleProgram::find_events(Trace& trace) {
  std::map<std::pair<Owner, std::string>, StorageId> storages;
  for (const External& external : trace.externals)
    storages[{external.owner, external.key}] = trace.values[external.value.index()].storage;
  for (size_t o = 0; o < optimizers_.size(); ++o) {
    torch::optim::Optimizer* optimizer = optimizers_[o].torchs();
    if (optimizer == nullptr) continue;
    std::set<const void*> updated;
    for (const auto& group : optimizer->param_groups())
      for (const at::Tensor& parameter : group.params()) updated.insert(parameter.unsafeGetTensorImpl());
    const std::string before = prefix("optimizer", o, optimizers_.size());
    std::set<StorageId> own;
    for (size_t k = 0; k < keys_.size(); ++k) {
      const OwnedKey& key = keys_[k];
      const bool is_own = key.owner == Owner::kOptimizerState
                              ? key.key.starts_with(before)
                              : key.owner == Owner::kParameter && updated.count(tensors_[k].unsafeGetTensorImpl()) != 0;
      const auto found = storages.find({key.owner, key.key});
      if (is_own && found != storages.end()) own.insert(found->second);
    }
    HostEvent event;
    event.key = optimizer_key(o);
    for (size_t c = 0; c < trace.calls.size(); ++c) {
      const Call& call = trace.calls[c];
      if (call.phase != Phase::kUpdate) continue;
      bool touches = false;
      for_each_value(call.args,
                     [&](ValueId value) { touches = touches || own.count(trace.values[value.index()].storage) != 0; });
      if (!touches) continue;
      if (!event.begin.valid()) event.begin = CallId(c);
      event.end = CallId(c + 1);
    }
    if (!event.begin.valid()) continue;
    // A parameter that the update touches has a gradient, which is dense like the parameter.
    std::set<StorageId> touched;
    for (size_t c = event.begin.index(); c < event.end.index(); ++c)
      for_each_value(trace.calls[c].args, [&](ValueId value) { touched.insert(trace.values[value.index()].storage); });
    for (const External& external : trace.externals)
      if (external.owner == Owner::kParameter && touched.count(trace.values[external.value.index()].storage) != 0)
        event.gradients.push_back({Owner::kGradient, external.key, external.value});
    trace.events.push_back(std::move(event));
  }
  std::sort(trace.events.begin(), trace.events.end(),
            [](const HostEvent& a, const HostEvent& b) { return a.begin < b.begin; });
}

std::shared_ptr<void> ModuleProgram::save_host_state() {
  auto saved = std::make_shared<std::vector<OptimizerCounts>>();
  for (const OptimizerRef& optimizer : optimizers_)
    saved->push_back(optimizer.torchs() == nullptr ? OptimizerCounts() : save_counts(*optimizer.torchs()));
  return saved;
}

void ModuleProgram::restore_host_state(const std::shared_ptr<void>& state) {
  const auto& saved = *std::static_pointer_cast<std::vector<OptimizerCounts>>(state);
  for (size_t o = 0; o < optimizers_.size(); ++o)
    if (optimizers_[o].torchs() != nullptr) restore_counts(*optimizers_[o].torchs(), saved[o]);
}

bool ModuleProgram::make_state() {
  const size_t before = made_.size();
  for (const OptimizerRef& optimizer : optimizers_)
    if (optimizer.torchs() != nullptr)
      for (void* parameter : make_states(*optimizer.torchs())) made_.emplace_back(optimizer.torchs(), parameter);
  return made_.size() > before;
}

// All other state of an optimizer has values.
std::optional<double> ModuleProgram::initial_value(const OwnedKey& key) const {
  const auto found = std::ranges::find(keys_, key);
  const bool is_made = found != keys_.end() && key.owner == Owner::kOptimizerState &&
                       is_virtual(tensors_[static_cast<size_t>(found - keys_.begin())]);
  return is_made ? std::optional(0.0) : std::nullopt;
}

void ModuleProgram::drop_state() {
  for (const auto& [optimizer, parameter] : made_) optimizer->state().erase(parameter);
  made_.clear();
}

std::vector<bool> ModuleProgram::explain(const std::vector<Unowned>& unowned) {
  std::vector<bool> found;
  for (const Unowned& one : unowned) {
    found.push_back(one.generator.defined());
    if (found.back()) generators_.emplace_back(str("generator{}", generators_.size()), one.generator);
  }
  return found;
}

}  // namespace stepc
