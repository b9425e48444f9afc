#include "capture/index_range.h"

#include <algorithm>
#include <string_view>

#include <ATen/Functions.h>

namespace stepc {

namespace {

// A call with one index: the places of it and of what it chooses from, and of the dimension; kFirst: the first one.
struct Chooses {
  std::string_view op;
  size_t from, index, dim;
};
constexpr size_t kFirst = SIZE_MAX;
constexpr Chooses kChooses[] = {
    {"aten::embedding", 0, 1, kFirst}, {"aten::index_select", 0, 2, 1}, {"aten::gather", 0, 2, 1},
    {"aten::scatter", 0, 2, 1},        {"aten::scatter_", 0, 2, 1},     {"aten::scatter_add", 0, 2, 1},
    {"aten::scatter_add_", 0, 2, 1},   {"aten::index_add", 0, 2, 1},    {"aten::index_add_", 0, 2, 1},
    {"aten::index_copy", 0, 2, 1},     {"aten::index_copy_", 0, 2, 1}};
// By lists of indices, one a dimension, from the end, too.
constexpr std::string_view kChooseByLists[] = {"aten::index", "aten::index_put", "aten::index_put_",
                                               "aten::_index_put_impl_"};
// The classes of nll_loss_forward(self, target, weight, reduction, ignore_index).
constexpr std::string_view kClasses[] = {"aten::nll_loss_forward", "aten::nll_loss2d_forward"};

class Range {
 public:
  explicit Range(const std::function<bool(const at::Tensor&)>& is_known) : is_known_(is_known) {}

  [[nodiscard]] bool holds(const at::Tensor& index, int64_t first, int64_t end) const {
    if (!is_looked_at(index)) return true;
    const auto [least, most] = at::aminmax(index);
    return least.item().toLong() >= first && most.item().toLong() < end;
  }
  [[nodiscard]] bool holds_classes(const at::Tensor& target, int64_t classes, int64_t ignored) const {
    if (!is_looked_at(target)) return true;
    return !at::logical_and(at::ne(target, ignored), at::logical_or(at::lt(target, 0), at::ge(target, classes)))
                .any()
                .item<bool>();
  }

 private:
  [[nodiscard]] bool is_looked_at(const at::Tensor& index) const {
    const bool is_integer = index.defined() && at::isIntegralType(index.scalar_type(), /*includeBool=*/false);
    return is_integer && index.scalar_type() != at::kByte && index.numel() > 0 && is_known_(index);
  }
  const std::function<bool(const at::Tensor&)>& is_known_;
};

}  // namespace

bool indices_in_range(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                      const std::function<bool(const at::Tensor&)>& is_known) {
  const std::string_view name = op.schema().name();
  const auto args = torch::jit::last(stack, op.schema().arguments().size());
  const Range range(is_known);
  if (std::ranges::find(kChooseByLists, name) != std::end(kChooseByLists)) {
    const at::Tensor& from = args[0].toTensor();
    const auto indices = args[1].toOptionalTensorVector();
    for (size_t d = 0; d < indices.size(); ++d) {
      if (!indices[d].has_value() || !indices[d]->defined()) continue;
      if (!at::isIntegralType(indices[d]->scalar_type(), /*includeBool=*/false)) return true;  // a mask: other places
      const int64_t size = from.size(static_cast<int64_t>(d));
      if (!range.holds(*indices[d], -size, size)) return false;
    }
    return true;
  }
  if (std::ranges::find(kClasses, name) != std::end(kClasses)) {
    const at::Tensor& scores = args[0].toTensor();
    return range.holds_classes(args[1].toTensor(), scores.size(scores.dim() == 1 ? 0 : 1), args[4].toInt());
  }
  const auto* const chooses = std::ranges::find(kChooses, name, &Chooses::op);
  if (chooses == std::end(kChooses)) return true;
  const at::Tensor& from = args[chooses->from].toTensor();
  if (from.dim() == 0) return true;
  const int64_t dim = chooses->dim == kFirst ? 0 : args[chooses->dim].toInt();
  return range.holds(args[chooses->index].toTensor(), 0, from.size(dim));
}

}  // namespace stepc
