// accelerate(): the C++ door. Takes the user's training step without a change and returns a function with the same
// call. After a few recorded calls it replays the step from a plan.
//
//   auto step = stepc::accelerate(
//       [&](const at::Tensor& batch) {
//         at::Tensor loss = model->loss(batch);
//         loss.backward();
//         optimizer.step();
//         optimizer.zero_grad();
//         return loss;
//       },
//       {model}, {optimizer});
//   for (const at::Tensor& batch : batches) at::Tensor loss = step(batch);
//
// The step may read and write its batch, the modules' parameters, gradients and buffers, and the optimizers' state. A
// value that it reads on the host becomes a number of the plan or a guard. A step that no plan can hold, for example
// because it uses other tensors, runs eagerly, with one warning that gives the reason.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/config.h"
#include "engine/program/flatten.h"
#include "engine/program/module_program.h"
#include "engine/step.h"

namespace stepc {

template <class Fn>
class Accelerated {
 public:
  Accelerated(Fn train_step, std::unique_ptr<Program> program, Config config)
      : train_step_(std::move(train_step)), step_(std::make_unique<Step>(std::move(program), std::move(config))) {}

  // One training step. Arguments and result are those of the user's function and made of tensors
  // (engine/program/flatten.h says of which shapes); tensors in the result own their storage and carry no grad_fn.
  template <class... Batch>
  auto operator()(const Batch&... batch) -> std::decay_t<std::invoke_result_t<Fn&, const Batch&...>> {
    using Result = std::decay_t<std::invoke_result_t<Fn&, const Batch&...>>;
    const StepInput input = input_of(batch...);
    const auto eager = [&] { return call(batch...); };
    const auto on_others = [&](const std::vector<at::Tensor>& tensors) {
      std::tuple<Batch...> others(batch...);
      size_t next = 0;
      for_each_tensor_in(others, [&](at::Tensor& tensor) { tensor = tensors[next++]; });
      return std::apply([&](const Batch&... other) { return call(other...); }, others);
    };
    if constexpr (std::is_void_v<Result>) {
      step_->run(input, eager, on_others);
    } else {
      StepOutput output = step_->run(input, eager, on_others);
      Result result = *std::static_pointer_cast<Result>(shape_);
      size_t next = 0;
      for_each_tensor_in(result, [&](at::Tensor& tensor) { tensor = std::move(output.tensors[next++]); });
      return result;
    }
  }

  // With Config::capture "virtual": what the first call with such a batch would do before it runs. capture() plans the
  // step; modules and optimizers may still be virtual (engine/virtual_door.h). prepare() verifies it, too, without
  // effect. Whether calls will replay it.
  template <class... Batch>
  bool capture(const Batch&... batch) {
    return step_->capture(input_of(batch...), [&] { return call(batch...); });
  }
  template <class... Batch>
  bool prepare(const Batch&... batch) {
    return step_->prepare(input_of(batch...), [&] { return call(batch...); });
  }

  // Plans made from now on are counted as Stats::late_plans, as they are from the first replay on.
  void end_warm_up() { step_->end_warm_up(); }

  [[nodiscard]] const Stats& stats() const { return step_->stats(); }
  // Planned beside measured, in words.
  [[nodiscard]] std::string report() const { return step_->report(); }
  [[nodiscard]] std::optional<Prediction> prediction() const { return step_->prediction(); }
  // With memory budget "auto": the Target that the plan was weighed with, for Config::target of a run that goes on.
  [[nodiscard]] std::optional<Target> weighed_with() const { return step_->weighed_with(); }
  // Fast mode: where every byte goes at the step's peak, as a table, and over time, as an SVG file's text.
  [[nodiscard]] std::string memory_text() const { return step_->memory_text(); }
  [[nodiscard]] std::string memory_svg() const { return step_->memory_svg(); }
  // From now on replays are timed; then what the last of them took, instruction by instruction (cost/profile.h prints
  // it), nothing where no call was replayed.
  void start_profile() { step_->start_profile(); }
  std::optional<Profile> finish_profile() { return step_->finish_profile(); }
  // The step as it would run on another machine: named_target("h100"), say (cost/named_target.h).
  [[nodiscard]] std::optional<TargetPlan> plan_for(const Target& target) const { return step_->plan_for(target); }
  // The captured step as text.
  [[nodiscard]] std::string graph_text() const { return step_->graph_text(); }

 private:
  template <class... Batch>
  static StepInput input_of(const Batch&... batch) {
    StepInput input;
    (append(input.tensors, tensors_in(batch)), ...);
    return input;
  }
  // The user's function, its result as a list.
  template <class... Batch>
  StepOutput call(const Batch&... batch) {
    using Result = std::decay_t<std::invoke_result_t<Fn&, const Batch&...>>;
    if constexpr (std::is_void_v<Result>) {
      train_step_(batch...);
      return {};
    } else {
      Result result = train_step_(batch...);
      StepOutput tensors{tensors_in(result), {}};
      keep_shape(std::move(result));
      return tensors;
    }
  }

  static void append(std::vector<at::Tensor>& to, std::vector<at::Tensor> from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  }

  // Keeps the result's structure (sizes of vectors, keys of maps) without its tensors: a replay fills it in.
  template <class Result>
  void keep_shape(Result result) {
    for_each_tensor_in(result, [](at::Tensor& tensor) { tensor.reset(); });
    shape_ = std::make_shared<Result>(std::move(result));
  }

  Fn train_step_;
  std::unique_ptr<Step> step_;
  std::shared_ptr<void> shape_;
};

// `modules` and `optimizers` are all that the step trains; a temporary module or optimizer is not enough, both must
// live as long as the result. Throws UserError when the process cannot be recorded (another library owns the dispatch
// key).
template <class Fn>
Accelerated<std::decay_t<Fn>> accelerate(Fn&& train_step, std::vector<ModuleRef> modules,
                                         std::vector<OptimizerRef> optimizers, Config config = {}) {
  return {std::forward<Fn>(train_step), std::make_unique<ModuleProgram>(std::move(modules), std::move(optimizers)),
          std::move(config)};
}

}  // namespace stepc
