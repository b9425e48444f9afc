#include "runtime/graph_inputs.h"

#include <algorithm>

#include <ATen/Functions.h>

#include "aten/constants.h"
#include "base/check.h"

namespace stepc {

GraphInputs::GraphInputs(const Trace& trace, const Graph& graph) {
  std::map<std::string, size_t> numbers;  // inputs, by key
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const GraphInput& input = graph.inputs[i];
    Origin origin;
    if (input.kind == InputKind::kRng) {
      seed_ = origin.number = at::zeros({2}, at::kLong);
    } else if (input.kind == InputKind::kScalar) {
      origin.number = at::zeros({}, scalar_type_of(graph.type(input.tensor).dtype));
      numbers[input.key] = i;
    } else {
      origin = find_external(trace, graph, input);
    }
    origins_.push_back(std::move(origin));
  }
  find_supplies(trace, numbers);
}

GraphInputs::Origin GraphInputs::find_external(const Trace& trace, const Graph& graph, const GraphInput& input) const {
  const Owner owner = *owner_of(input.kind);
  const auto found = std::ranges::find_if(
      trace.externals, [&](const External& one) { return one.owner == owner && one.key == input.key; });
  INTERNAL_CHECK(found != trace.externals.end(), "{} '{}' is no external", name_of(input.kind), input.key);
  const Value& value = trace.values[found->value.index()];
  USER_CHECK(value.dtype == graph.type(input.tensor).dtype, "{} '{}' is used as another type", name_of(input.kind),
             input.key);
  const Shape& sizes = graph.shape(input.tensor);
  return {static_cast<size_t>(found - trace.externals.begin()),
          input.offset - value.offset,
          sizes,
          input.strides.empty() ? contiguous_strides(sizes) : input.strides,
          {}};
}

void GraphInputs::find_supplies(const Trace& trace, const std::map<std::string, size_t>& numbers) {
  for (const HostEvent& event : trace.events) {
    for (size_t c = event.begin.index(); c < event.end.index(); ++c) {
      const std::vector<Arg>& args = trace.calls[c].args;
      for (size_t a = 0; a < args.size(); ++a) {
        Supply supply;
        const auto add = [&](const std::string& key) {
          const auto found = numbers.find(key);
          if (found != numbers.end()) supply.inputs.push_back(found->second);
          return found != numbers.end();
        };
        if (!add(host_number_key(event, CallId(c), a)))
          for (size_t k = 0; add(host_number_key(event, CallId(c), a, k));) ++k;
        if (const auto* integer = std::get_if<int64_t>(&args[a])) supply.integer = *integer;
        if (!supply.inputs.empty() || supply.integer) supplies_[{CallId(c), a}] = std::move(supply);
      }
    }
  }
}

void GraphInputs::supply(CallId call, size_t arg, const c10::IValue& number) {
  const auto found = supplies_.find({call, arg});
  if (found == supplies_.end()) return;
  const Supply& supply = found->second;
  const auto put = [&](size_t k, double value) { origins_[supply.inputs[k]].number.fill_(value); };
  if (supply.inputs.empty()) {
    if (!number.isInt() || number.toInt() != *supply.integer) unfit_ = true;
  } else if (number.isList()) {
    const c10::List<c10::IValue> list = number.toList();  // of double, or of Scalar
    if (list.size() != supply.inputs.size()) unfit_ = true;
    for (size_t k = 0; k < list.size() && k < supply.inputs.size(); ++k) put(k, list.get(k).toScalar().toDouble());
  } else {
    put(0, number.isTensor() ? number.toTensor().item<double>() : number.toScalar().toDouble());
  }
}

void GraphInputs::draw_seed() {
  if (draws()) seed_.mutable_data_ptr<int64_t>()[0] = at::randint(INT64_MAX, {}, at::kLong).item<int64_t>();
}

at::Tensor GraphInputs::tensor(size_t input, const std::vector<at::Tensor>& externals) const {
  const Origin& origin = origins_[input];
  if (origin.number.defined()) return origin.number;
  const at::Tensor& whole = externals[origin.external];
  return whole.as_strided(origin.sizes, origin.strides, whole.storage_offset() + origin.offset);
}

}  // namespace stepc
