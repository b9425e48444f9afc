#include "optim/optimizer.h"

#include <array>
#include <cmath>
#include <map>
#include <set>

#include "base/check.h"
#include "optim/stochastic_rounding.h"

namespace stepc::optim {
namespace {
bool is_reduced(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }
}  // namespace

bool decays(const std::string& name, const at::Tensor& parameter, const UpdateRules& rules) {
  constexpr std::array<std::string_view, 6> kEmbeddings = {"embed_tokens", "word_embeddings", "wte",
                                                           "wpe",          "embedding",       "embeddings"};
  if (parameter.dim() < 2) return false;
  if (rules.decay_embeddings) return true;
  for (const std::string& segment : split(name, '.'))
    for (const std::string_view embedding : kEmbeddings)
      if (segment == embedding) return false;
  return true;
}

Optimizer::Optimizer(NamedTensors parameters, Basics basics, std::vector<std::string> states)
    : parameters_(std::move(parameters)), basics_(std::move(basics)), state_names_(std::move(states)) {
  USER_CHECK(!parameters_.empty(), "the optimizer has no parameters");
  check_range("weight_decay", basics_.weight_decay, 0.0, 1e3);
  const at::NoGradGuard no_grad;
  std::set<std::string_view> names;
  for (const auto& [name, parameter] : parameters_) {
    USER_CHECK(names.insert(name).second, "two parameters have the name {}", name);
    USER_CHECK(parameter.defined() && parameter.is_leaf() && parameter.requires_grad(),
               "{} is not a parameter: an optimizer updates leaf tensors that require gradients", name);
    const LowPrecision low = basics_.rules.low_precision;
    USER_CHECK(low != LowPrecision::kStochasticRounding || parameter.scalar_type() != at::kHalf,
               "{} is float16; stochastic rounding is for bfloat16", name);
    Slot slot;
    const bool widened = is_reduced(parameter.scalar_type()) && low != LowPrecision::kRounded;
    const auto options = parameter.options().requires_grad(false);
    for (size_t i = 0; i < state_names_.size(); ++i)
      slot.states.push_back(at::zeros_like(parameter, widened ? options.dtype(at::kFloat) : options));
    if (widened && low == LowPrecision::kMasterWeights) slot.master = parameter.to(at::kFloat);
    slot.weight_decay = decays(name, parameter, basics_.rules) ? basics_.weight_decay : 0.0;
    slots_.push_back(std::move(slot));
  }
  const auto scalar = parameters_.front().second.options().requires_grad(false);
  // PyTorch's fused updates on a device read it as float32; shapes alone stand for the CPU's.
  const bool is_hosts = scalar.device().is_cpu() || scalar.device().is_meta();
  lr_ = at::zeros({}, scalar.dtype(is_hosts ? at::kDouble : at::kFloat));
  step_ = at::zeros({}, scalar.dtype(at::kFloat));
  set_lr(basics_.lr);
}

Optimizer::Optimizer(std::string name, const Optimizer& wrapped)
    : parameters_(wrapped.parameters_), lr_(wrapped.lr_), step_(wrapped.step_), basics_{.name = std::move(name)} {}

void Optimizer::edit(size_t index, const std::function<void(const at::Tensor& value)>& change) {
  INTERNAL_CHECK_LT(index, slots_.size());
  const at::NoGradGuard no_grad;
  const at::Tensor& parameter = parameters_[index].second;
  const Slot& slot = slots_[index];
  if (slot.master.defined()) {
    change(slot.master);
    parameter.copy_(slot.master);
  } else if (is_reduced(parameter.scalar_type()) && basics_.rules.low_precision == LowPrecision::kStochasticRounding) {
    const at::Tensor wide = parameter.to(at::kFloat);
    change(wide);
    parameter.copy_(stochastically_rounded(wide));
  } else {
    change(parameter);
  }
}

void Optimizer::step(const at::Tensor& skip) {
  const at::NoGradGuard no_grad;
  const at::Tensor skipped = skip.defined() ? skip.ne(0) : skip;
  const auto unless_skipped = [&](const at::Tensor& tensor, const at::Tensor& before) {
    if (skip.defined()) tensor.copy_(at::where(skipped, before, tensor));
  };
  const auto kept = [&](const at::Tensor& tensor) { return skip.defined() ? tensor.clone() : at::Tensor(); };

  const at::Tensor steps_before = kept(step_);
  step_.add_(1.0);
  begin_step();
  // One update a parameter: it then depends on its own gradient alone, and can be placed where that dies.
  for (size_t i = 0; i < slots_.size(); ++i) {
    const at::Tensor& grad = parameters_[i].second.grad();
    if (!grad.defined()) continue;
    const Slot& slot = slots_[i];
    edit(i, [&](const at::Tensor& value) {
      const at::Tensor value_before = kept(value);
      std::vector<at::Tensor> states_before;
      for (const at::Tensor& state : slot.states) states_before.push_back(kept(state));
      update(slot, value, grad.to(value.scalar_type()));
      unless_skipped(value, value_before);
      for (size_t s = 0; s < slot.states.size(); ++s) unless_skipped(slot.states[s], states_before[s]);
    });
  }
  unless_skipped(step_, steps_before);
  end_step();
}

NamedTensors Optimizer::named_state() const {
  NamedTensors state = {{"lr", lr_}, {"step", step_}};
  for (size_t i = 0; i < slots_.size(); ++i) {
    const std::string& name = parameters_[i].first;
    for (size_t s = 0; s < state_names_.size(); ++s)
      state.emplace_back(str("{}.{}", name, state_names_[s]), slots_[i].states[s]);
    if (slots_[i].master.defined()) state.emplace_back(name + ".master", slots_[i].master);
  }
  state.insert(state.end(), kept_.begin(), kept_.end());
  return state;
}

void Optimizer::zero_grad() {
  for (const auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

void Optimizer::set_lr(double lr) {
  USER_CHECK(std::isfinite(lr) && lr >= 0.0, "the learning rate is {}; expected a finite number, 0 or more", lr);
  lr_.fill_(lr);
}

double Optimizer::lr() const { return lr_.item<double>(); }

void Optimizer::load_state(const NamedTensors& state) {
  std::map<std::string, at::Tensor> given(state.begin(), state.end());
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // to, from
  for (const auto& [name, own] : named_state()) {
    const auto found = given.find(name);
    USER_CHECK(found != given.end(), "the optimizer state lacks {}", name);
    const at::Tensor& from = found->second;
    const bool is_number = own.dim() == 0 && own.is_floating_point() && from.is_floating_point();
    USER_CHECK(from.sizes() == own.sizes() && (is_number || from.scalar_type() == own.scalar_type()),
               "{} is {} ({}) in the optimizer state; expected {} ({})", name, at::toString(from.scalar_type()),
               fmt::join(from.sizes(), ", "), at::toString(own.scalar_type()), fmt::join(own.sizes(), ", "));
    copies.emplace_back(own, from);
    given.erase(found);
  }
  USER_CHECK(given.empty(), "the optimizer state holds {}, which belongs to no parameter", given.begin()->first);

  const at::NoGradGuard no_grad;
  for (const auto& [to, from] : copies) to.copy_(from);
}

void Optimizer::check_range(const char* what, double value, double low, double high) const {
  USER_CHECK(value >= low && value <= high, "{}: {} is {}; expected a number from {} to {}", basics_.name, what, value,
             low, high);
}

}  // namespace stepc::optim
