#include "engine/record/recorded_step.h"

#include <algorithm>
#include <set>

#include "aten/memory_regions.h"
#include "base/text.h"

namespace stepc {

namespace {
// Whether `unowned` is a constant of the trace that no call writes to.
bool is_data(const Trace& trace, const Unowned& unowned) {
  if (!unowned.tensor.defined()) return false;
  const size_t size = unowned.tensor.nbytes();
  const std::string bytes = size <= kMaxConstantBytes ? bytes_of(unowned.tensor.storage()) : std::string();
  return std::ranges::any_of(trace.externals, [&](const External& external) {
    if (external.owner != Owner::kConstant) return false;
    const StorageId storage = trace.values[external.value.index()].storage;
    const auto found = std::ranges::find(trace.constants, external.key, &Constant::key);
    const bool has_size = trace.storages[storage.index()].bytes == size;
    if (found == trace.constants.end() || !has_size || (!found->bytes.empty() && found->bytes != bytes)) return false;
    return std::ranges::none_of(trace.calls, [&](const Call& call) {
      return std::ranges::any_of(call.writes,
                                 [&](ValueId value) { return trace.values[value.index()].storage == storage; });
    });
  });
}
}  // namespace

std::vector<at::Tensor> list_tensors(const Program& program, const StepInput& input) {
  std::vector<at::Tensor> out;
  program.append_tensors(out);
  out.insert(out.end(), input.tensors.begin(), input.tensors.end());
  return out;
}

void own_results(StepOutput& output, const std::vector<at::Tensor>& program) {
  std::set<const void*> storages;
  for (const at::Tensor& tensor : program)
    if (tensor.defined() && tensor.has_storage()) storages.insert(tensor.storage().unsafeGetStorageImpl());
  for (at::Tensor& tensor : output.tensors) {
    if (!tensor.defined()) continue;
    tensor = tensor.detach();
    if (tensor.has_storage() && storages.count(tensor.storage().unsafeGetStorageImpl()) != 0) tensor = tensor.clone();
  }
}

bool explain_unowned(Program& program, Recording& recording) {
  if (recording.unowned.empty()) return false;
  // Tensors that the program lists by now, such as new optimizer state, need no search.
  program.refresh();
  std::set<const void*> listed;
  for (const at::Tensor& tensor : list_tensors(program, {}))
    if (tensor.defined() && tensor.has_storage()) listed.insert(tensor.storage().unsafeGetStorageImpl());
  const size_t before = recording.unowned.size();
  std::erase_if(recording.unowned, [&](const Unowned& unowned) {
    return unowned.tensor.defined() && listed.count(unowned.tensor.storage().unsafeGetStorageImpl()) != 0;
  });
  if (recording.unowned.empty()) return true;
  const std::vector<bool> found = program.explain(recording.unowned);
  std::erase_if(recording.unowned, [&, u = size_t{0}](const Unowned&) mutable { return found[u++]; });
  return recording.unowned.size() != before;
}

void refuse_unowned(Recording& recording) {
  for (const Unowned& unowned : recording.unowned) recording.obstacles.push_back(unowned.obstacle);
  recording.unowned.clear();
}

std::vector<OwnedTensor> RecordedStep::list() {
  program_.refresh();
  std::vector<at::Tensor> tensors;
  program_.append_tensors(tensors);
  std::vector<OwnedTensor> out;
  for (size_t k = 0; k < tensors.size(); ++k)
    out.push_back({program_.keys()[k].owner, program_.keys()[k].key, tensors[k]});
  for (size_t b = 0; b < input_.tensors.size(); ++b) out.push_back({Owner::kBatch, str("{}", b), input_.tensors[b]});
  return out;
}

void leave_out_data(Recording& recording) {
  std::erase_if(recording.unowned, [&](const Unowned& one) { return is_data(recording.trace, one); });
}

void leave_to_host(Recording& recording) {
  Trace& trace = recording.trace;
  size_t kept = 0;
  std::erase_if(recording.unowned, [&](const Unowned& unowned) {
    if (!unowned.made.valid()) return false;
    const StorageId storage = trace.values[unowned.made.index()].storage;
    trace.storages[storage.index()].escapes = true;
    for (Allocation& allocation : trace.allocations) {
      if (allocation.storage != storage) continue;
      allocation.kept = true;
      allocation.last = trace.ticks;
    }
    trace.rebindings.push_back({Owner::kHost, str("kept {}", kept++), unowned.made});
    return true;
  });
}

}  // namespace stepc
