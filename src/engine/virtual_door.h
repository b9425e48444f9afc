// plan(): plans a training step without running it, and reports what it does and takes; the C++ door beside
// accelerate(). Models built inside a VirtualRegion hold no memory, so the model may be larger than the machine.
//
//   std::optional<stepc::VirtualRegion> region(std::in_place);
//   models::Decoder model(config);
//   region.reset();
//   torch::optim::AdamW optimizer(model->parameters());
//   stepc::VirtualPlan plan = stepc::plan(train_step, {model}, {optimizer}, batch);
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "aten/virtual_memory.h"
#include "capture/virtual/virtual_region.h"
#include "engine/config.h"
#include "engine/plan/virtual_plan.h"
#include "engine/program/flatten.h"
#include "engine/program/module_program.h"

namespace stepc {

// Arguments and result of `train_step` are as for accelerate(). Modules, optimizers, generators and the batch are
// afterwards what they were; what else the step changes on the host (its own counters) stays changed.
//
// Of `config`, which may be the one that the step is accelerated with, op_rules count: what they say of operators of
// the program's own goes into the plan.
template <class Fn, class... Batch>
VirtualPlan plan(Fn&& train_step, std::vector<ModuleRef> modules, std::vector<OptimizerRef> optimizers,
                 const Config& config, const Batch&... batch) {
  check(config);
  ModuleProgram program(std::move(modules), std::move(optimizers));
  StepInput input;
  [[maybe_unused]] const auto append = [&](const std::vector<at::Tensor>& from) {
    input.tensors.insert(input.tensors.end(), from.begin(), from.end());
  };
  (append(tensors_in(batch)), ...);
  return plan_virtually(
      program, input,
      [&] {
        if constexpr (std::is_void_v<std::invoke_result_t<Fn&, const Batch&...>>) {
          train_step(batch...);
          return StepOutput();
        } else {
          return StepOutput{tensors_in(train_step(batch...)), {}};
        }
      },
      config.op_rules);
}
template <class Fn, class... Batch>
VirtualPlan plan(Fn&& train_step, std::vector<ModuleRef> modules, std::vector<OptimizerRef> optimizers,
                 const Batch&... batch) {
  return plan(std::forward<Fn>(train_step), std::move(modules), std::move(optimizers), Config(), batch...);
}

}  // namespace stepc
