// SmallCalls: what one instruction costs whatever its size, by its kind. Each is measured among many others, in a step
// of some hundreds of instructions that runs again and again (varied_step.h): the same call in a row would have its
// code and its tensors nearer than it ever has them in a step.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "calibrate/measured.h"
#include "cost/rates.h"

namespace stepc {

class SmallCalls {
 public:
  SmallCalls(KernelSources& kernels, int threads);

  // Once more; of all rounds so far the shortest time of each instruction counts. Sets what `rates` has of calls and
  // instructions.
  void measure(Rates& rates);
  // A hundred small instructions, as they stand between two products of LibTorch's.
  void run_some() { programs_.back()->small.run(); }
  // Some hundreds, as they lie between what a step does once, and the same in the step before.
  void run_a_step() {
    for (const auto& program : programs_) program->small.run();
  }

 private:
  // The same step on small tensors and on larger ones.
  struct Program {
    Program(const std::function<Measured(int64_t side)>& make, DType dtype);
    void measure(const std::function<void()>& others);
    DType dtype;
    Measured small, large;
    std::vector<double> small_seconds, large_seconds;  // by instruction
  };
  struct Sum {
    double calls = 0, small_seconds = 0, large_seconds = 0, small_bytes = 0, large_bytes = 0;
  };
  static std::pair<double, double> start_of(const Sum& sum);
  static void add_program(const Program& program, std::map<std::pair<std::string, DType>, Sum>& sums, Sum& generated);
  double timed(const std::function<void()>& work);
  double host_number_seconds();
  double input_seconds();
  double seed_seconds();
  double loss_seconds();

  KernelSources& kernels_;
  int threads_;
  std::vector<std::unique_ptr<Program>> programs_;
  ShortestTimes shortest_;
};

}  // namespace stepc
