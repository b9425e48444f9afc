#include "engine/ranks/program_parts.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "aten/virtual_memory.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/tensors.h"
#include "engine/compare/tensor_hash.h"
#include "engine/ranks/consensus.h"

namespace stepc {

namespace {
constexpr const char* kInParts =
    "this tensor's values lie in parts on the ranks of the run: what reads them has to stand inside 'with "
    "stepc.full_parameters(model)'";
constexpr const char* kOfAnotherStage =
    "this tensor's values lie on the ranks of another stage of the pipeline: what reads them has to stand inside 'with "
    "stepc.full_parameters(model)'";
}  // namespace

bool ProgramParts::take(const Inputs& inputs) {
  std::vector<at::Tensor> tensors;
  program_.append_tensors(tensors);
  std::map<Key, at::Tensor> of_program;
  for (size_t k = 0; k < program_.keys().size(); ++k)
    of_program[{program_.keys()[k].owner, program_.keys()[k].key}] = tensors[k];
  Tensors found;
  for (const auto& [kind, name] : inputs) {
    const Key key{*owner_of(kind), name};
    if (!held_.contains(key)) found.emplace_back(key, of_program.at(key));
  }
  return take(found);
}

bool ProgramParts::take(const Tensors& moved) {
  const bool are_same = have_same_values(moved);
  find_stages(moved);
  for (const auto& [key, tensor] : moved) take(key, tensor);
  return are_same;
}

// Whether all ranks have the same values. Rank 0's values are taken if they differ, or if other ranks have none.
bool ProgramParts::have_same_values(const Tensors& tensors) {
  std::string mine;
  const auto is_made = [&](const Key& key) {
    return saved_.contains(key) || program_.initial_value({key.first, key.second}).has_value();
  };
  for (const auto& [key, tensor] : tensors)
    mine += is_made(key)           ? "made\n"
            : is_virtual(tensor)   ? "absent\n"
            : ranks_->ranks() == 1 ? "there\n"
                                   : hash_text(hash_of(tensor)) + "\n";
  std::vector<std::vector<std::string>> all;
  for (const std::string& one : ranks_->exchange(mine)) all.push_back(split(one, '\n'));
  bool differs = false;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const auto& [key, tensor] = tensors[t];
    USER_CHECK(all[0][t] != "absent",
               "{} '{}' has no values on rank 0: it was made in virtual(), or another step holds it in parts; "
               "materialise() it, or call the step that has it",
               name_of(key.first), key.second);
    const auto is_same = [&](const auto& one) { return one[t] == all[0][t]; };
    if (std::ranges::all_of(all, is_same)) continue;
    USER_CHECK(all[0][t] != "made" && std::ranges::none_of(all, [&](const auto& one) { return one[t] == "made"; }),
               "{} '{}' is there on some ranks alone: load the optimizer's state on all, or on none",
               name_of(key.first), key.second);
    differs = differs || std::ranges::any_of(all, [&](const auto& one) { return !is_same(one) && one[t] != "absent"; });
    materialise(tensor);
    const at::Tensor value = tensor.detach().contiguous();
    ranks_->all().broadcast(value);
    if (!tensor.is_contiguous()) tensor.detach().copy_(value);
  }
  return !differs;
}

// Finds the ranks along pp that have each tensor. All ranks of a stage have the same tensors.
void ProgramParts::find_stages(const Tensors& tensors) {
  if (stages_.count == 1) return;
  std::string mine;
  for (const auto& [key, tensor] : tensors) mine += state_.has(key.first, key.second) ? '1' : '0';
  const std::vector<std::string> all = ranks_->exchange(mine);
  const int64_t of_stage = stages_.stage_mesh.ranks();
  for (size_t t = 0; t < tensors.size(); ++t) {
    std::vector<int64_t>& on = stages_of_[tensors[t].first];
    on.clear();
    for (int64_t s = 0; s < stages_.count; ++s)
      if (all[static_cast<size_t>(s * of_stage)][t] == '1') on.push_back(s);
    INTERNAL_CHECK(!on.empty(), "no stage has {} '{}'", name_of(tensors[t].first.first), tensors[t].first.second);
  }
}

bool ProgramParts::is_everywhere(const Key& key) const {
  const auto found = stages_of_.find(key);
  return found == stages_of_.end() || std::ssize(found->second) == stages_.count;
}

ProgramParts::Tensors ProgramParts::moved_since(const std::vector<at::Tensor>& tensors) const {
  Tensors moved;
  for (size_t k = 0; k < program_.keys().size(); ++k) {
    const auto held = held_.find({program_.keys()[k].owner, program_.keys()[k].key});
    if (held == held_.end() || !tensors[k].defined()) continue;
    if (tensors[k].storage().unsafeGetStorageImpl() != held->second) moved.emplace_back(held->first, tensors[k]);
  }
  return moved;
}

void ProgramParts::take(const Key& key, const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto& [owner, name] = key;
  const std::optional<double> initial = program_.initial_value({owner, name});
  const bool is_made = is_virtual(tensor) && initial.has_value();
  const at::Tensor own = tensor.detach();
  const void*& held = held_[key];
  parts_.erase(held);
  held = own.storage().unsafeGetStorageImpl();
  const auto saved = saved_.find(key);
  const TensorFiles* files = nullptr;
  const TensorFiles::Tensor* in_files =
      saved == saved_.end() ? nullptr
                            : saved->second->find({{owner, name}, program_.is_of_model({owner, name}), own}, files);
  if (!state_.has(owner, name)) {
    saved_.erase(key);
    dematerialise(own, kOfAnotherStage);
    parts_[held] = key;
    return;
  }
  if (state_.is_whole(owner, name, own)) {
    if (!is_everywhere(key)) parts_[held] = key;
    materialise(own);
    if (in_files != nullptr)
      put_into(own, read_tensor(*files, *in_files));
    else if (is_made)
      own.fill_(*initial);
    state_.replace(owner, name, own);
    saved_.erase(key);
    return;
  }
  if (in_files != nullptr)
    state_.put(owner, name, *files, *in_files);
  else if (is_made)
    state_.fill(owner, name, *initial);
  else
    state_.put(owner, name, own);
  saved_.erase(key);
  dematerialise(own, kInParts);
  parts_[held] = key;
}

void ProgramParts::gather(const std::vector<at::Tensor>& tensors, bool keeps) {
  // The tensors may belong to another program: ranks destroy an unused step at different times.
  if (std::ranges::none_of(
          tensors, [&](const at::Tensor& tensor) { return parts_.contains(tensor.storage().unsafeGetStorageImpl()); }))
    return;
  enter_together(*ranks_, "full_parameters()");  // who has ended meanwhile says so here
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const at::Tensor& tensor : tensors) {
    const auto found = parts_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == parts_.end()) continue;
    const auto& [owner, name] = found->second;
    const bool is_here = state_.has(owner, name);
    at::Tensor whole = is_here
                           ? state_.whole(owner, name)
                           : at::empty(tensor.sizes(), at::TensorOptions(tensor.device()).dtype(tensor.scalar_type()));
    if (!is_everywhere(found->second)) {
      whole = whole.contiguous();
      across_stages(stages_).broadcast(whole, stages_of_.at(found->second).front());
    }
    if (!keeps) continue;
    materialise(tensor);
    tensor.detach().copy_(whole);
  }
}

void ProgramParts::scatter(const std::vector<at::Tensor>& tensors, bool takes) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const at::Tensor& tensor : tensors) {
    const auto found = parts_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == parts_.end() || is_virtual(tensor)) continue;
    const auto& [owner, name] = found->second;
    const bool is_here = state_.has(owner, name);
    if (is_here && state_.is_whole(owner, name, tensor)) continue;  // the program's tensor is the rank's
    if (is_here && takes) state_.put(owner, name, tensor.detach());
    dematerialise(tensor, is_here ? kInParts : kOfAnotherStage);
  }
}

}  // namespace stepc
