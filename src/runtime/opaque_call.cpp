#include "runtime/opaque_call.h"

#include <algorithm>

#include <ATen/Functions.h>

#include "aten/constants.h"
#include "aten/operators.h"
#include "base/check.h"

namespace stepc {

namespace {

bool takes_number(const c10::TypePtr& type) {
  if (const auto optional = type->cast<c10::OptionalType>()) return takes_number(optional->getElementType());
  return type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType ||
         type->kind() == c10::TypeKind::IntType || type->kind() == c10::TypeKind::BoolType;
}

c10::IValue number_in(const at::Tensor& tensor, const c10::TypePtr& type) {
  const at::Scalar number = tensor.item();
  if (const auto optional = type->cast<c10::OptionalType>()) return number_in(tensor, optional->getElementType());
  switch (type->kind()) {
    case c10::TypeKind::FloatType:
      return number.toDouble();
    case c10::TypeKind::IntType:
      return number.toLong();
    case c10::TypeKind::BoolType:
      return number.toBool();
    default:
      return number;
  }
}

c10::IValue list_of(const std::vector<ValueId>& ids, const std::vector<at::Tensor>& inputs, const c10::TypePtr& type) {
  c10::TypePtr element = type;
  if (const auto optional = element->cast<c10::OptionalType>()) element = optional->getElementType();
  element = element->expectRef<c10::ListType>().getElementType();
  if (element->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<at::Tensor>> list;
    for (ValueId id : ids) list.push_back(id.valid() ? std::optional(inputs[id.index()]) : std::nullopt);
    return list;
  }
  if (takes_number(element)) {
    c10::List<double> list;
    for (ValueId id : ids) list.push_back(inputs[id.index()].item<double>());
    return list;
  }
  c10::List<at::Tensor> list;
  for (ValueId id : ids) list.push_back(inputs[id.index()]);
  return list;
}

// nullptr: contiguous.
const Shape* recorded_strides(const AtenCall& call, size_t input) {
  const auto found = std::ranges::find(call.layouts, input, &std::pair<uint32_t, Shape>::first);
  return found == call.layouts.end() ? nullptr : &found->second;
}

bool overlaps_itself(const at::Tensor& tensor, const Shape& strides) {
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (strides[static_cast<size_t>(d)] == 0 && tensor.size(d) > 1) return true;
  return false;
}

bool has_strides(const at::Tensor& tensor, const Shape& strides) {
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.size(d) != 1 && tensor.stride(d) != strides[static_cast<size_t>(d)]) return false;
  return true;
}

// Where the recorded one overlapped itself, as an expanded tensor does, it cannot be written in that layout.
at::Tensor in_recorded_layout(const AtenCall& call, size_t input, const at::Tensor& tensor) {
  if (!needs_layout(call, input, tensor)) return tensor;
  const Shape* strides = recorded_strides(call, input);
  if (strides == nullptr || overlaps_itself(tensor, *strides)) return tensor.contiguous();
  return at::empty_strided(tensor.sizes(), *strides, tensor.options()).copy_(tensor);
}

}  // namespace

bool needs_layout(const AtenCall& call, size_t input, const at::Tensor& tensor) {
  if (tensor.numel() == 0 || std::ranges::find(call.writes, input) != call.writes.end()) return false;
  const Shape* strides = recorded_strides(call, input);
  if (strides == nullptr || overlaps_itself(tensor, *strides))
    return !tensor.is_contiguous() && !(strides != nullptr && has_strides(tensor, *strides));
  return !has_strides(tensor, *strides);
}

OpaqueCall::OpaqueCall(const Node& node) : op_(find_operator(node.op)), call_(*node.aten) {}

std::vector<at::Tensor> OpaqueCall::run(std::vector<at::Tensor> inputs, const std::vector<at::Tensor>& targets) const {
  for (size_t w = 0; w < call_.writes.size(); ++w) {
    at::Tensor& written = inputs[call_.writes[w]];
    if (targets.empty()) {
      written = written.clone();
      continue;
    }
    const at::Tensor& target = targets[targets.size() - call_.writes.size() + w];
    if (target.const_data_ptr() != written.const_data_ptr()) target.copy_(written);
    written = target;
  }
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = in_recorded_layout(call_, i, inputs[i]);
  const auto& schema = op_.schema().arguments();
  torch::jit::Stack stack;
  for (size_t a = 0; a < call_.args.size(); ++a) {
    const Arg& arg = call_.args[a];
    if (const auto* id = std::get_if<ValueId>(&arg)) {
      if (!id->valid())
        stack.emplace_back(at::Tensor());
      else if (takes_number(schema[a].type()))
        stack.push_back(number_in(inputs[id->index()], schema[a].type()));
      else
        stack.emplace_back(inputs[id->index()]);
    } else if (const auto* ids = std::get_if<std::vector<ValueId>>(&arg)) {
      stack.push_back(list_of(*ids, inputs, schema[a].type()));
    } else {
      stack.push_back(constant_to_ivalue(arg, schema[a]));
    }
  }
  op_.callBoxed(&stack);

  std::vector<at::Tensor> outputs;
  const auto put = [&](ValueId id, const at::Tensor& tensor) {
    if (!id.valid()) return;
    if (outputs.size() <= id.index()) outputs.resize(id.index() + 1);
    outputs[id.index()] = tensor;
  };
  for (size_t r = 0; r < call_.results.size(); ++r) {
    if (const auto* id = std::get_if<ValueId>(&call_.results[r])) {
      put(*id, stack[r].toTensor());
    } else if (const auto* ids = std::get_if<std::vector<ValueId>>(&call_.results[r])) {
      const std::vector<at::Tensor> list = stack[r].toTensorVector();
      for (size_t i = 0; i < ids->size(); ++i) put((*ids)[i], list[i]);
    }
  }
  for (uint32_t written : call_.writes) outputs.push_back(inputs[written]);
  return outputs;
}

}  // namespace stepc
