// Measured: a Schedule, bound and run by the executor as a step is, with the time of each of its instructions.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capture/tracer.h"
#include "runtime/executor.h"
#include "runtime/kernel_sources.h"

namespace stepc {

double median(std::vector<double> values);

// Of runs one after the other that `seconds_of_run` times itself; of a long run, the first.
double median_seconds(const std::function<double()>& seconds_of_run);
// With other work before each.
double median_seconds(const std::function<double()>& seconds_of_run, const std::function<void()>& others);

// What is measured in rounds: of what a key names, the shortest time in all of them so far.
class ShortestTimes {
 public:
  double of(const std::string& key, double seconds);

 private:
  std::map<std::string, double> by_key_;
};

class Measured {
 public:
  // A fused Graph's text.
  Measured(const std::string& graph, KernelSources& kernels, int threads);
  // What `calls` call on `tensors`, as `exact` mode replays it.
  Measured(const std::vector<at::Tensor>& tensors, const std::function<void()>& calls, int threads);
  // As it is, on tensors of ones and small numbers.
  Measured(Schedule schedule, KernelSources* kernels);

  [[nodiscard]] const Schedule& schedule() const { return executor_.schedule(); }
  void run() { (void)executor_.run(inputs_); }
  // The same, with no clock between the instructions.
  void run_unwatched();
  // What a program's host code hands on before a run.
  [[nodiscard]] std::vector<HostSupply> host_numbers() const;
  void supply(const HostSupply& one) { executor_.supply(one.call, one.arg, one.number); }
  // Of its first instruction.
  double seconds() {
    return seconds([] {});
  }
  double seconds(const std::function<void()>& others);
  // Of each instruction: the median of `runs` runs, with `others` before each.
  std::vector<double> seconds_of_each(int runs, const std::function<void()>& others);

 private:
  Measured(Schedule schedule, KernelSources* kernels, const std::vector<at::Tensor>& tensors);

  Executor executor_;
  RunTimes times_;
  RunInputs inputs_;
};

}  // namespace stepc
