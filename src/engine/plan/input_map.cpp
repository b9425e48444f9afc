#include "engine/plan/input_map.h"

#include <algorithm>
#include <cstring>
#include <set>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "aten/constants.h"
#include "base/check.h"

namespace stepc {

std::vector<at::Tensor> tensors_at(const std::vector<size_t>& places, const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  out.reserve(places.size());
  for (size_t place : places) out.push_back(place < tensors.size() ? tensors[place] : at::Tensor());
  return out;
}

InputMap::InputMap(const Trace& trace, const Program& program, const std::vector<at::Tensor>& tensors) {
  find_places(trace, program);
  find_sources(program, tensors);
  find_host_data(trace, tensors.size());
}

const InputMap::Parameter* InputMap::find_parameter(const std::string& key) const {
  const auto found = std::ranges::find(parameters_, key, &Parameter::key);
  return found == parameters_.end() ? nullptr : &*found;
}

std::vector<size_t> InputMap::places_of(const Schedule& schedule) const {
  std::vector<size_t> places;
  for (const ScheduleInput& input : schedule.inputs) {
    if (!is_of_program(input.kind) || input.kind == InputKind::kIncoming)
      places.push_back(kNoPlace);
    else if (input.kind == InputKind::kBatch)
      places.push_back(batch_place_ + static_cast<size_t>(std::stoul(input.key)));
    else if (input.kind == InputKind::kHost)
      places.push_back(host_data_.at(input.key).first);
    else
      places.push_back(places_.at({*owner_of(input.kind), input.key}));
  }
  return places;
}

void InputMap::find_places(const Trace& trace, const Program& program) {
  const std::vector<OwnedKey>& keys = program.keys();
  for (size_t k = 0; k < keys.size(); ++k) places_[{keys[k].owner, keys[k].key}] = k;
  batch_place_ = keys.size();
  for (size_t k = 0; k < keys.size(); ++k) {
    if (keys[k].owner != Owner::kParameter) continue;
    parameters_.push_back({keys[k].key, k, places_.at({Owner::kGradient, keys[k].key})});
  }
  std::set<std::string> read;
  for (const External& external : trace.externals) {
    if (external.owner == Owner::kGradient) read.insert(external.key);
    if (external.owner == Owner::kConstant || external.owner == Owner::kIncoming || external.owner == Owner::kHost) {
      externals_.push_back(kNoPlace);
    } else if (external.owner == Owner::kBatch) {
      externals_.push_back(keys.size() + static_cast<size_t>(std::stoul(external.key)));
    } else {
      const auto found = places_.find({external.owner, external.key});
      INTERNAL_CHECK(found != places_.end(), "{} '{}' is gone", name_of(external.owner), external.key);
      externals_.push_back(found->second);
    }
  }
  for (const Rebinding& rebinding : trace.rebindings) {
    if (rebinding.owner != Owner::kGradient || read.count(rebinding.key) != 0) continue;
    if (const Parameter* parameter = find_parameter(rebinding.key)) dropped_.push_back(parameter->place);
  }
}

// Finds tensors other than parameters that may start to require a gradient; the recorded backward pass has no gradient
// for them.
void InputMap::find_sources(const Program& program, const std::vector<at::Tensor>& tensors) {
  const std::vector<OwnedKey>& keys = program.keys();
  for (size_t place : externals_) {
    if (place >= keys.size() || !tensors[place].defined()) continue;
    if (keys[place].owner != Owner::kBuffer && keys[place].owner != Owner::kCaptured) continue;
    sources_.push_back({place, keys[place].key, tensors[place].requires_grad(), tensors[place].is_leaf()});
  }
}

// A tensor that the step makes and keeps has an autograd graph after an eager step and none after a replay. That is no
// difference.
std::string InputMap::changed_source(const std::vector<at::Tensor>& tensors) const {
  for (const Source& source : sources_) {
    const at::Tensor& now = tensors[source.place];
    if (!now.defined()) continue;
    const bool was_leaf = source.requires_grad && source.is_leaf;
    const bool is_leaf = now.requires_grad() && now.is_leaf();
    const bool has_new_graph = now.requires_grad() && !now.is_leaf() && !source.requires_grad;
    if (is_leaf != was_leaf || has_new_graph) return str("whether '{}' requires a gradient", source.key);
  }
  return {};
}

void InputMap::find_host_data(const Trace& trace, size_t place) {
  for (const External& external : trace.externals) {
    if (external.owner != Owner::kHost) continue;
    const auto found = std::ranges::find(trace.constants, external.key, &Constant::key);
    const Value& value = trace.values[external.value.index()];
    // The trace has no bytes for large data, for windows on data and for results of the host's calls.
    const at::Tensor bytes = at::zeros({static_cast<int64_t>(trace.storages[value.storage.index()].bytes)}, at::kByte);
    if (found != trace.constants.end()) std::memcpy(bytes.mutable_data_ptr(), found->bytes.data(), found->bytes.size());
    at::Tensor tensor = at::empty({0}, scalar_type_of(value.dtype));
    tensor.set_(bytes.storage(), value.offset, value.sizes, value.strides);
    host_data_.emplace(external.key, std::pair(place++, std::move(tensor)));
  }
}

std::vector<at::Tensor> InputMap::with_host_data(std::vector<at::Tensor> tensors,
                                                 const std::map<std::string, at::Tensor>& now) const {
  for (const auto& [key, one] : host_data_) {
    tensors.resize(std::max(tensors.size(), one.first + 1));
    const auto found = now.find(key);
    tensors[one.first] = found == now.end() ? one.second : found->second;
  }
  return tensors;
}

void InputMap::fill_host_data(const std::string& key, const at::Tensor& data) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  host_data_.at(key).second.copy_(data);
}

}  // namespace stepc
