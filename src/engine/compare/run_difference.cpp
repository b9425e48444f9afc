#include "engine/compare/run_difference.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include <ATen/Functions.h>

#include "base/text.h"
#include "engine/compare/tensor_hash.h"
#include "engine/compare/value_distance.h"

namespace stepc {

namespace {

// How far two correct runs may differ by rounding alone. A wrong kernel causes a larger difference.
struct Tolerance {
  double of_itself;  // of the tensor's own root mean square
  double of_group;   // of the largest of its group: the gradient of a bias that softmax cancels is nothing but rounding
  double nothing;    // part of the largest of its group below which a tensor is nothing but rounding
};
constexpr Tolerance kWide = {1e-3, 1e-4, 1e-4};
constexpr Tolerance kNarrow = {5e-2, 1e-2, 3e-2};  // bf16 or f16, whatever the results are kept in
// e5m2 gradients have a mantissa of two bits: a last bit that rounds differently changes an element by a quarter.
constexpr Tolerance kFloat8 = {2e-1, 5e-2, 1e-1};

// The optimizer states of the parameter all[p], without its wider copy.
std::vector<size_t> states_of(size_t p, const std::vector<Named>& all) {
  std::vector<size_t> states;
  if (all[p].owner != Owner::kParameter) return states;
  for (size_t s = 0; s < all.size(); ++s)
    if (all[s].owner == Owner::kOptimizerState && all[s].values.defined() && all[s].values.is_floating_point() &&
        all[s].values.sizes() == all[p].values.sizes() && !all[s].key.ends_with(".master") &&
        ("." + all[s].key).find("." + all[p].key + ".") != std::string::npos)
      states.push_back(s);
  return states;
}

// Adam and similar optimizers divide a gradient by its own size. If the gradient is only rounding noise, the update is
// too. The optimizer's state of the parameter all[p] shows this. `sizes`: root mean squares; `largest`: those of the
// groups.
bool is_moved_by_rounding(size_t p, const std::vector<Named>& all, const std::vector<double>& sizes,
                          const std::map<std::string, double>& largest, const Tolerance& tolerance) {
  return std::ranges::any_of(states_of(p, all),
                             [&](size_t s) { return sizes[s] < tolerance.nothing * largest.at(all[s].group); });
}

// The same for single elements, for example the elements of a bias of keys that are not rotated. Returns the root mean
// square difference with those elements left out; nullopt if the optimizer keeps no state of the parameter.
std::optional<double> apart_by_more_than_rounding(size_t p, const std::vector<Named>& replayed,
                                                  const std::vector<Named>& eager,
                                                  const std::map<std::string, double>& largest,
                                                  const Tolerance& tolerance) {
  at::Tensor moved;
  for (size_t s : states_of(p, eager)) {
    const double nothing = tolerance.nothing * largest.at(eager[s].group);
    const at::Tensor is_nothing = eager[s].values.abs().lt(nothing) & replayed[s].values.abs().lt(nothing);
    moved = moved.defined() ? moved & is_nothing : is_nothing;
  }
  if (!moved.defined()) return std::nullopt;
  const at::Tensor apart = replayed[p].values.to(at::kDouble) - eager[p].values.to(at::kDouble);
  return apart.masked_fill(moved, 0).square().mean().sqrt().item<double>();
}

}  // namespace

Named named(std::string what, std::string group, const at::Tensor& tensor, bool by_bits, std::optional<Owner> owner,
            const std::string& key) {
  Named one{std::move(what), std::move(group), owner, key, 0, {}};
  if (by_bits)
    one.hash = hash_of(tensor);
  else if (tensor.defined() && !tensor.is_meta())
    one.values = tensor.detach().to(at::kCPU);
  return one;
}

at::Tensor tensor_of(const Arg& number) {
  if (const auto* value = std::get_if<bool>(&number)) return at::scalar_tensor(*value, at::kBool);
  if (const auto* value = std::get_if<int64_t>(&number)) return at::scalar_tensor(*value, at::kLong);
  return at::scalar_tensor(std::get<double>(number), at::kDouble);
}

std::string difference_in_bits(const std::vector<Named>& replayed, const std::vector<Named>& eager) {
  for (size_t i = 0; i < eager.size(); ++i)
    if (eager[i].hash != replayed[i].hash) return eager[i].what;
  return {};
}

std::string difference_in_values(const std::vector<Named>& replayed, const std::vector<Named>& eager, DType narrowest) {
  const Tolerance& tolerance = is_float8(narrowest) ? kFloat8 : size_of(narrowest) < 4 ? kNarrow : kWide;
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
    if (errors[i] <= tolerance.of_itself * sizes[i] + tolerance.of_group * group) continue;
    if (errors[i] <= group) {
      if (is_moved_by_rounding(i, eager, sizes, largest, tolerance)) continue;
      const auto others = apart_by_more_than_rounding(i, replayed, eager, largest, tolerance);
      if (others && *others <= tolerance.of_itself * sizes[i] + tolerance.of_group * group) continue;
    }
    return str("{} by {:.1e} of {:.1e}", eager[i].what, errors[i], sizes[i]);
  }
  return {};
}

}  // namespace stepc
