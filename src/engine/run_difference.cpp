#include "engine/run_difference.h"

#include <algorithm>
#include <map>

#include <ATen/Functions.h>

#include "base/text.h"
#include "engine/tensor_hash.h"
#include "engine/value_distance.h"

namespace stepc {

namespace {

// How far apart two runs may be by rounding alone. A wrong kernel shows as more.
struct Tolerance {
  double of_itself;  // of the tensor's own root mean square
  double of_group;   // of the largest of its group: the gradient of a bias that softmax cancels is nothing but rounding
  double nothing;    // part of the largest of its group below which a tensor is nothing but rounding
};
constexpr Tolerance kWide = {1e-3, 1e-4, 1e-4};
constexpr Tolerance kNarrow = {5e-2, 1e-2, 3e-2};  // bf16 or f16, whatever the results are kept in

// Adam and its kin divide a gradient by its own size: where that is nothing but rounding, so is the update. Told by the
// optimizer's state of the parameter, then[p]: how far apart the elements are that it does not tell so of. `largest`:
// root mean squares of the groups.
ValueDistance without_rounding(size_t p, const std::vector<Named>& now, const std::vector<Named>& then,
                               const std::map<std::string, double>& largest, const Tolerance& tolerance) {
  at::Tensor is_rounding = at::zeros(then[p].values.sizes(), at::kBool);
  for (const Named& state : then) {
    const bool is_its_state = state.owner == Owner::kOptimizerState && state.values.defined() &&
                              state.values.is_floating_point() && state.values.sizes() == then[p].values.sizes() &&
                              ("." + state.key).find("." + then[p].key + ".") != std::string::npos;
    if (is_its_state)
      is_rounding = is_rounding.logical_or(state.values.abs() < tolerance.nothing * largest.at(state.group));
  }
  return value_distance(now[p].values.masked_fill(is_rounding, 0), then[p].values.masked_fill(is_rounding, 0));
}

}  // namespace

Named named(std::string what, std::string group, const at::Tensor& tensor, bool by_bits, std::optional<Owner> owner,
            const std::string& key) {
  Named one{std::move(what), std::move(group), owner, key, 0, {}};
  if (by_bits)
    one.hash = hash_of(tensor);
  else if (tensor.defined() && tensor.device().is_cpu())
    one.values = tensor.detach();
  return one;
}

std::string difference_in_bits(const std::vector<Named>& replayed, const std::vector<Named>& eager) {
  for (size_t i = 0; i < eager.size(); ++i)
    if (eager[i].hash != replayed[i].hash) return eager[i].what;
  return {};
}

std::string difference_in_values(const std::vector<Named>& replayed, const std::vector<Named>& eager, bool narrow) {
  const Tolerance& tolerance = narrow ? kNarrow : kWide;
  std::vector<double> sizes, errors;
  std::map<std::string, double> largest;
  for (size_t i = 0; i < eager.size(); ++i) {
    const at::Tensor& now = replayed[i].values;
    const at::Tensor& then = eager[i].values;
    if (now.defined() != then.defined()) return eager[i].what;
    const bool alike = !then.defined() || (now.sizes() == then.sizes() && now.scalar_type() == then.scalar_type());
    if (!alike) return eager[i].what;
    ValueDistance distance;
    if (then.defined() && then.is_floating_point())
      distance = value_distance(now, then);
    else if (then.defined() && !now.equal(then))
      return eager[i].what;
    if (!distance.finite_alike) return str("what is finite of {}", eager[i].what);
    sizes.push_back(distance.rms);
    errors.push_back(distance.apart);
    largest[eager[i].group] = std::max(largest[eager[i].group], distance.rms);
  }
  for (size_t i = 0; i < eager.size(); ++i) {
    const double group = largest.at(eager[i].group);
    const double allowed = tolerance.of_itself * sizes[i] + tolerance.of_group * group;
    if (errors[i] <= allowed) continue;
    if (eager[i].owner == Owner::kParameter && errors[i] <= group &&
        without_rounding(i, replayed, eager, largest, tolerance).apart <= allowed)
      continue;
    return str("{} by {:.1e} of {:.1e}", eager[i].what, errors[i], sizes[i]);
  }
  return {};
}

}  // namespace stepc
