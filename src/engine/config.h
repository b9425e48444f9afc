// What a person may choose for an accelerated step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "capture/op_rule.h"
#include "cost/target.h"
#include "engine/ranks/parallel.h"
#include "plan/memory_budget.h"

namespace stepc {

struct KernelSources;

enum class Mode : uint8_t {
  kEager,  // runs the step as it is: the baseline for measurements
  kExact,  // replays the recorded kernels from a planned arena, bit-equal to eager
  kFast,   // runs the step's Graph, simplified and fused; as exact where a Graph cannot express the step
};
std::string_view name_of(Mode mode);
// Throws UserError otherwise.
Mode parse_mode(std::string_view text);

// How a step becomes a plan.
enum class Capture : uint8_t {
  kRun,      // it runs under the recorder until two recordings agree
  kVirtual,  // nothing is executed, and the first call runs the plan already, in the memory of the plan; by running it
             // where that cannot be, in exact mode and where the host reads values, with a log line that says why
};
std::string_view name_of(Capture capture);
// Throws UserError otherwise.
Capture parse_capture(std::string_view text);

// What becomes of a step's host code at a replay.
enum class PythonMode : uint8_t {
  kAuto,   // as kWatch where a recording has found that safe, else as kTrace
  kWatch,  // it does not run; the values that it read are compared before every replay
  kTrace,  // it runs at every call, without kernels, and its calls are compared with the plan's
  kPure,   // it does not run, on the person's word that it does nothing and reads nothing but the step's arguments,
           // modules, optimizers and schedulers; as kTrace once a check has found the step to do something else
};
std::string_view name_of(PythonMode mode);
// Throws UserError otherwise.
PythonMode parse_python_mode(std::string_view text);

// "auto": a plan whose replays take longer than eager is given up; "off": none is, for that reason. Whether the former.
// Throws UserError otherwise.
bool parse_pace(std::string_view text);

// Which replays are compared with eager; the eager step is the one that counts then. Recorded calls must give the same
// bits, a Graph the same values within rounding. A Graph is compared with itself run plainly too, one ATen call a node,
// and with that alone where eager would draw other random numbers (engine/verify/verify_replay.h).
struct Verify {
  enum class Kind : uint8_t {
    kOff,
    kFirst,  // the first replay of every plan
    kEvery,  // that, and every `interval`-th after it
  };
  Kind kind = Kind::kFirst;
  int64_t interval = 0;

  static Verify off() { return {Kind::kOff, 0}; }
  static Verify first() { return {Kind::kFirst, 0}; }
  static Verify every(int64_t interval) { return {Kind::kEvery, interval}; }
  static Verify always() { return every(1); }
};

// "off", "first", "always" or "every:N". Throws UserError otherwise.
Verify parse_verify(std::string_view text);
std::string to_text(const Verify& verify);

struct Config {
  Mode mode = Mode::kFast;
  Capture capture = Capture::kRun;
  PythonMode python = PythonMode::kAuto;
  bool weighs_pace = true;  // see parse_pace()
  Verify verify = {};
  MemoryBudget memory_budget = {};    // of fast mode
  std::optional<Target> target = {};  // that budget "auto" is weighed with, as an earlier run's plan was; none:
                                      // as `stepc calibrate` keeps it beside the kernels, or the default
  std::filesystem::path kernel_directory = {};  // where generated kernels are kept between runs; empty: nowhere
  std::shared_ptr<KernelSources> kernels = {};  // shared with other steps; none: made when fast mode needs them
  std::optional<Parallel> parallel = {};        // the step runs on the ranks of a mesh; none: on this process alone
  OpRules op_rules = {};                        // of operators of the program's own, each made by op_rule()
  bool device_graphs = true;  // what a device can run at one launch it does, once its kernels are ready
  int max_plans = 8;       // signatures whose plans are kept, least recently used out first; and plans of one signature
  int max_recordings = 6;  // recordings of one signature without a plan before it stays eager
};

// Throws UserError naming the field that makes no sense.
void check(const Config& config);

}  // namespace stepc
