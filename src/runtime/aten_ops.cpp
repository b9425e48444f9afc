#include "runtime/aten_ops.h"

#include <ATen/ops/_to_copy.h>

#include "aten/constants.h"
#include "base/check.h"

namespace stepc {

AtenFn find_aten_op(std::string_view op) {
  for (const detail::AtenOps* ops :
       {&detail::elementwise_aten_ops(), &detail::shape_aten_ops(), &detail::product_aten_ops()})
    if (const auto found = ops->find(op); found != ops->end()) return found->second;
  return nullptr;
}

std::vector<at::Tensor> run_aten_op(const Node& node, const std::vector<at::Tensor>& inputs,
                                    const std::vector<TensorType>& types) {
  const AtenFn run = find_aten_op(node.op);
  INTERNAL_CHECK(run != nullptr, "{} has no ATen call", node.op);
  std::vector<at::Tensor> results = run(inputs, node.attrs, types);
  INTERNAL_CHECK_EQ(results.size(), types.size(), "results of {}", node.op);
  for (size_t r = 0; r < results.size(); ++r) {
    const at::ScalarType wanted = scalar_type_of(types[r].dtype);
    if (results[r].scalar_type() != wanted) results[r] = results[r].to(wanted);
    INTERNAL_CHECK(results[r].sizes() == c10::IntArrayRef(types[r].shape), "{} gave a {} and its row a {}", node.op,
                   fmt::join(results[r].sizes(), ", "), to_text(types[r]));
  }
  return results;
}

}  // namespace stepc
