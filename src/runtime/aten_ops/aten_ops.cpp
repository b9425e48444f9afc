#include "runtime/aten_ops/aten_ops.h"

#include <ATen/Functions.h>
#include <ATen/ops/_to_copy.h>

#include "aten/constants.h"
#include "base/check.h"
#include "ops/op_def.h"

namespace stepc {

namespace {
template <class Fn, class... Tables>
Fn find(std::string_view op, const Tables&... tables) {
  Fn fn = nullptr;
  const auto look = [&](const auto& table) {
    if (const auto found = table.find(op); found != table.end()) fn = found->second;
  };
  (look(tables), ...);
  return fn;
}
AtenFn find_aten_op(std::string_view op) {
  return find<AtenFn>(op, detail::elementwise_aten_ops(), detail::view_aten_ops(), detail::shape_aten_ops(),
                      detail::matmul_aten_ops(), detail::attention_aten_ops(), detail::loss_aten_ops());
}
MakingFn find_making_op(std::string_view op) { return find<MakingFn>(op, detail::making_aten_ops()); }
OverwritingFn find_overwriting_op(std::string_view op) {
  return find<OverwritingFn>(op, detail::shape_overwriting_ops(), detail::index_overwriting_ops());
}
}  // namespace

bool AtenOp::exists(std::string_view op) {
  return find_aten_op(op) != nullptr || find_making_op(op) != nullptr || find_overwriting_op(op) != nullptr;
}

AtenOp::AtenOp(std::string_view op, const c10::Device& device)
    : op_(op_def(op).name),
      device_(device),
      run_(find_aten_op(op)),
      make_(find_making_op(op)),
      overwrite_(find_overwriting_op(op)) {
  INTERNAL_CHECK(run_ != nullptr || make_ != nullptr || overwrite_ != nullptr, "{} has no ATen call", op);
}

std::vector<at::Tensor> AtenOp::operator()(const std::vector<at::Tensor>& inputs, const Attrs& attrs,
                                           const std::vector<TensorType>& types, const at::Tensor& target) const {
  if (overwrite_ != nullptr) {
    const at::Tensor result = target.defined() ? target : at::empty_like(inputs[0], at::MemoryFormat::Contiguous);
    if (result.const_data_ptr() != inputs[0].const_data_ptr()) result.copy_(inputs[0]);
    overwrite_(result, inputs, attrs);
    return {result};
  }
  std::vector<at::Tensor> results =
      make_ != nullptr ? std::vector{make_(inputs, attrs, types[0], device_)} : run_(inputs, attrs, types);
  INTERNAL_CHECK_EQ(results.size(), types.size(), "results of {}", op_);
  for (size_t r = 0; r < results.size(); ++r) {
    const at::ScalarType wanted = scalar_type_of(types[r].dtype);
    if (results[r].scalar_type() != wanted) results[r] = results[r].to(wanted);
    INTERNAL_CHECK(results[r].sizes() == c10::IntArrayRef(types[r].shape), "{} gave a {} and its row a {}", op_,
                   fmt::join(results[r].sizes(), ", "), to_text(types[r]));
  }
  return results;
}

}  // namespace stepc
