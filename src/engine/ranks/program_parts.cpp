#include "engine/ranks/program_parts.h"

#include <algorithm>

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
}  // namespace

bool ProgramParts::take(const Schedule& schedule) {
  std::vector<at::Tensor> tensors;
  program_.append_tensors(tensors);
  std::map<Key, at::Tensor> of_program;
  for (size_t k = 0; k < program_.keys().size(); ++k)
    of_program[{program_.keys()[k].owner, program_.keys()[k].key}] = tensors[k];
  Tensors found;
  for (const ScheduleInput& input : schedule.inputs) {
    if (!is_of_program(input.kind) || input.kind == InputKind::kBatch) continue;
    const Key key{*owner_of(input.kind), input.key};
    if (!held_.contains(key)) found.emplace_back(key, of_program.at(key));
  }
  return take(found);
}

bool ProgramParts::take(const Tensors& moved) {
  const bool are_same = have_same_values(moved);
  for (const auto& [key, tensor] : moved) take(key, tensor);
  return are_same;
}

// Rank 0's count where they differ, and where others have none.
bool ProgramParts::have_same_values(const Tensors& tensors) {
  std::string mine;
  const auto is_made = [&](const Key& key) {
    return saved_.contains(key) || program_.initial_value({key.first, key.second}).has_value();
  };
  for (const auto& [key, tensor] : tensors)
    mine += is_made(key) ? "made\n" : is_virtual(tensor) ? "absent\n" : hash_text(hash_of(tensor)) + "\n";
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
  if (state_.is_whole(owner, name, own)) {
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
  enter_together(*ranks_, "full_parameters()");  // who has ended meanwhile says so here
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const at::Tensor& tensor : tensors) {
    const auto found = parts_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == parts_.end()) continue;
    const at::Tensor whole = state_.whole(found->second.first, found->second.second);
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
    if (takes) state_.put(found->second.first, found->second.second, tensor.detach());
    dematerialise(tensor, kInParts);
  }
}

}  // namespace stepc
