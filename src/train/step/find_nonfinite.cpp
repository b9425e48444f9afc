#include "train/step/find_nonfinite.h"

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include "base/module_scope.h"
#include "base/text.h"

namespace stepc::train {
namespace {

template <class T>
bool has_bad_element(const T* data, at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (sizes.empty()) {
    const auto value = static_cast<double>(*data);
    return std::isnan(value) || value == std::numeric_limits<double>::infinity();
  }
  for (int64_t i = 0; i < sizes[0]; ++i)
    if (has_bad_element(data + i * strides[0], sizes.slice(1), strides.slice(1))) return true;
  return false;
}

bool is_bad(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point() || tensor.numel() == 0) return false;
  return at::isnan(tensor).any().item<bool>() || tensor.eq(std::numeric_limits<double>::infinity()).any().item<bool>();
}

bool is_bad(const c10::IValue& value) {
  if (value.isTensor()) return is_bad(value.toTensor());
  if (!value.isTensorList()) return false;
  for (const at::Tensor& tensor : value.toTensorVector())
    if (is_bad(tensor)) return true;
  return false;
}

// The state of the observers of ops on this thread.
struct Search {
  std::map<int64_t, std::string> module_of;  // by the sequence number that autograd gives to the op's node
  std::string backward_of;                   // the module whose backward runs now
  bool in_backward = false;
  int depth = 0;            // of ops within ops
  int outside = 0;          // of them around the ops that count: backward() is one itself
  bool is_looking = false;  // at a result: those ops are not the program's
  std::optional<std::string> found;
};
thread_local Search* search = nullptr;

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& op) {
  if (search == nullptr || search->is_looking || search->found) return nullptr;
  if (op.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    const auto module = search->module_of.find(op.seqNr());
    search->in_backward = true;
    search->outside = search->depth;
    if (module != search->module_of.end()) search->backward_of = module->second;
    return nullptr;
  }
  ++search->depth;
  if (!search->in_backward && op.seqNr() >= 0) search->module_of.try_emplace(op.seqNr(), ModuleScope::current());
  return nullptr;
}

void on_end(const at::RecordFunction& op, at::ObserverContext* /*context*/) {
  if (search == nullptr || search->is_looking || search->found || op.scope() != at::RecordScope::FUNCTION) return;
  if (--search->depth > search->outside) return;  // an op within an op may see memory that nobody has written to yet
  std::string_view name = op.name();
  if (name.starts_with("aten::")) name.remove_prefix(std::string_view("aten::").size());
  const bool is_memory = name.find("empty") != std::string_view::npos || name.starts_with("resize") ||
                         name.starts_with("set_") || name.starts_with("as_strided");
  if (is_memory) return;
  search->is_looking = true;
  const at::NoGradGuard no_grad;
  for (const c10::IValue& output : op.outputs()) {
    if (!is_bad(output)) continue;
    const std::string module = search->in_backward ? search->backward_of : ModuleScope::current();
    search->found = str("{}{} ({})", search->in_backward ? "the backward of " : "",
                        module.empty() ? std::string("the loss") : module, name);
    break;
  }
  search->is_looking = false;
}

}  // namespace

bool has_nonfinite(const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.is_cpu()) return has_nonfinite(tensor.cpu());
  const auto look = [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    return has_bad_element(tensor.const_data_ptr<T>(), tensor.sizes(), tensor.strides());
  };
  if (!tensor.defined() || tensor.numel() == 0) return false;
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return look(static_cast<float*>(nullptr));
    case at::kDouble:
      return look(static_cast<double*>(nullptr));
    case at::kBFloat16:
      return look(static_cast<at::BFloat16*>(nullptr));
    case at::kHalf:
      return look(static_cast<at::Half*>(nullptr));
    default:
      return false;
  }
}

std::optional<std::string> find_nonfinite(const std::function<void()>& run) {
  Search own;
  struct Observing {
    explicit Observing(Search* to) {
      search = to;
      handle = at::addThreadLocalCallback(at::RecordFunctionCallback(on_begin, on_end)
                                              .needsOutputs(true)
                                              .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
    }
    ~Observing() {
      at::removeCallback(handle);
      search = nullptr;
    }
    Observing(const Observing&) = delete;
    Observing& operator=(const Observing&) = delete;
    at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  };
  const Observing observing(&own);
  run();
  return own.found;
}

}  // namespace stepc::train
