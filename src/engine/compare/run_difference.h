// The distance between two runs of a step in what they leave behind: bit by bit if recorded kernels ran, within
// rounding if a Graph ran.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ir/trace.h"

namespace stepc {

// One thing that a step leaves behind: its bits, and its values if only values are compared.
struct Named {
  std::string what;
  std::string group;  // the group whose size it is compared with: "parameter", "optimizer state exp_avg"
  std::optional<Owner> owner;
  std::string key;  // the owner's key
  uint64_t hash = 0;
  at::Tensor values;
};
// Borrows the memory of `tensor` if values are compared.
Named named(std::string what, std::string group, const at::Tensor& tensor, bool by_bits,
            std::optional<Owner> owner = {}, const std::string& key = {});

// A number that a step returns, as a tensor.
at::Tensor tensor_of(const Arg& number);

// The difference of two runs listed in one order; empty: no difference, or one within rounding.
std::string difference_in_bits(const std::vector<Named>& replayed, const std::vector<Named>& eager);
// `narrowest`: of the floating-point types that the step computes in.
std::string difference_in_values(const std::vector<Named>& replayed, const std::vector<Named>& eager, DType narrowest);

}  // namespace stepc
