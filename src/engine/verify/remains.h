// What a step leaves behind, listed in one order for every way of running it: outputs, the program's tensors, batch
// tensors and slots; also the states of generators if bits are compared.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/compare/run_difference.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"

namespace stepc {

// What is in a slot of the program.
Named named_owned(const OwnedKey& key, const at::Tensor& tensor, bool by_bits);

// Borrows plan and program.
class Remains {
 public:
  Remains(const Plan& plan, const Program& program, const std::vector<at::Tensor>& tensors)
      : plan_(plan), program_(program), count_(tensors.size()) {}

  // `tensors`: the program's by its keys, and the batch's after them. What is compared by values is not copied: the
  // next run writes to the same tensors.
  std::vector<Named> of(const StepOutput& output, const std::vector<at::Tensor>& tensors,
                        const std::function<at::Tensor(const Rebinding&)>& rebound, bool by_bits) const;
  std::vector<Named> left_by(const StepResult& run, const std::vector<at::Tensor>& tensors, bool by_bits) const;

 private:
  const Plan& plan_;
  const Program& program_;
  size_t count_;
};

}  // namespace stepc
