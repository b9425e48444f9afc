#include "engine/verify/pass_remains.h"

#include <ATen/Functions.h>

#include "base/text.h"

namespace stepc {

void PassRemains::add_outputs(const std::vector<at::Tensor>& outputs, const std::string& what) {
  for (size_t o = 0; o < outputs.size(); ++o) {
    const std::string name = str("{} {}", what, o);
    all_.push_back(named(name, name, outputs[o], by_bits_));
  }
}

void PassRemains::add_gradient(const std::string& key, const at::Tensor& gradient) {
  all_.push_back(named(str("gradient '{}'", key), "gradient", gradient, by_bits_));
}

void PassRemains::add(const StepResult& backward) {
  for (const Bound& bound : backward.rebindings)
    if (bound.owner == Owner::kGradient) add_gradient(bound.key, bound.tensor);
  add_outputs(backward.outputs, "the gradient of input");
}

void PassRemains::add_written(const std::vector<at::Tensor>& written) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : written) copies.push_back(tensor.defined() ? tensor.detach().clone() : tensor);
  add_outputs(copies, "what it writes to: tensor");
}

std::string difference(const Plan& plan, const PassRemains& replayed, const PassRemains& other) {
  if (replayed.all().size() != other.all().size()) return "how many tensors there are";
  if (plan.has_fixed_bits()) return difference_in_bits(replayed.all(), other.all());
  return difference_in_values(replayed.all(), other.all(), plan.narrowest());
}

}  // namespace stepc
