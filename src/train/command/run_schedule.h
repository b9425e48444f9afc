// `stepc run-schedule`: one run of a Schedule in a process that never saw its step: the text, the tensors that it reads
// and the kernels that it names are all that a run takes.
//
// A tensor is named by its kind and key: "parameter weight", "batch 0", "optimizer_state exp_avg"; a number that the
// host supplies is a 0-dim f64 tensor "scalar KEY". What comes out: "return 0" and on, "number 0" and on, what the step
// left in a slot ("gradient weight"), and the new contents of every input that it writes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace stepc::train {

struct RunScheduleCommand {
  std::filesystem::path schedule, inputs, out;
  std::filesystem::path kernels;  // where generated kernels are kept; empty: where `train` keeps them
  std::optional<uint64_t> seed;   // of the default generator
};

// Throws UserError for texts and tensors that do not fit, RunFailure where the run ends early. `out` is then what it
// was.
int run_schedule(const RunScheduleCommand& command);

}  // namespace stepc::train
