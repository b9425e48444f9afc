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

// One thing that a step leaves behind: its bits, and its values where only those are compared.
struct Named {
  std::string what;
  std::string group;  // what it is compared in size with: "parameter", "optimizer state exp_avg"
  std::optional<Owner> owner;
  std::string key;  // of the owner's
  uint64_t hash = 0;
  at::Tensor values;
};
// Borrows the memory of `tensor` where values are compared.
Named named(std::string what, std::string group, const at::Tensor& tensor, bool by_bits,
            std::optional<Owner> owner = {}, const std::string& key = {});

// A number that a step returns.
at::Tensor tensor_of(const Arg& number);

// Of two runs in one order; empty: none, or within rounding.
std::string difference_in_bits(const std::vector<Named>& replayed, const std::vector<Named>& eager);
// `narrow`: the step computes in bf16 or f16.
std::string difference_in_values(const std::vector<Named>& replayed, const std::vector<Named>& eager, bool narrow);

}  // namespace stepc
