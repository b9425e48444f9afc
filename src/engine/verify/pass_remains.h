// What a pass of a loop's model leaves behind, for comparison with what another run of the same pass leaves.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/compare/run_difference.h"
#include "engine/plan/plan.h"

namespace stepc {

// Bit by bit where the plan has fixed bits, else within rounding. Borrows the plan.
class PassRemains {
 public:
  explicit PassRemains(const Plan& plan) : by_bits_(plan.has_fixed_bits()) {}
  void add_outputs(const std::vector<at::Tensor>& outputs, const std::string& what);
  void add_gradient(const std::string& key, const at::Tensor& gradient);
  void add(const StepResult& backward);
  // Tensors of the program, whose values are copied: another run writes to them.
  void add_written(const std::vector<at::Tensor>& written);
  const std::vector<Named>& all() const { return all_; }

 private:
  bool by_bits_;
  std::vector<Named> all_;
};

// Where the two differ, empty: nowhere.
std::string difference(const Plan& plan, const PassRemains& replayed, const PassRemains& other);

}  // namespace stepc
