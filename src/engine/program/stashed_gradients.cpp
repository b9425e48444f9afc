#include "engine/program/stashed_gradients.h"

#include <exception>
#include <map>
#include <string_view>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

namespace stepc {

StashedGradients::StashedGradients(const Program& program) : exceptions_(std::uncaught_exceptions()) {
  std::vector<at::Tensor> tensors;
  program.append_tensors(tensors);
  for (size_t k = 0; k < tensors.size(); ++k) {
    if (program.keys()[k].owner != Owner::kParameter || !tensors[k].defined() || !tensors[k].is_leaf()) continue;
    parameters_.push_back({program.keys()[k].key, tensors[k], tensors[k].grad()});
    if (parameters_.back().before.defined()) tensors[k].mutable_grad().reset();
  }
}

StashedGradients::~StashedGradients() {
  if (std::uncaught_exceptions() > exceptions_) add_to_those_before();
  for (Parameter& one : parameters_) one.tensor.mutable_grad() = one.before;
}

at::Tensor StashedGradients::gradient_of(const std::string& key) const {
  for (const Parameter& one : parameters_)
    if (one.key == key) return one.tensor.grad();
  return {};
}

std::vector<at::Tensor> StashedGradients::take() {
  std::vector<at::Tensor> out;
  for (Parameter& one : parameters_) {
    if (!one.tensor.requires_grad()) continue;
    out.push_back(one.tensor.grad());
    one.tensor.mutable_grad().reset();
  }
  return out;
}

std::vector<at::Tensor> StashedGradients::take(const std::vector<Bound>& gradients) const {
  std::map<std::string_view, const at::Tensor*> found;
  for (const Bound& gradient : gradients)
    if (gradient.owner == Owner::kGradient) found[gradient.key] = &gradient.tensor;
  std::vector<at::Tensor> out;
  for (const Parameter& one : parameters_) {
    if (!one.tensor.requires_grad()) continue;
    const auto gradient = found.find(one.key);
    out.push_back(gradient == found.end() ? at::Tensor() : *gradient->second);
  }
  return out;
}

void StashedGradients::add_to_those_before() {
  const at::NoGradGuard no_grad;
  for (Parameter& one : parameters_) {
    const at::Tensor& found = one.tensor.grad();
    if (found.defined()) one.before = one.before.defined() ? one.before.add_(found) : found;
  }
}

}  // namespace stepc
