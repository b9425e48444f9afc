#include "python/gradient_hooks.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <typeinfo>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace stepc {

namespace {

bool is_empty(PyObject* hooks) { return hooks == nullptr || (PyDict_Check(hooks) && PyDict_Size(hooks) == 0); }

// Whether the object is a Python hook without any hook left in it. PyTorch exports no type information of these
// classes, so they are recognised by their names.
template <class Python, class Hook>
bool is_removed(const Hook& hook, std::string_view name) {
  return std::string_view(typeid(hook).name()).ends_with(name) && is_empty(static_cast<const Python&>(hook).dict);
}

template <class Python, class Hook>
bool are_removed(const std::vector<std::unique_ptr<Hook>>& hooks, std::string_view name) {
  return std::ranges::all_of(hooks, [&](const auto& hook) { return is_removed<Python>(*hook, name); });
}

}  // namespace

bool has_gradient_hooks(const at::Tensor& parameter) {
  using namespace torch::autograd;  // NOLINT: of one function
  constexpr std::string_view kOfTensor = "23PyFunctionTensorPreHookE";
  if (!are_removed<PyFunctionTensorPreHook>(impl::hooks(parameter), kOfTensor)) return true;
  const auto& after = impl::post_acc_grad_hooks(parameter);
  if (after != nullptr && !is_removed<PyFunctionTensorPostAccGradHooks>(*after, "32PyFunctionTensorPostAccGradHooksE"))
    return true;
  const auto accumulator = impl::try_get_grad_accumulator(parameter);
  if (accumulator == nullptr) return false;
  return !are_removed<PyFunctionPreHook>(accumulator->pre_hooks(), "17PyFunctionPreHookE") ||
         !are_removed<PyFunctionTensorPreHook>(accumulator->tensor_pre_hooks(), kOfTensor) ||
         !are_removed<PyFunctionPostHook>(accumulator->post_hooks(), "18PyFunctionPostHookE");
}

}  // namespace stepc
